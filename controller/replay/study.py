"""One workload on one fleet, ready to be replayed under any policy: what the commands share."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from steersman.controller.calibration.steps import Plan
from steersman.controller.config import Config, load_config
from steersman.controller.replay.events import Happenings
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.scenario import Scenario
from steersman.controller.replay.sources import (
    TABLES,
    accepted_by_position,
    load_workload,
    weight_times,
)
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
    """The steps of `results` are batches, or steps of `groups_wanted`: not the same for all
    policies, nor the workloads'."""


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
        workload = load_workload(args.path, Plan(**given))
        if args.steps is not None:
            if args.steps < 1:
                raise InvalidInputError(f"steps is {args.steps}; valid: 1 or more")
            workload = replace(workload, steps=workload.steps[: args.steps])
        plan, happenings = _fleet(args)
        options = Options(
            inflight_groups=args.inflight_groups or 0,
            batch_groups=args.batch_groups or 0,
            groups_wanted=getattr(args, "groups_wanted", None) or 0,
            seed=args.seed or 0,
            scenario=happenings,
        )
        return cls(workload, plan, args.set, args.seed or 0, options)

    def count(self, imputations: int) -> int:
        """Steps that one policy replays, or about so many."""
        steps = len(self.workload.steps)
        if self.options.groups_wanted:
            groups = sum(len(step.prompt_key) for step in self.workload.steps)
            steps = -(-groups // self.options.groups_wanted)
        return steps * len(self.imputed(imputations))

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
        stream = bool(self.options.inflight_groups or self.options.groups_wanted)
        summaries = summarize(workloads, results, self.plan, self.seed, stream)
        return Comparison(self.plan, workloads, results, summaries, stream)


def _fleet(args: argparse.Namespace) -> tuple[FleetPlan, Happenings]:
    """The fleet, and what befalls it."""
    path: Path | None = getattr(args, "scenario", None)
    scenario = Scenario() if path is None else Scenario.load(path)
    if scenario.file.replicas and args.profile is not None:
        raise InvalidInputError(f"{path} names its [[replicas]]; --profile is for those without")
    if path is None and args.profile is None:
        raise InvalidInputError("there is no --profile; valid names: `steersman profile list`")
    profile = None if args.profile is None else load_profile(args.profile)
    plan, happenings = scenario.applied(
        profile,
        args.replicas,
        lambda: weight_times(args.path),
        lambda: accepted_by_position(args.path),
    )
    if args.max_num_seqs is not None:
        each = tuple(replace(own, max_num_seqs=args.max_num_seqs) for own in plan.each)
        plan = replace(plan, profile=each[0], profiles=each if plan.profiles else ())
    return plan, happenings
