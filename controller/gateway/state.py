"""The state of a gateway, as its viewers get it in JSON: what runs where, until when, and why.

Times are on the gateway's clock (`now_s` is the present), unless they say `_in_s`: seconds from
now.  None stands for what is not known.  `snapshot` fills it.
"""

import msgspec

from steersman.controller.watching.told import DecisionSum, Told

STATE_PATH = "/dashboard/state"
"""Where a gateway gives it."""


class ReplicaState(msgspec.Struct, frozen=True):
    """One engine."""

    name: str
    url: str
    pool: str
    alive: bool
    paused: bool
    running: int
    """Requests in its running batch, by its own last report; so is the next one."""
    waiting: int
    inflight: int
    """Trajectories of this gateway on it or on their way to it."""
    slots: int
    """Largest running batch."""
    kv_usage: float
    """Share of its KV cache in use, 0..1."""
    tokens_per_s: float | None
    generated_tokens: int
    """Since it started, by its own count."""
    preemptions: int
    weight_version: int
    report_age_s: float
    """Of its own figures; large: it does not answer."""
    ends_in_s: float | None
    """Until what runs there has ended, at the medians."""
    iteration_s: float | None
    """Seconds per token of each of its sequences at its present load, as predicted."""
    speed_known: bool
    """The prediction rests on measurements, not on the prior."""


class TrajectoryState(msgspec.Struct, frozen=True):
    """One sample that is not finished."""

    trajectory_id: int
    request_id: str
    """As its client knows it; empty: nobody asked over HTTP."""
    group_id: int
    prompt_id: str
    phase: str
    """queued, running or leaving."""
    replica: str
    """Where it is; empty: it waits."""
    target: str
    """Where it is on its way to; else empty."""
    prompt_tokens: int
    generated_tokens: int
    max_new_tokens: int
    remaining_tokens: float | None
    """Median; so is `ends_in_s`."""
    remaining_upper: float | None
    """0.9 quantile; so is `ends_in_upper_s`."""
    ends_in_s: float | None
    ends_in_upper_s: float | None
    since_s: float
    """When it began to run where it is, or to wait."""
    moves: int
    restarts: int
    weight_version: int
    """Of its oldest token; -1: it has none."""
    why: str
    """The last decision about it, if that is not long ago; else empty."""


class GroupView(msgspec.Struct, frozen=True):
    """The samples of one prompt, some of which are not finished."""

    group_id: int
    prompt_id: str
    step: int
    size: int
    ended: int
    ends_in_s: float | None
    """Its last sample, at the medians."""


class Decider(msgspec.Struct, frozen=True):
    """Who decides."""

    state: str
    """enforcing, shadow, fail_open or off."""
    why: str
    since_s: float
    policy: str
    """Name of the placement policy."""


class Straggler(msgspec.Struct, frozen=True):
    """The trajectory that is predicted to end last."""

    trajectory_id: int
    replica: str
    ends_in_s: float
    after_next_s: float
    """Later than the last but one."""
    after_middle_s: float
    """Later than the median of all."""
    sharing_s: float
    """Part of its time that it owes to the others on its replica."""
    sentence: str
    """All that, for a person."""


class Why(msgspec.Struct, frozen=True):
    """What holds the fleet, and what was decided about it."""

    straggler: Straggler | None
    decisions: list[Told]
    """The last ones, newest first; placements only where there is little else."""
    alternatives: dict[str, float | None]
    """What the policy compared last: predicted seconds to the end of the step."""
    stack: str
    """What may act in this step, and why; empty: nobody chose."""
    objections: dict[str, int]
    """Why the guard dropped decisions of the last seconds, and how many."""


class FleetFigures(msgspec.Struct, frozen=True):
    """Of the whole fleet."""

    bubble: float
    """Share of the living replicas on which nothing runs, while something runs elsewhere."""
    slots_taken: float
    """Share of the slots of the living replicas."""
    tail_s: float | None
    """From the moment when four fifths will have ended to the last predicted end."""
    ends_in_s: float | None
    """The last predicted end of all."""
    kv_mean: float
    kv_most: float
    tokens_per_s: float | None
    degenerate_share: float | None
    """Of the groups whose rewards are known: those with equal rewards, which teach nothing."""
    groups_rewarded: int


class Sums(msgspec.Struct, frozen=True):
    """Since the gateway started."""

    requests: int
    """Client requests taken in."""
    refused: int
    """Turned away (429 or 503)."""
    failed: int
    """Client requests answered with an error."""
    answered: int
    """Trajectories with an answer."""
    abandoned: int
    """Trajectories whose client went away."""
    moves: int
    deferrals: int
    restarts: int
    lost: int
    """Attempts that an engine's death or stall ended."""
    generated_tokens: int


class GatewayState(msgspec.Struct, frozen=True):
    """Everything a viewer shows."""

    now_s: float
    unix_s: float
    """The same moment on the wall clock, seconds since 1970."""
    paused: bool
    """By the trainer."""
    draining: bool
    decider: Decider
    step: int
    step_s: float
    """Seconds since it began."""
    weight_version: int
    objective: str
    """barrier or stream."""
    requests_open: int
    queue_limit: int
    phases: dict[str, int]
    """Unfinished trajectories by phase."""
    replicas: list[ReplicaState]
    trajectories: list[TrajectoryState]
    """Those that end last, the last one first; what waits comes after them."""
    trajectories_left_out: int
    groups: list[GroupView]
    """Those that end last, the last one first."""
    groups_left_out: int
    figures: FleetFigures
    sums: Sums
    why: Why
    decisions: list[DecisionSum]
    """Since the gateway started."""


def decode_state(data: bytes) -> GatewayState:
    """From JSON; raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(data, type=GatewayState)
