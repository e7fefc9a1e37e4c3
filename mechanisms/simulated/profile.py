"""A hardware profile: how long one replica of a kind takes for an iteration, as a small file.

    tau(b, kv, p) = overhead + overhead_sequence * b          the host and the sampler
                    + D(b) + token * kv                       the model
                    + knee * max(kv / capacity - KNEE, 0)
                    + [p > 0] prefill_step + prefill_token * p

for b running sequences whose contexts hold kv tokens, and p prompt tokens computed.

D(b) = fixed + sequence * b fits dense models.  A mixture of experts reads more experts the more
sequences there are until it reads them all: its D is concave, and a line is off by 20 to 40 %.
Such a profile carries D as a table, linear between its points and beyond the last, which is what
the simulator runs; `fixed_s` and `sequence_s` then are the best line all the same, for planners
that use T = M * Lmax + c * sum(L).

A file is one JSON object with the fields of `HardwareProfile`.  Those shipped were fitted to tables
of measured kernels (`fit`), which know nothing of the host: their overhead comes from elsewhere,
and `overhead_source` says from where.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Self, overload

import msgspec
import numpy as np

from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.forecast import KNEE
from steersman.estimators.observation import Floats
from steersman.mechanisms.simulated.spec import ReplicaSpec

TIMES = (
    "fixed_s", "sequence_s", "token_s", "prefill_token_s", "overhead_s", "overhead_sequence_s",
    "prefill_step_s", "request_s", "knee_s",
)  # fmt: skip
"""Fields of a profile that are seconds."""
FOLDER = Path(__file__).parent / "profiles"
"""The files that are shipped."""


@dataclass(frozen=True)
class HardwareProfile:
    """One kind of replica: a model on so many GPUs of a type."""

    name: str
    gpu: str
    model: str
    tensor_parallel: int
    fixed_s: float
    """M: seconds of an iteration that do not depend on the batch, the overhead not counted."""
    sequence_s: float
    """Seconds that one more running sequence adds, its context not counted."""
    token_s: float
    """Seconds that each token of context adds."""
    prefill_token_s: float
    """Seconds that each prompt token computed adds."""
    kv_capacity_tokens: int
    """Tokens the KV cache holds; 0: unlimited."""
    max_num_seqs: int = 256
    """Sequences that run at once, at most."""
    overhead_s: float = 0.0
    """Seconds per iteration that no kernel table has: scheduler, launches, sampling, output."""
    overhead_sequence_s: float = 0.0
    """The same per running sequence."""
    overhead_source: str = ""
    prefill_step_s: float = 0.0
    """Seconds more of an iteration that computes any prompt tokens: a mixture of experts reads all
    its experts for them.  Measured with next to no batch; a large one has them read already."""
    request_s: float = 0.0
    """Seconds of the host's work for each request: taking it in, handing its answer out."""
    knee_s: float = 0.0
    """Seconds per unit of KV usage above the knee.  0 where preemption is simulated, not priced."""
    batch_points: tuple[int, ...] = ()
    """Batches at which D(b) is tabulated, increasing; empty: D is the line."""
    batch_point_s: tuple[float, ...] = ()
    """D there, never decreasing."""
    batch_range: tuple[int, int] = (0, 0)
    """Least and largest batch the fit saw; beyond it is extrapolated.  (0, 0): not fitted."""
    context_range: tuple[int, int] = (0, 0)
    """Least and largest context per sequence the fit saw."""
    prompt_range: tuple[int, int] = (0, 0)
    """Fewest and most prompt tokens per iteration the fit saw."""
    fit_error_median: float | None = None
    """Median of |fitted - measured| / measured over the decode rows; None: not fitted."""
    fit_error_p90: float | None = None
    prefill_error_median: float | None = None
    """The same over the prefill rows."""
    source: str = ""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise InvalidInputError(f"profile {self.name!r}: {problem}")

    @overload
    def batch_s(self, batch: float) -> float: ...
    @overload
    def batch_s(self, batch: Floats) -> Floats: ...
    def batch_s(self, batch: float | Floats) -> float | Floats:
        """Seconds of an iteration without any context: overhead and D, by sequences running.

        Any function of the batch does for a simulator: it is constant between two events.
        """
        b = np.asarray(batch, dtype=np.float64)
        if not self.batch_points:
            answer = self.fixed_s + self.sequence_s * b
        else:
            at, value = np.array(self.batch_points, dtype=np.float64), np.array(self.batch_point_s)
            slope = (value[-1] - value[-2]) / (at[-1] - at[-2])
            answer = np.interp(b, at, value) + slope * np.maximum(b - at[-1], 0.0)
        answer = answer + self.overhead_s + self.overhead_sequence_s * b
        return np.asarray(answer) if isinstance(batch, np.ndarray) else float(answer)

    @overload
    def iteration_s(self, batch: float, kv_tokens: float) -> float: ...
    @overload
    def iteration_s(self, batch: Floats, kv_tokens: Floats) -> Floats: ...
    def iteration_s(self, batch: float | Floats, kv_tokens: float | Floats) -> float | Floats:
        """Seconds of an iteration of `batch` sequences that hold `kv_tokens`, no prefill in it."""
        kv = np.asarray(kv_tokens, dtype=np.float64)
        usage = kv / self.kv_capacity_tokens if self.kv_capacity_tokens else np.zeros_like(kv)
        above = self.knee_s * np.maximum(usage - KNEE, 0.0)
        answer = self.batch_s(np.asarray(batch, dtype=np.float64)) + self.token_s * kv + above
        return np.asarray(answer) if isinstance(kv_tokens, np.ndarray) else float(answer)

    def replica_spec(self) -> ReplicaSpec:
        """As the simulator's core takes it.

        What verifying drafts does not make longer is, of a tabulated D, its value at batch 0: the
        line through batches 1 and 2.
        """
        batches = np.arange(1, self.max_num_seqs + 1, dtype=np.float64)
        table = tuple(self.batch_s(batches).tolist()) if self.batch_points else ()
        line = self.fixed_s + self.overhead_s, self.sequence_s + self.overhead_sequence_s
        at_none = max(2 * self.batch_s(1.0) - self.batch_s(2.0), 0.0), 0.0
        fixed_s, sequence_s = at_none if table else line
        return ReplicaSpec(
            fixed_s=fixed_s,
            sequence_s=sequence_s,
            token_s=self.token_s,
            knee_s=self.knee_s,
            prefill_token_s=self.prefill_token_s,
            prefill_step_s=self.prefill_step_s,
            request_s=self.request_s,
            max_num_seqs=self.max_num_seqs,
            kv_capacity_tokens=self.kv_capacity_tokens or math.inf,
            batch_s=table,
        )

    def slowed(self, factor: float) -> Self:
        """With every time multiplied."""
        if not 0 < factor < math.inf:
            raise InvalidInputError(f"profile {self.name!r} cannot be slowed {factor} times")
        times = {name: factor * getattr(self, name) for name in TIMES}
        points = tuple(factor * seconds for seconds in self.batch_point_s)
        return replace(self, batch_point_s=points, **times)

    def prefill_s(self, prompt_tokens: float) -> float:
        """Seconds that computing `prompt_tokens` (> 0) adds to one iteration."""
        return self.prefill_step_s + self.prefill_token_s * prompt_tokens


def profile_names() -> tuple[str, ...]:
    """The shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """A shipped profile by its name, or one from a file (anything that ends in .json)."""
    path = Path(name_or_path)
    if path.suffix != ".json":
        if str(name_or_path) not in profile_names():
            raise UnknownNameError("profile", str(name_or_path), profile_names())
        path = FOLDER / f"{name_or_path}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cannot read profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: a profile is one JSON object")
    known = [field.name for field in fields(HardwareProfile)]
    for key in content:
        if key not in known:
            raise UnknownNameError("profile key", key, known)
    try:
        return msgspec.convert(content, HardwareProfile)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{path}: {error}") from error


def save_profile(profile: HardwareProfile, path: Path) -> None:
    """Write the file that `load_profile` reads."""
    try:
        path.write_text(json.dumps(asdict(profile), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror}") from error


def _problem(p: HardwareProfile) -> str | None:
    """What cannot be right."""
    for name in (*TIMES, "kv_capacity_tokens"):
        value = getattr(p, name)
        if not 0 <= value < float("inf"):
            return f"{name} is {value}; valid: 0 or more"
    if p.tensor_parallel < 1 or p.max_num_seqs < 1:
        return "tensor_parallel and max_num_seqs are at least 1"
    if len(p.batch_points) != len(p.batch_point_s) or len(p.batch_points) == 1:
        return "batch_points and batch_point_s are equally long: none, or at least 2"
    if not _rises(p.batch_points, strictly=True) or not _rises(p.batch_point_s, strictly=False):
        return "batch_points increase, batch_point_s never decrease"
    if p.batch_s(1.0) <= 0:
        return "an iteration takes no time"
    return None


def _rises(values: Sequence[float], *, strictly: bool) -> bool:
    steps = np.diff(np.array(values, dtype=np.float64))
    return bool((steps > 0).all() if strictly else (steps >= 0).all())
