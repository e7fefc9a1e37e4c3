"""A policy's options searched by replay, and the find held against steps the search never saw.

The last share of a run's steps is held out.  Every trial replays the same other steps with the same
lengths; what it minimises is their rollout seconds, the drain of what was put off included.  The
first trial is the defaults.  Estimators learn from step to step, so the held-out steps are judged
in a replay of the whole run that counts only them; what was put off before them is theirs to pay.
Censored lengths are drawn for the search from its own steps alone.

The figure on the tuning steps is the best of many, so it flatters; that on the held-out steps does
not.  Neither covers what the simulator gets wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from steersman.controller.config import Config, PartConfig
from steersman.controller.replay.run import Result, replay
from steersman.controller.replay.search import Options, defaults_of, ranges_of, searched
from steersman.controller.replay.study import Study
from steersman.controller.replay.summary import TIER, Interval, draws, makespans, paired_ratio
from steersman.controller.replay.verdict import Verdict, judge
from steersman.controller.replay.workload import Workload
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

LEAST_STEPS = 2
"""To tune on, and to hold out: an interval over one step is a point."""
JUDGED = 3
"""Configurations replayed on the whole run: tuned, defaults, the trainer's."""


@dataclass(frozen=True)
class Settings:
    """How a search goes about it."""

    policy: str = "tail_planner"
    trials: int = 40
    """The defaults are the first of them."""
    held_out: float = 0.34
    """Share of the steps, the last ones."""
    imputations: int = 1
    """Draws of each censored length; every trial replays all of them."""

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise InvalidInputError(f"trials is {self.trials}; valid: 2 or more, with the defaults")
        if not 0.0 < self.held_out < 1.0:
            raise InvalidInputError(f"held-out is {self.held_out}; valid: between 0 and 1")

    def split(self, steps: int) -> int:
        """How many of the steps are tuned on."""
        held_out = round(self.held_out * steps)
        if not LEAST_STEPS <= held_out <= steps - LEAST_STEPS:
            raise InvalidInputError(
                f"held-out {self.held_out:g} of {steps} steps is {held_out}; valid: at least "
                f"{LEAST_STEPS} held out and {LEAST_STEPS} left to tune on"
            )
        return steps - held_out


@dataclass(frozen=True)
class HeldOut:
    """One configuration on the held-out steps."""

    policy: str
    total_s: float
    """Rollout seconds, the final drain included; mean over imputations."""
    over_defaults: Interval
    """`total_s` over that of the policy's defaults."""
    over_trainer: Interval
    """`total_s` over that of the trainer's own policy."""
    moves: int
    deferred: int
    mean_length_asked: float
    mean_length_kept: float
    """Of answers in their own step: below `mean_length_asked` if long ones were put off."""
    unsupported_share: float
    """Of the replica time of the whole run: beyond the loads the profile was fitted on."""


@dataclass(frozen=True)
class Tuning:
    """What a search found."""

    tier: str
    tuning_steps: int
    held_out_steps: int
    trials_s: list[float]
    """Rollout seconds of the tuning steps in every trial, the defaults first."""
    on_tuning_steps: Interval
    """Seconds of the tuned options over the defaults'."""
    default_options: Options
    tuned_options: Options
    tuned: HeldOut
    defaults: HeldOut
    trainer: HeldOut
    """The policy that the trainer would have used: `fallback` in the configuration."""
    verdict: Verdict
    config: Config
    """With the tuned options if they hold, else with the defaults."""


def replayed_steps(study: Study, settings: Settings) -> int:
    """Times that `tune` calls `after_step`."""
    searching = settings.trials * _first(study, settings).count(settings.imputations)
    return searching + JUDGED * study.count(settings.imputations)


def tune(
    study: Study, settings: Settings, after_step: Callable[[], object] = lambda: None
) -> Tuning:
    """Search, and judge what was found."""
    if study.options.inflight_groups:
        raise InvalidInputError("tuning holds steps out, and a stream (--inflight-groups) has none")
    base = study.config(settings.policy)
    if base.placement.name != settings.policy:
        raise InvalidInputError("--set placement.name is not for tuning; give --policy")
    ranges = ranges_of(base.placement)
    defaults = defaults_of(base.placement, ranges)
    tuning = _first(study, settings)
    workloads, spans = tuning.imputed(settings.imputations), list[Floats]()
    tried: list[Options] = []

    def objective(options: Options) -> float:
        runs = _replays(tuning, workloads, _with(base, options), after_step)
        tried.append(options)
        spans.append(_spans(runs, len(tuning.workload.steps)))
        return float(spans[-1].sum(axis=1).mean())

    searched(ranges, defaults, settings.trials, study.seed, objective)
    best = min(range(len(tried)), key=lambda trial: float(spans[trial].sum()))
    first = len(tuning.workload.steps)
    ratio = paired_ratio(spans[best], spans[0], draws(first, study.seed))
    configs = (
        _with(base, tried[best]),
        _with(base, defaults),
        msgspec.structs.replace(base, placement=base.fallback),
    )
    tuned, default, trainer = _on_held_out(study, settings, configs, first, after_step)
    held_out_steps = len(study.workload.steps) - first
    verdict = judge(ratio, tuned.over_defaults, held_out_steps)
    return Tuning(
        tier=TIER,
        tuning_steps=first,
        held_out_steps=held_out_steps,
        trials_s=[float(own.sum(axis=1).mean()) for own in spans],
        on_tuning_steps=ratio,
        default_options=defaults,
        tuned_options=tried[best],
        tuned=tuned,
        defaults=default,
        trainer=trainer,
        verdict=verdict,
        config=configs[0] if verdict.holds else configs[1],
    )


def _first(study: Study, settings: Settings) -> Study:
    """The study of the steps tuned on."""
    steps = study.workload.steps
    own = replace(study.workload, steps=steps[: settings.split(len(steps))])
    return replace(study, workload=own)


def _with(base: Config, options: Options) -> Config:
    part = PartConfig(base.placement.name, {**base.placement.options, **options})
    return msgspec.structs.replace(base, placement=part)


def _replays(
    study: Study, workloads: Sequence[Workload], config: Config, after_step: Callable[[], object]
) -> list[Result]:
    return [replay(w, study.plan, config, study.options, after_step) for w in workloads]


def _spans(runs: Sequence[Result], steps: int, first: int = 0) -> Floats:
    """(imputations, steps - first) seconds."""
    return np.stack([makespans(run, steps, first) for run in runs])


def _on_held_out(
    study: Study,
    settings: Settings,
    configs: Sequence[Config],
    first: int,
    after_step: Callable[[], object],
) -> list[HeldOut]:
    """Of every configuration; the last two are what the others are compared with."""
    steps = len(study.workload.steps)
    workloads = study.imputed(settings.imputations)
    results = [_replays(study, workloads, config, after_step) for config in configs]
    spans = [_spans(runs, steps, first) for runs in results]
    drawn = draws(steps - first, study.seed)
    return [
        _held_out(
            runs,
            first,
            own,
            paired_ratio(own, spans[-2], drawn),
            paired_ratio(own, spans[-1], drawn),
        )
        for runs, own in zip(results, spans, strict=True)
    ]


def _held_out(
    runs: Sequence[Result],
    first: int,
    spans: Floats,
    over_defaults: Interval,
    over_trainer: Interval,
) -> HeldOut:
    steps = [step for run in runs for step in run.steps[first:]]
    own = [step for step in steps if step.asked]
    return HeldOut(
        policy=runs[0].policy,
        total_s=float(spans.sum(axis=1).mean()),
        over_defaults=over_defaults,
        over_trainer=over_trainer,
        moves=sum(step.moves for step in steps) // len(runs),
        deferred=sum(step.deferred for step in steps) // len(runs),
        mean_length_asked=float(np.mean([step.mean_length_asked for step in own])),
        mean_length_kept=float(np.nanmean([step.mean_length_kept for step in own])),
        unsupported_share=float(np.mean([run.unsupported for run in runs])),
    )
