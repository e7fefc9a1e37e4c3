"""What a report says of one run, in numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

EDGE_STEPS = 3
"""Steps averaged into the first and the last reward: a single step's mean is mostly noise."""


@dataclass(slots=True)
class StepSummary:
    """One step.  Everything that was delivered by it counts here, whenever it was asked for."""

    step: int
    started_s: float
    seconds: float
    """Of rollout: from the request to the last answer that was waited for."""
    groups: int = 0
    tokens: int = 0
    asked_groups: int = 0
    """Groups admitted by it; 0: it only drained what was parked."""
    finished: int = 0
    truncated: int = 0
    other: int = 0
    """Stopped or failed."""
    migrated: int = 0
    deferred: int = 0
    resumed: int = 0
    replaced: int = 0
    """Restarted or expired: a fresh sample took the slot."""
    rewards: list[float] = field(default_factory=list)
    drafts: int = 0
    """Verified in it."""
    draft_tokens_accepted: int = 0

    @property
    def drains(self) -> bool:
        """Whether it asked for nothing new."""
        return self.asked_groups == 0

    @property
    def reward(self) -> float | None:
        """Mean reward of what it delivered."""
        return fmean(self.rewards) if self.rewards else None

    @property
    def accepted_per_draft(self) -> float | None:
        """Tokens; None: nothing was drafted."""
        return self.draft_tokens_accepted / self.drafts if self.drafts else None


@dataclass(slots=True)
class Bar:
    """One attempt on one replica, for the timeline."""

    trajectory_id: int
    replica: str
    start_s: float
    prefix_tokens: int
    end_s: float = math.nan
    tokens: int = 0
    ending: str = "open"
    """finished, truncated, migrated, deferred, stopped, lost or open."""

    def clipped(self, span_s: tuple[float, float]) -> tuple[float, float] | None:
        """The part of it within `span_s`, seconds since that began; None: it is not in it."""
        start_s, end_s = span_s
        if self.start_s >= end_s or (self.start_s < start_s and self.end_s <= start_s):
            return None
        last_s = end_s if math.isnan(self.end_s) else min(self.end_s, end_s)
        return max(self.start_s - start_s, 0.0), last_s - start_s


@dataclass(frozen=True, slots=True)
class DecisionSummary:
    """One decision that interrupted a trajectory."""

    t_s: float
    trajectory_id: int
    action: str
    replica: str
    gain_s: float
    cost_s: float
    reason: str
    outcome: str


@dataclass(slots=True)
class RunSummary:
    """One run; made from its trace by `summarize`."""

    policy: str = "?"
    facts: dict[str, str] = field(default_factory=dict)
    """Seed, replicas, machine and the like, for a person."""
    levers: dict[str, str] = field(default_factory=dict)
    """Policy with its options, by what it decides."""
    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Groups admitted, by samples per prompt and token cap."""
    prompts: set[int] = field(default_factory=set)
    """Keys of those admitted."""
    qualities: list[tuple[str, float, int]] = field(default_factory=list)
    """Metric, value and samples evaluated, in their order."""
    replicas: list[str] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """Sequences that run at once at most, by replica."""
    kv_usage: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(seconds on the trace's clock, share of the KV cache in use) reported, by replica."""
    steps: list[StepSummary] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    decisions: list[DecisionSummary] = field(default_factory=list)
    """Most consequential first: by predicted gain less cost."""
    placed: int = 0
    """Place decisions, which are not listed."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of every answer."""
    on_time_lengths: list[int] = field(default_factory=list)
    """Tokens of the answers that came in the step that asked for them."""
    drafts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By where they came from: drafts "verified", their "tokens", and those "accepted"."""
    asked: int = 0
    """Answers asked for: the sizes of all admitted groups."""
    degenerate_groups: int = 0
    """Delivered groups whose rewards are all the same: they teach nothing."""
    rewarded_groups: int = 0
    lost: int = 0
    """Answers asked for that never came (those of groups that were given up do not count)."""
    doubled: int = 0
    logprob_difference: float | None = None
    """Largest |engine - trainer| over all probes after weight pushes."""
    fail_open: int = 0
    """Times the fallback had to take over."""
    problems: list[str] = field(default_factory=list)
    """What the trace's invariants object to."""

    @property
    def timed_steps(self) -> list[StepSummary]:
        """The steps that asked for something."""
        return [step for step in self.steps if not step.drains]

    def find(self, number: int) -> StepSummary | None:
        """The step of that number."""
        return next((step for step in self.steps if step.step == number), None)

    @property
    def rollout_s(self) -> float:
        """Seconds of rollout over all steps, the final drain included."""
        return sum(step.seconds for step in self.steps)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(self.lengths)

    def step_s(self, level: float) -> float | None:
        """Quantile of the step times."""
        return quantile([step.seconds for step in self.timed_steps], level)

    def total(self, name: str) -> int:
        """Sum of a count over all steps."""
        return sum(getattr(step, name) for step in self.steps)

    def edge_rewards(self) -> tuple[float | None, float | None]:
        """Mean reward of the first and of the last steps."""
        rewards = [step.reward for step in self.timed_steps if step.reward is not None]
        return _mean(rewards[:EDGE_STEPS]), _mean(rewards[-EDGE_STEPS:])

    @property
    def mean_length_asked(self) -> float | None:
        """Mean tokens of every answer, late ones included."""
        return _mean(self.lengths)

    @property
    def mean_length_kept(self) -> float | None:
        """Mean tokens of the answers that came in their own step."""
        return _mean(self.on_time_lengths)


def distinguished(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs of one placement policy are told apart by what else they were set to, and by a number
    where nothing else differs."""
    named: list[RunSummary] = []
    for run in runs:
        twins = [other for other in runs if other.policy == run.policy]
        differs = [
            value
            for part, value in run.levers.items()
            if len({other.levers.get(part) for other in twins}) > 1
        ]
        told = [value for value in differs if value != run.policy]
        named.append(replace(run, policy=", ".join([run.policy, *told])))
    names = [run.policy for run in named]
    return [
        run if names.count(run.policy) == 1 else replace(run, policy=f"{run.policy} ({i})")
        for i, run in enumerate(named, start=1)
    ]


def quantile(values: Iterable[float], level: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    ordered = sorted(values)
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)] if ordered else None


def _mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return fmean(kept) if kept else None
