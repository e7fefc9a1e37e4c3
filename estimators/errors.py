"""The errors a user can meet.  Each carries one line that says what was wrong and what is valid."""

from collections.abc import Iterable
from difflib import get_close_matches


class SteersmanError(Exception):
    """Base of every error this project raises on purpose; the command line exits with 2 on it."""


class InvalidInputError(SteersmanError, ValueError):
    """A value from outside is not acceptable; nothing was started or changed."""


class UnknownNameError(InvalidInputError):
    """A name that should select something does not."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = get_close_matches(name, self.known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        super().__init__(f"unknown {kind} {name!r}{hint} Valid: {', '.join(self.known)}")


class IllegalTransitionError(SteersmanError):
    """A trajectory was asked to change its phase in a way the lifecycle table does not allow."""


class FleetError(SteersmanError):
    """The fleet could not be started, reached or kept alive."""


class WeightMismatchError(SteersmanError):
    """After a weight push a replica's log-probabilities disagree with the trainer's."""
