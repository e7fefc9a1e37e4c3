"""What an importer is, and the names it gives.

An importer is a frozen dataclass; its fields are the options a person may give.  Bad records go to
`ImportLog.bad`, conclusions to `ImportLog.assume`; what the log lacks stays None.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from steersman.controller.results import Prompt
from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow


class Importer(Protocol):
    """Reads one format."""

    def files(self, path: Path) -> list[Path]:
        """The files of the run at `path` (a file or a folder), in the order they are read.

        Raises `InvalidInputError` if there are none.
        """

    def rows(self, files: Sequence[Path], log: ImportLog) -> Iterator[RunRow]:
        """The trajectories, never all in memory."""


def name_of_text(text: str) -> str:
    """A prompt's name where the log holds only its text: the text's hash."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def name_of_tokens(token_ids: Sequence[int]) -> str:
    """A prompt's name where the log holds only its tokens."""
    return name_of_text(",".join(map(str, token_ids)))


def group_number(*names: object) -> int:
    """A group's number from what identifies it in the run."""
    return Prompt("\0".join(map(str, names)), ()).key


class Siblings:
    """Numbers the trajectories of each group in the order in which they come."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()

    def next(self, group: Hashable) -> int:
        """0 for the group's first."""
        self._seen[group] += 1
        return self._seen[group] - 1


class Neighbours:
    """Groups where none are named: records of one prompt that follow each other."""

    ASSUMED = "groups are runs of records with equal prompts"

    def __init__(self) -> None:
        self._last: Hashable = None
        self._group = -1
        self._sample = 0

    def next(self, prompt: Hashable) -> tuple[int, int]:
        """(group, sample) of the next record."""
        if prompt == self._last:
            self._sample += 1
        else:
            self._last, self._group, self._sample = prompt, self._group + 1, 0
        return self._group, self._sample
