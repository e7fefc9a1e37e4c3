"""One workload on one fleet, ready to be replayed under any policy: what the commands share."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steersman.controller.calibration.steps import Plan
from steersman.controller.config import Config, load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.sources import TABLES, load_workload
from steersman.controller.replay.summary import PolicySummary, summarize
from steersman.controller.replay.workload import Workload
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated.profile import load_profile

MADE_UP = ("group_size", "prompts_per_step", "passes", "seed")


@dataclass(frozen=True)
class Comparison:
    """Policies side by side."""

    plan: FleetPlan
    workloads: Sequence[Workload]
    """One per imputation."""
    results: Sequence[Sequence[Result]]
    """[policy][imputation]"""
    summaries: list[PolicySummary]
    stream: bool = False
    """The steps of `results` are batches: not the same for all policies, nor the workloads'."""


@dataclass(frozen=True)
class Study:
    """A workload, a fleet, and settings that hold for every policy."""

    workload: Workload
    plan: FleetPlan
    overrides: Sequence[str] = ()
    seed: int = 0
    options: Options = field(default_factory=Options)

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Study":
        """From the command line's arguments."""
        given = {name: v for name in MADE_UP if (v := getattr(args, name)) is not None}
        made_up = [name for name in given if name != "seed"]
        if made_up and not args.path.name.endswith(TABLES):
            option = "--" + made_up[0].replace("_", "-")
            raise InvalidInputError(f"{option} is for tables of samples; a run has its own steps")
        profile = load_profile(args.profile)
        if args.max_num_seqs is not None:
            profile = replace(profile, max_num_seqs=args.max_num_seqs)
        workload = load_workload(args.path, Plan(**given))
        if args.steps is not None:
            if args.steps < 1:
                raise InvalidInputError(f"steps is {args.steps}; valid: 1 or more")
            workload = replace(workload, steps=workload.steps[: args.steps])
        options = Options(
            inflight_groups=args.inflight_groups or 0, batch_groups=args.batch_groups or 0
        )
        return cls(workload, FleetPlan(profile, args.replicas), args.set, args.seed or 0, options)

    def count(self, imputations: int) -> int:
        """Steps that one policy replays."""
        return len(self.workload.steps) * len(self.imputed(imputations))

    def imputed(self, imputations: int) -> list[Workload]:
        """The workload with its censored lengths drawn; once if nothing is censored."""
        if imputations < 1:
            raise InvalidInputError(f"imputations is {imputations}; valid: 1 or more")
        if not any(step.censored.any() for step in self.workload.steps):
            return [self.workload]
        return [
            self.workload.imputed(np.random.default_rng((self.seed, i))) for i in range(imputations)
        ]

    def config(self, policy: str, overrides: Sequence[str] = ()) -> Config:
        """Of one policy; the environment does not count, so that a replay is its arguments."""
        return load_config(
            None, [f"placement.name={policy}", *self.overrides, *overrides], environ={}
        )

    def compare(
        self,
        policies: Sequence[str],
        imputations: int,
        after_step: Callable[[], object] = lambda: None,
    ) -> Comparison:
        """Replay every policy on the same lengths."""
        configs = [self.config(policy) for policy in policies]
        workloads = self.imputed(imputations)
        results = [
            [replay(w, self.plan, config, self.options, after_step) for w in workloads]
            for config in configs
        ]
        stream = bool(self.options.inflight_groups)
        summaries = summarize(workloads, results, self.plan, self.seed, stream)
        return Comparison(self.plan, workloads, results, summaries, stream)
