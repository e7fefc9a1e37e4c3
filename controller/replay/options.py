"""How a replay goes about it."""

from dataclasses import dataclass, field

from steersman.controller.replay.events import Happenings, WeightUpdates
from steersman.estimators.errors import InvalidInputError


@dataclass(frozen=True)
class Options:
    """How a replay goes about it."""

    reaction_s: float = 0.05
    """Seconds from an end to the decision it wakes: polling, coalescing, deciding."""
    latency_s: float = 0.06
    """Seconds from a step's beginning to its engines' first iteration, and from its last token to
    its being known, together: 0.06 measured on a local Ray fleet, half of it polling."""
    inflight_groups: int = 0
    """Groups open at once in a stream; 0: a barrier trainer's steps."""
    batch_groups: int = 0
    """Complete groups that make a batch of a stream."""
    between_steps_s: float = 0.0
    """Seconds between two barrier steps' rollouts; nothing runs then."""
    groups_wanted: int = 0
    """Complete groups that a barrier step needs, whose policy may ask for more (`Oversampling`);
    0: all groups of the log's own steps."""
    seed: int = 0
    """Of what fresh samples write."""
    scenario: Happenings = field(default_factory=Happenings)
    """What befalls the fleet, and how a stream's weights are replaced."""

    def __post_init__(self) -> None:
        if self.inflight_groups and self.batch_groups < 1:
            raise InvalidInputError("a stream needs batch_groups of 1 or more")
        if self.groups_wanted < 0:
            raise InvalidInputError(f"groups_wanted is {self.groups_wanted}; valid: 0 or more")
        if self.groups_wanted and self.inflight_groups:
            raise InvalidInputError(
                "groups_wanted is for steps that wait for it, inflight_groups for a stream; "
                "valid: one of them"
            )
        if self.scenario.weights != WeightUpdates() and not self.inflight_groups:
            raise InvalidInputError(
                "how weights are replaced is for a stream (inflight_groups): between two steps "
                "of a barrier trainer nothing runs"
            )
