"""The records of a trace: a versioned, tagged union.  Whatever happens becomes one of these.

A trace holds no prompt and no answer: counts, times and names only (`prompt_token_ids` of a group
is filled where the configuration asks for it).  Names of phases, dispositions, actions and outcomes
are those of the enums named beside them.
"""

import os
import platform
from importlib.metadata import version
from math import isfinite
from typing import Any

import msgspec

from steersman.controller.trace._record import Base
from steersman.controller.trace.observed import (
    ObservationRecorded,
    observation_to_record,
    record_to_observation,
)
from steersman.mechanisms.fleet import ReplicaInfo, ReplicaStats, VersionSpan
from steersman.policies.decision import Decision, DraftDecision, StackChoice

__all__ = ["ObservationRecorded", "observation_to_record", "record_to_observation"]

SCHEMA_VERSION = 1
"""Raised when a record changes its meaning or loses a field; readers refuse a newer one."""


def _steersman_version() -> str:
    return version("steersman")


def machine() -> str:
    """Where this process runs."""
    system, processor = platform.system(), platform.machine()
    return f"{system} {processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


# The run


class RunStarted(Base, frozen=True, kw_only=True):
    """The first record of every trace."""

    schema_version: int = SCHEMA_VERSION
    started_unix_s: float
    """Wall clock at `t_s` = 0, seconds since 1970."""
    steersman_version: str = msgspec.field(default_factory=_steersman_version)
    config: dict[str, Any]
    """The configuration, defaults included."""
    replicas: list[ReplicaInfo]
    seed: int
    machine: str = msgspec.field(default_factory=machine)
    """Where the controller ran: system, cores, Python."""


class RunEnded(Base, frozen=True, kw_only=True):
    """The last record of a run that came to its end."""

    clean: bool
    """False: an exception ended it."""


class ControllerState(Base, frozen=True, kw_only=True):
    """From now on somebody else decides."""

    state: str
    """enforcing, shadow, fail_open or off."""
    why: str


class WeightsPushed(Base, frozen=True, kw_only=True):
    """Every living replica holds new weights."""

    weight_version: int
    seconds: float
    """From the call to the last replica's confirmation, probes included."""
    probe_max_difference: float | None = None
    """Largest |log p(replica) - log p(trainer)| over the probes; none: there were no probes."""
    policy_kl: float | None = None
    """KL divergence from the version before, if the trainer told it."""


# Steps and groups


class StepStarted(Base, frozen=True, kw_only=True):
    """The trainer asked for a step."""

    step: int
    weight_version: int
    objective: str
    """An `Objective`."""
    groups: int
    """Groups it waits for, resumed ones included."""
    max_lag: int


class StepEnded(Base, frozen=True, kw_only=True):
    """The step's groups are complete or parked."""

    step: int
    seconds: float
    tokens: int
    """In the groups delivered."""
    groups: int
    """Delivered."""


class GroupAdmitted(Base, frozen=True, kw_only=True):
    """A prompt will be answered `size` times."""

    group_id: int
    prompt_id: str
    prompt_key: int
    """`Prompt.key`: the same prompt in another step has the same one."""
    prompt_tokens: int
    size: int
    max_new_tokens: int
    """Token cap of each of its trajectories."""
    step: int
    inclusion_probability: float = 1.0
    """With which the prompt policy admitted it, in (0, 1]."""
    prompt_weight: float = 1.0
    """Inverse of that probability, over its mean among those chosen at once."""
    prompt_policy: str = ""
    """Who chose the prompt; empty: the trainer did."""
    features: list[float] = msgspec.field(default_factory=list)
    prompt_token_ids: list[int] | None = None


class GroupExtended(Base, frozen=True, kw_only=True):
    """A group all of whose samples were answered gets more of them."""

    group_id: int
    size: int
    """Samples it has now."""


class GroupSelected(Base, frozen=True, kw_only=True):
    """The prompt policy's verdict on a complete group."""

    group_id: int
    accepted: bool
    """It counts towards the batch.  False: it is filtered, and does not count as begun either."""
    trained: int
    """Samples of it that are trained on."""
    weight: float
    """Inverse of the probability that it was chosen and kept, up to a factor."""


class PromptsChosen(Base, frozen=True, kw_only=True):
    """What the prompt policy chose from the pool."""

    step: int
    refill: int
    """Times it was asked before in this step."""
    policy: str
    groups_wanted: int
    chosen: int
    reason: str
    pool: int
    """Prompts there are."""
    available: int
    """Those of them that the draw could choose: not under way already."""
    waited_longest: str
    """The prompt that was chosen, or came into the pool, the longest ago."""
    waited_steps: int
    """And how many steps ago."""


class GroupEnded(Base, frozen=True, kw_only=True):
    """A group was handed over, was filtered (`GroupSelected` says so), or was given up."""

    group_id: int
    trajectory_ids: list[int]
    """By slot."""
    complete: bool
    """Each has its answer.  False: the caller went away."""


# Trajectories and attempts


class TrajectoryQueued(Base, frozen=True, kw_only=True):
    """A trajectory was born and waits."""

    trajectory_id: int
    group_id: int
    slot: int
    """0 .. size - 1."""
    replaces: int = -1
    """The restarted or expired trajectory that had the slot before; -1: none."""


class PhaseChanged(Base, frozen=True, kw_only=True):
    """A trajectory changed its `Phase`."""

    trajectory_id: int
    old: str
    new: str
    why: str
    replica: str = ""
    """Where it is now, if anywhere."""
    generated_tokens: int


class AttemptStarted(Base, frozen=True, kw_only=True):
    """A request went to a replica."""

    attempt_id: str
    trajectory_id: int
    replica: str
    prefix_tokens: int
    """Prompt and the tokens of earlier attempts."""
    max_tokens: int
    """Remaining budget."""


class AttemptEnded(Base, frozen=True, kw_only=True):
    """Its tokens came back."""

    attempt_id: str
    trajectory_id: int
    replica: str
    reason: str
    """An `EndReason`."""
    tokens: int
    spans: list[VersionSpan]
    detail: str = ""
    drafted_at: list[int] = msgspec.field(default_factory=list)
    """Tokens drafted for it at each position, as far as any were; so are those accepted."""
    accepted_at: list[int] = msgspec.field(default_factory=list)


Segment = tuple[int, str, int, int]
"""(weight version, replica, start, end) of the output tokens."""


class TrajectoryEnded(Base, frozen=True, kw_only=True):
    """A trajectory has its disposition; follows the change of phase to ENDED."""

    trajectory_id: int
    group_id: int
    slot: int
    disposition: str
    """A `Disposition`."""
    correctness: str
    """A `CorrectnessClass`, in small letters."""
    weight: float
    generated_tokens: int
    segments: list[Segment]
    moves: int
    deferred: int


class Progress(Base, frozen=True, kw_only=True):
    """Tokens so far of what is running."""

    trajectory_ids: list[int]
    generated_tokens: list[int]


class Rewarded(Base, frozen=True, kw_only=True):
    """The trainer's verdict on an answer."""

    trajectory_id: int
    reward: float


class QualityMeasured(Base, frozen=True, kw_only=True):
    """How good the LLM is, as the trainer measured it."""

    weight_version: int
    """That was measured."""
    quality: float
    evaluated: int
    """Independent samples it is the mean of; 0: not known."""
    metric: str
    """What it is, e.g. "pass@1 on 500 held-out prompts"."""
    seconds: float = 0.0
    """That measuring took, until `t_s`."""


class DriftNoticed(Base, frozen=True, kw_only=True):
    """What was learned from one source is in doubt."""

    source: str
    keep: float
    """Share of the evidence that was kept."""


class EstimatorHealth(Base, frozen=True, kw_only=True):
    """How good an estimator's past answers were, as a step began."""

    estimator: str
    step: int
    metrics: dict[str, float | None]
    """None: nothing to measure yet."""


class ReplicaReport(Base, frozen=True, kw_only=True):
    """What a replica last said of itself."""

    replica: str
    alive: bool
    stats: ReplicaStats
    """`reported_s` is on the recorder's own clock; 0 stands for never."""

    def __post_init__(self) -> None:
        if self.stats.reported_s == float("-inf"):  # JSON has no infinity
            never = msgspec.structs.replace(self.stats, reported_s=0.0)
            msgspec.structs.force_setattr(self, "stats", never)


# Decisions


class DecisionTaken(Base, frozen=True, kw_only=True):
    """Written before it is carried out."""

    tick: int
    decision: Decision
    enforced: bool
    """False: only recorded, somebody else acts."""
    mode: str
    """The controller's state at that moment."""


class DecisionDropped(Base, frozen=True, kw_only=True):
    """The guard did not let it pass."""

    tick: int
    decision: Decision
    """A figure that is not finite, for which it was dropped, reads 0."""
    why: str

    def __post_init__(self) -> None:
        d = self.decision
        figures = {"propensity": d.propensity, "gain_s": d.gain_s, "cost_s": d.cost_s}
        wrong = {name: 0.0 for name, value in figures.items() if not isfinite(value)}
        if wrong:  # JSON knows neither NaN nor infinity, and one such line makes a trace unreadable
            plain = msgspec.structs.replace(d, **wrong)
            msgspec.structs.force_setattr(self, "decision", plain)


class DraftTaken(Base, frozen=True, kw_only=True):
    """What a replica shall draft from now on; written before it is told."""

    tick: int
    decision: DraftDecision
    enforced: bool
    """False: only recorded."""


class AlternativesWeighed(Base, frozen=True, kw_only=True):
    """What the placement policy compared before it decided; written before its decisions."""

    tick: int
    seconds: dict[str, float | None]
    """By name: predicted seconds to the end of the step.  None: no end in sight."""


class StackChosen(Base, frozen=True, kw_only=True):
    """What may act in a step; written before the first decisions in it."""

    step: int
    choice: StackChoice


class Outcome(Base, frozen=True, kw_only=True):
    """What became of an enforced decision."""

    tick: int
    trajectory_id: int
    action: str
    """An `Action`."""
    outcome: str
    """An `OutcomeKind`: applied, superseded or infeasible."""
    detail: str = ""
    measured_s: float | None = None
    """What carrying it out took, where that was measured."""


Record = (
    RunStarted
    | RunEnded
    | ControllerState
    | WeightsPushed
    | StepStarted
    | StepEnded
    | GroupAdmitted
    | GroupExtended
    | GroupSelected
    | PromptsChosen
    | GroupEnded
    | TrajectoryQueued
    | PhaseChanged
    | AttemptStarted
    | AttemptEnded
    | TrajectoryEnded
    | Progress
    | Rewarded
    | QualityMeasured
    | DriftNoticed
    | EstimatorHealth
    | ReplicaReport
    | DecisionTaken
    | DecisionDropped
    | DraftTaken
    | AlternativesWeighed
    | StackChosen
    | Outcome
    | ObservationRecorded
)
