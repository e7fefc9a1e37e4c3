"""The life of a trajectory: its phases, the legal changes between them, and how it can end.

A trajectory is born QUEUED, runs on one replica at a time, may leave it with its partial tokens
(to another replica, or to be parked until a later step) and ends exactly once, with a disposition.
The table `TRANSITIONS` is the whole truth: whatever is not in it raises.
"""

from enum import IntEnum, StrEnum

from steersman.estimators.errors import IllegalTransitionError


class Phase(IntEnum):
    """Where a trajectory stands; small integers, because observations hold them as int8 arrays."""

    QUEUED = 0
    """Admitted and waiting for a placement; it may already carry tokens from earlier attempts."""
    RUNNING = 1
    """Submitted to one replica."""
    LEAVING = 2
    """Its abort was sent; the partial tokens are still on their way back."""
    PARKED = 3
    """Deferred: its partial tokens are kept here until a later step resumes it."""
    ENDED = 4
    """It has its disposition; nothing changes any more."""


class Disposition(StrEnum):
    """How a trajectory ended."""

    FINISHED = "finished"
    """The model ended it: end-of-sequence or a stop token."""
    TRUNCATED = "truncated"
    """It reached its token cap."""
    STOPPED = "stopped"
    """A stop decision ended it; the tokens so far are its result."""
    RESTARTED = "restarted"
    """A restart decision replaced it by a fresh sample of the same prompt."""
    EXPIRED = "expired"
    """Its oldest tokens are beyond the lag bound; a fresh sample replaced it."""
    ABANDONED = "abandoned"
    """The caller went away before it ended."""
    FAILED = "failed"
    """It could not be generated anywhere; the reason is in the trace."""

    @property
    def is_answer(self) -> bool:
        """Whether the trajectory is handed to the trainer as a sample of its group."""
        return self in ANSWERS


ANSWERS = frozenset(
    {Disposition.FINISHED, Disposition.TRUNCATED, Disposition.STOPPED, Disposition.FAILED}
)

REPLACED = frozenset({Disposition.RESTARTED, Disposition.EXPIRED})
"""Ends after which a fresh sample takes the trajectory's slot."""


class CorrectnessClass(IntEnum):
    """What an action does to the distribution of the samples; the worst one met holds."""

    EXACT = 0
    """Same distribution as the undisturbed engine."""
    MODIFIED = 1
    """Unbiased for a changed objective or prompt distribution; the weight is known."""
    CORRECTED = 2
    """Written by more than one weight version; needs the per-token behaviour log-probabilities."""
    EMPIRICAL = 3
    """Depends on length or content in a way no weight repairs; use knowingly."""


TRANSITIONS: dict[Phase, dict[Phase, str]] = {
    Phase.QUEUED: {
        Phase.RUNNING: "placed on a replica",
        Phase.PARKED: "deferred before it was placed",
        Phase.ENDED: "ended while waiting",
    },
    Phase.RUNNING: {
        Phase.LEAVING: "its abort was sent",
        Phase.QUEUED: "its replica was lost or refused it; it waits for another",
        Phase.ENDED: "the engine ended it",
    },
    Phase.LEAVING: {
        Phase.RUNNING: "continued on its target replica",
        Phase.QUEUED: "left; its target is gone, so it waits for another",
        Phase.PARKED: "left and was parked with its partial tokens",
        Phase.ENDED: "left and ended, or had ended before the abort arrived",
    },
    Phase.PARKED: {
        Phase.QUEUED: "resumed",
        Phase.ENDED: "ended while parked",
    },
    Phase.ENDED: {},
}
"""Legal changes of phase and, for each, what happened."""


def check_transition(trajectory_id: int, old: Phase, new: Phase) -> None:
    """Raise `IllegalTransitionError` unless `TRANSITIONS` allows `old` -> `new`."""
    if new not in TRANSITIONS[old]:
        legal = ", ".join(phase.name for phase in TRANSITIONS[old]) or "none, it has ended"
        raise IllegalTransitionError(
            f"trajectory {trajectory_id} cannot go from {old.name} to {new.name}; legal: {legal}"
        )
