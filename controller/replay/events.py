"""What a scenario adds to a replay besides its fleet: events, and how weights are replaced."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from steersman.estimators.errors import InvalidInputError


class Kind(StrEnum):
    """What can befall a fleet."""

    KILL = "kill"
    """A replica dies; what was there waits for another."""
    JOIN = "join"
    """A replica joins."""
    SPEED = "speed"
    """A replica becomes faster or slower."""
    ACCEPTANCE = "acceptance"
    """Drafted tokens are accepted more or less often, at every replica."""


class Update(StrEnum):
    """What becomes of what runs when a stream's weights are replaced."""

    KEEP = "keep"
    """It goes on under the new weights, its KV cache computed again."""
    DRAIN = "drain"
    """It ends first; nothing is placed until then, nor admitted."""
    ABORT = "abort"
    """It is aborted with what it wrote, and waits to be placed again."""


@dataclass(frozen=True)
class FleetEvent:
    """One event."""

    kind: Kind
    at_s: float
    """Seconds since the step began, or the run."""
    step: int | None = None
    """None: since the run began."""
    replica: int = -1
    speed: float = 1.0
    """Of `SPEED`."""
    acceptance: tuple[float, ...] = ()
    """Of `ACCEPTANCE`: as in `FleetPlan`, for as many positions."""


@dataclass(frozen=True)
class WeightUpdates:
    """How a stream's weights are replaced."""

    update: Update = Update.KEEP
    seconds: float = 0.0
    """Every replica holds still for so long."""
    at_s: tuple[float, ...] = ()
    """Seconds since the run began; empty: after every batch."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise InvalidInputError(f"weights.seconds is {self.seconds}; valid: 0 or more")
        if list(self.at_s) != sorted(self.at_s) or not all(0 < t < math.inf for t in self.at_s):
            raise InvalidInputError("weights.at_s is not an increasing list of seconds above 0")


@dataclass(frozen=True)
class Happenings:
    """Events and weight updates; by default nothing befalls the fleet."""

    events: tuple[FleetEvent, ...] = ()
    weights: WeightUpdates = field(default_factory=WeightUpdates)
