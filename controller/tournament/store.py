"""The results of a tournament on disk, one line per game, so that a run can go on where it stopped.

The first line holds the settings; a folder with other settings is refused.  A last line that was
cut off is dropped: its game is played again.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from steersman.controller.tournament.cell import Cell, Game, Settings
from steersman.estimators.errors import InvalidInputError

FILE = "games.jsonl"


class Store:
    """Cells by game."""

    def __init__(self, folder: Path | None, settings: Settings) -> None:
        self._path = None if folder is None else folder / FILE
        self._cells: dict[Game, Cell] = {}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = self._read(settings)
            self._path.write_bytes(b"".join(line + b"\n" for line in kept))
        except OSError as error:
            raise InvalidInputError(f"cannot write {self._path}: {error.strerror}") from error

    def add(self, cell: Cell) -> None:
        """One more; it is on disk when this returns."""
        self._cells[cell.game] = cell
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(cell) + b"\n")

    def __contains__(self, game: Game) -> bool:
        return game in self._cells

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def __len__(self) -> int:
        return len(self._cells)

    def _read(self, settings: Settings) -> list[bytes]:
        """The lines that hold, the settings first."""
        assert self._path is not None
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        kept = [msgspec.json.encode(settings)]
        if lines and lines[0] and lines[0] != kept[0]:
            raise InvalidInputError(
                f"{self._path} holds a tournament with other settings ({lines[0].decode()}); "
                "name another folder, or remove it"
            )
        for line in lines[1:]:
            try:
                cell = msgspec.json.decode(line, type=Cell)
            except msgspec.DecodeError:
                continue
            self._cells[cell.game] = cell
            kept.append(line)
        return kept
