"""Quality logs: how good the trained LLM was, and what it had cost until then, evaluation by
evaluation, of many runs in one file.

JSON lines.  The first is a header, `{"kind": "header", ...}`, that says what was measured and
where: `metric`, the items of the reporting checklist (`controller/checklist.py`), and `arms`: by
arm a mapping that may hold `max_lag`.  Each other line is one `QualityPoint`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from steersman.estimators.errors import InvalidInputError

HEADER, POINT = "header", "point"


@dataclass(frozen=True)
class QualityPoint:
    """One evaluation.  Costs are sums since the run began; NaN: not known."""

    arm: str
    """What was done to the run: the name by which arms are compared."""
    seed: int
    """Arms are paired by it."""
    step: int
    """Training steps done."""
    tokens: int
    """Tokens that rollouts wrote, thrown away ones included; -1: not known."""
    replica_s: float
    """Seconds of rollout x replicas."""
    wall_s: float
    quality: float
    """A share of `evaluated` that passed, in [0, 1], where that is known."""
    evaluated: int
    """Independent samples it is the mean of; 0: not known."""
    extras: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"arm {self.arm!r}, seed {self.seed}, step {self.step}"
        if not math.isfinite(self.quality):
            raise InvalidInputError(f"{where}: quality is {self.quality}; valid: a finite number")
        if self.evaluated < 0:
            raise InvalidInputError(f"{where}: evaluated is {self.evaluated}; valid: 0 or more")
        if self.evaluated and not 0 <= self.quality <= 1:
            raise InvalidInputError(
                f"{where}: quality is {self.quality}; valid: a share of the {self.evaluated} "
                "evaluated, 0 to 1 (evaluated = 0 where it is no share)"
            )


class QualityLog:
    """Appends to a quality log.  Use as a context manager, or `close` it.

    A log that is there already is continued, where its header is the same: a study that was killed
    goes on in the file it began.
    """

    def __init__(self, path: Path | str, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        first = {"kind": HEADER, **header}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = _whole_lines(self.path)
            self._file = self.path.open("r+b" if whole else "wb")
        except OSError as error:
            raise InvalidInputError(f"cannot write {path}: {error.strerror}") from error
        if not whole:
            self._write(first)
        elif json.loads(whole.split(b"\n", 1)[0]) != json.loads(json.dumps(first)):
            self._file.close()
            raise InvalidInputError(f"{path} exists and its header is another; give another name")
        self._file.seek(len(whole)) if whole else None
        self._file.truncate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, point: QualityPoint) -> None:
        """Add one evaluation; it is on disk when this returns."""
        plain = asdict(point)
        for name in ("replica_s", "wall_s"):
            plain[name] = plain[name] if math.isfinite(plain[name]) else None  # JSON has no NaN
        self._write({"kind": POINT, **plain})

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()


def _whole_lines(path: Path) -> bytes:
    """What is there, without a last line that a crash cut off."""
    if not path.exists():
        return b""
    there = path.read_bytes()
    return there[: there.rfind(b"\n") + 1]
