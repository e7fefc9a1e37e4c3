"""What an import has to tell besides its rows: files, assumptions, bad records, progress."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from steersman.estimators.errors import InvalidInputError

EXAMPLES = 5
"""Skipped records that are named one by one."""


class BadRecordError(InvalidInputError):
    """A record of a log cannot be understood; the message names its file and line."""


def _silent(amount: int) -> None:
    """Nobody watches."""


@dataclass
class ImportLog:
    """Filled by an importer while it runs."""

    skip_bad: bool = False
    """Count bad records and go on, instead of raising."""
    advance: Callable[[int], None] = _silent
    """Called with the bytes that were read since the last call."""
    files: int = 0
    """Opened so far."""
    skipped: int = 0
    skipped_examples: list[str] = field(default_factory=list)
    repeated: int = 0
    """Records that the log holds a second time."""
    recounted: bool = False
    """Lengths were counted again from text, so that they can be off by a little."""
    _assumed: dict[str, None] = field(default_factory=dict)

    @property
    def assumed(self) -> list[str]:
        """The sentences, in the order they came up."""
        return list(self._assumed)

    def assume(self, sentence: str) -> None:
        """Say once what is concluded and not read."""
        self._assumed.setdefault(sentence)

    def bad(self, path: Path, place: str, why: object) -> None:
        """A record cannot be used: raise, or count it.  `place`: "line 7", "row 7" ..."""
        message = f"{path}, {place}: {' '.join(str(why).split())}"
        if not self.skip_bad:
            raise BadRecordError(message)
        self.skipped += 1
        if len(self.skipped_examples) < EXAMPLES:
            self.skipped_examples.append(message)
