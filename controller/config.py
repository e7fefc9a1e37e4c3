"""The configuration: what it holds.  `load_config` (below) says where it comes from.

Three layers, each over the one before: a TOML or YAML file, the environment
(`STEERSMAN_TICK_S=0.1`; a double underscore descends: `STEERSMAN_PLACEMENT__NAME=round_robin`), and
overrides (`guard.max_deferrals=1`).  A layer that names another part drops the options which a
lower layer gave to the former one.  Every error is one line that says where the value came from.
"""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from steersman.controller import plugins
from steersman.controller._layers import Assignment, Given, assignments, merge, nested
from steersman.controller._section import Section, check_number
from steersman.controller.gateway.settings import GatewayConfig
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Normaliser

Count = Annotated[int, msgspec.Meta(ge=0)]


class PartConfig(Section, frozen=True):
    """Which part does a job, and its options."""

    name: str
    """Name of the part's file, or a dotted path outside this project ("pkg.module:Class")."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """The part's dataclass fields; whatever is not given keeps the part's own default."""


class GuardConfig(Section, frozen=True):
    """Bounds on what a policy may do, whatever it is."""

    max_moves_per_tick: Count = 16
    """Running trajectories that may be aborted in one tick; 0: none, only placing is left."""
    move_cooldown_s: float = 2.0
    """Seconds before a trajectory may be moved again; 0: at once."""
    max_moves_per_trajectory: Count = 4
    """Moves in a trajectory's whole life; 0: it stays where it was placed."""
    max_deferrals: Count = 2
    """Times a trajectory may be parked for a later step; 0: never."""
    max_restarts: Count = 1
    """Times one slot of a group may be restarted; 0: never.  Every restart throws work away."""
    metrics_max_age_s: float = 5.0
    """Replica figures older than this many seconds are not trusted."""

    def __post_init__(self) -> None:
        check_number("move_cooldown_s", self.move_cooldown_s, least=0.0)
        check_number("metrics_max_age_s", self.metrics_max_age_s, above=0.0)


class TraceConfig(Section, frozen=True):
    """What is recorded."""

    path: str | None = None
    """File of the trace (JSON lines); none: it is kept in memory only."""
    progress_every_s: float = 1.0
    """Seconds between reports of replicas and of tokens so far; 0: at every tick."""
    observations: bool = False
    """Whether every observation is recorded whole.  A replay needs it; 0.1 kB per trajectory and
    tick."""
    token_ids: bool = False
    """Whether prompts' token ids are recorded.  Off: the trace holds no content."""

    def __post_init__(self) -> None:
        check_number("progress_every_s", self.progress_every_s, least=0.0)


class HorizonConfig(Section, frozen=True):
    """How often plans are compared in the simulator, for placement policies that want it."""

    every_s: float = 5.0
    """Seconds from one look ahead to the next, while something waits; 0: none."""
    delay_s: float = 1.0
    """Seconds from the observation that a look ahead rests on to the first that holds its answer;
    it must be computed by then, or comes later still."""
    scenarios: int = 8
    """Futures drawn; even.  Fewer where many thousands are in flight."""

    def __post_init__(self) -> None:
        check_number("every_s", self.every_s, least=0.0)
        check_number("delay_s", self.delay_s, least=0.0)
        if self.scenarios < 4 or self.scenarios % 2:
            raise InvalidInputError(f"scenarios is {self.scenarios}; valid: even, 4 or more")


class Config(Section, frozen=True):
    """Everything that can be set."""

    mode: Literal["off", "shadow", "enforce"] = "enforce"
    """off: the fallback acts alone; shadow: decisions are recorded, the fallback acts; enforce."""
    tick_s: float = 0.25
    """Seconds between decisions when nothing happens; an end or an arrival wakes it at once."""
    seed: int = 0
    """Of the policy's random draws; same seed and observations, same decisions."""
    decide_timeout_s: float = 0.75
    """Seconds a decision may take before the fallback acts instead."""
    max_lag: Count = 1
    """Largest difference between the trainer's weight version and a trajectory's oldest one;
    0: nothing is carried over a weight push."""
    normaliser: Normaliser = Normaliser.STD
    """std or none: what the trainer divides advantages by.  It decides what a group is worth."""
    placement: PartConfig = PartConfig("adaptive")
    """The policy that decides where and when trajectories run."""
    fallback: PartConfig = PartConfig("sticky_least_inflight")
    """The policy that acts when the controller cannot: the trainer's default rule."""
    stopping: PartConfig = PartConfig("never")
    """The policy that decides which running trajectories are not worth finishing."""
    speculation: PartConfig = PartConfig("unchanged")
    """The policy that decides how many tokens replicas draft, where engines can be told: so far in
    replays only."""
    prompts: PartConfig = PartConfig("uniform")
    """The policy that chooses prompts, where a session is given a pool (`set_pool`)."""
    length: PartConfig = PartConfig("length")
    """The estimator of remaining tokens."""
    throughput: PartConfig = PartConfig("throughput")
    """The estimator of the replicas' speed."""
    success: PartConfig = PartConfig("success")
    """The estimator of pass probabilities."""
    acceptance: PartConfig = PartConfig("acceptance")
    """The estimator of how many drafted tokens are accepted."""
    drift: PartConfig = PartConfig("drift")
    """The estimator that tells when what was learned no longer holds."""
    guard: GuardConfig = GuardConfig()
    horizon: HorizonConfig = HorizonConfig()
    trace: TraceConfig = TraceConfig()
    gateway: GatewayConfig = GatewayConfig()
    """What `steersman serve` adds."""
    kill_switch_file: str = ""
    """The controller switches itself off for good once this file exists; empty: no such file."""

    def __post_init__(self) -> None:
        check_number("tick_s", self.tick_s, above=0.0)
        check_number("decide_timeout_s", self.decide_timeout_s, above=0.0)
        if self.seed < 0:
            raise InvalidInputError(f"seed is {self.seed}; valid: 0 or more")


KINDS = {
    "placement": "policies.placement",
    "fallback": "policies.placement",
    "stopping": "policies.stopping",
    "speculation": "policies.speculation",
    "prompts": "policies.prompts",
    "length": "estimators.length",
    "throughput": "estimators.throughput",
    "success": "estimators.success",
    "acceptance": "estimators.acceptance",
    "drift": "estimators.drift",
}
"""Where the part of each section is looked for."""


def load_config(
    path: Path | Given | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The configuration from a file, the environment and overrides.

    Raises
    ------
    UnknownNameError
        For a key or a part that does not exist; it names the nearest one.
    InvalidInputError
        For a value of the wrong type or beyond its range, or a file that cannot be read.
    """
    values: dict[str, Any] = {part: {"name": getattr(Config(), part).name} for part in KINDS}
    for layer in assignments(path, overrides, environ):
        checked = [(assignment.keys, _checked(assignment)) for assignment in layer]
        merge(values, nested(checked), parts=KINDS)
    implied = _implied(values["placement"]["name"])
    merge(implied, values, parts=KINDS)
    return msgspec.convert(implied, Config)


def _implied(placement: str) -> dict[str, Any]:
    """What a placement policy needs of the bounds, where nobody says anything else."""
    bounds = dict(getattr(plugins.load(KINDS["placement"], placement), "GUARD", {}))
    lag = {"max_lag": bounds.pop("max_lag")} if "max_lag" in bounds else {}
    return {**lag, "guard": bounds}


def _checked(assignment: Assignment) -> Any:
    """The value of an assignment, if `Config` accepts it."""
    struct: type[Section] = Config
    for depth, key in enumerate(assignment.keys):
        known = {field.name: field.type for field in msgspec.structs.fields(struct)}
        if key not in known:
            raise _unknown(assignment, depth, known)
        inner = known[key]
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return _accepted(assignment, struct, depth)
        struct = inner
    raise InvalidInputError(
        f"{assignment.source}: {assignment.dotted} is a section with the keys "
        f"{', '.join(struct.__struct_fields__)}; it cannot be a single value"
    )


def _accepted(assignment: Assignment, struct: type[Section], depth: int) -> Any:
    """Try the value in a section that is otherwise at its defaults."""
    inside = assignment.keys[depth + 1 :]
    section: dict[str, Any] = {"name": "x"} if struct is PartConfig else {}
    first_error: Exception | None = None
    for value in assignment.readings:
        section = {
            **section,
            assignment.keys[depth]: nested([(inside, value)]) if inside else value,
        }
        try:
            msgspec.convert(section, struct)
        except msgspec.ValidationError as error:
            first_error = first_error or error
            continue
        _check_part(assignment, value)
        return value
    raise InvalidInputError(_explained(assignment, struct, depth, str(first_error)))


def _explained(assignment: Assignment, struct: type[Section], depth: int, reason: str) -> str:
    key = assignment.keys[depth]
    reason = reason.split(" - at `$")[0].replace("`", "")
    if reason.startswith(f"{key} is "):
        return f"{assignment.source}: {reason.replace(key, assignment.dotted, 1)}"
    wanted = {field.name: field.type for field in msgspec.structs.fields(struct)}[key]
    is_enum = isinstance(wanted, type) and issubclass(wanted, StrEnum)
    words = list(wanted) if is_enum else get_args(wanted)
    if reason.startswith("Invalid enum value"):
        reason = f"unknown value {assignment.readings[-1]!r}; valid: {', '.join(words)}"
    return f"{assignment.source}: {assignment.dotted}: {reason}"


def _check_part(assignment: Assignment, value: Any) -> None:
    if assignment.keys[1:] == ("name",) and assignment.keys[0] in KINDS:
        plugins.check_name(KINDS[assignment.keys[0]], value)


def _unknown(assignment: Assignment, depth: int, known: Mapping[str, Any]) -> UnknownNameError:
    prefix = "".join(f"{key}." for key in assignment.keys[:depth])
    return UnknownNameError(
        f"key in {assignment.source}:",
        prefix + assignment.keys[depth],
        [prefix + name for name in known],
    )
