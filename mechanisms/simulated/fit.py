"""A hardware profile out of measured iterations.

Decode.  seconds = D(b) + token * kv, least squares of the *relative* error (each row divided by its
seconds: a 5 ms iteration counts as much as a 100 ms one), all coefficients at least 0.  First D is
the line fixed + sequence * b.  If a tenth of the rows is off by more than `LINE_P90` and it halves
that error, D becomes a table: piecewise linear between the batches measured, each piece's slope a
coefficient of its own, so that D never falls.  (It does not where the error is noise.)

Prefill.  seconds = D(1) + step + token * p for an iteration of p prompt tokens and next to nothing
else, fitted the same way with D(1) given.  Attention within a prompt is quadratic: prompts of more
than `CHUNK` tokens, which engines split, are left out.

Rows with more context than the replica's KV cache holds are left out: tables composed of kernels
have them, engines never run them.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators._nonnegative import nonnegative_solve
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

LINE_P90 = 0.10
"""Relative error at the 90th percentile above which the line is given up.  Of 70 tables the dense
models' have 2 to 9 % (18 to 19 % for four that span 8 GPUs), mixtures of experts 24 to 54 %."""
TABLE_GAIN = 0.5
"""Share of the line's error that a table may leave.  For mixtures of experts it leaves 3 to 9 %,
for 8 GPUs 8 to 36 %; of noise (30 % on 21 rows) 73 % or more."""
LEAST_ROWS = 3
"""As many as a line in batch and context has coefficients."""
CHUNK = 8192
"""Prompt tokens of one iteration: vLLM's default limit on large GPUs is this or twice this."""
LEAST_PROMPTS = 2
RIDGE = 1e-9
"""Of a unit coefficient's information: columns that the data cannot tell apart stay solvable."""


@dataclass(frozen=True)
class DecodeRows:
    """(n,) measured iterations without prefill."""

    batch: Floats
    kv_tokens: Floats
    """Context of all sequences together."""
    seconds: Floats

    def within(self, kv_capacity_tokens: int) -> "DecodeRows":
        """Those that fit the KV cache; all for a capacity of 0 (unlimited)."""
        kept = self.kv_tokens <= (kv_capacity_tokens or np.inf)
        return DecodeRows(self.batch[kept], self.kv_tokens[kept], self.seconds[kept])


@dataclass(frozen=True)
class PrefillRows:
    """(n,) measured iterations that computed one prompt and nothing else."""

    prompt_tokens: Floats
    seconds: Floats


@dataclass(frozen=True)
class DecodeFit:
    """D(b) + token * kv, and how far off it is."""

    fixed_s: float
    sequence_s: float
    token_s: float
    points: tuple[int, ...]
    point_s: tuple[float, ...]
    errors: Floats
    """(n,) |fitted - measured| / measured, of the table if there is one."""

    @property
    def alone_s(self) -> float:
        """D(1)."""
        return self.point_s[0] if self.points else self.fixed_s + self.sequence_s


@dataclass(frozen=True)
class PrefillFit:
    """What p prompt tokens add to an iteration, step + token * p, and how far off that is."""

    step_s: float
    token_s: float
    prompt_tokens: Floats
    """(n,) of the rows used."""
    errors: Floats
    """(n,) |fitted - measured| / measured, of the whole iteration."""


def fit_decode(rows: DecodeRows) -> DecodeFit:
    """The line, or the table where the line does not do."""
    if len(rows.batch) < LEAST_ROWS:
        raise InvalidInputError(
            f"{len(rows.batch)} decode rows fit the KV cache; {LEAST_ROWS} are the least"
        )
    b, kv, s = rows.batch, rows.kv_tokens, rows.seconds
    columns = np.stack((np.ones_like(b), b, kv), axis=1)
    line, errors = relative_least_squares(columns, s)
    fixed, sequence, token = (float(value) for value in line)
    points = np.unique(b)
    line_p90 = np.quantile(errors, 0.9)
    if line_p90 <= LINE_P90 or len(points) < 3:
        return DecodeFit(fixed, sequence, token, (), (), errors)
    columns = np.concatenate((_rise(points, b), kv[:, None]), axis=1)
    solved, table_errors = relative_least_squares(columns, s)
    if np.quantile(table_errors, 0.9) > TABLE_GAIN * line_p90:
        return DecodeFit(fixed, sequence, token, (), (), errors)
    values = (_rise(points, points) @ solved[:-1]).tolist()
    whole = tuple(int(point) for point in points)
    return DecodeFit(fixed, sequence, float(solved[-1]), whole, tuple(values), table_errors)


def fit_prefill(rows: PrefillRows, alone_s: float) -> PrefillFit:
    """Beyond the `alone_s` seconds of an iteration of one sequence without context."""
    kept = rows.prompt_tokens <= CHUNK
    tokens, seconds = rows.prompt_tokens[kept], rows.seconds[kept]
    if len(tokens) < LEAST_PROMPTS:
        raise InvalidInputError(
            f"{len(tokens)} prefill rows of at most {CHUNK} tokens; {LEAST_PROMPTS} are the least"
        )
    columns = np.stack((np.ones_like(tokens), tokens), axis=1)
    solved, errors = relative_least_squares(columns, seconds, alone_s)
    return PrefillFit(float(solved[0]), float(solved[1]), tokens, errors)


def relative_least_squares(
    columns: Floats, seconds: Floats, given_s: float | Floats = 0.0
) -> tuple[Floats, Floats]:
    """seconds = given_s + columns @ x: the (f,) x >= 0, and the (n,) relative errors they leave."""
    relative = columns / seconds[:, None]
    scale = np.sqrt((relative**2).mean(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    unit, target = relative / scale, 1.0 - given_s / seconds
    gram = unit.T @ unit / len(seconds) + RIDGE * np.eye(columns.shape[1])
    solved = nonnegative_solve(gram[None], (target @ unit / len(seconds))[None])[0] / scale
    return solved, np.abs(relative @ solved - target)


def _rise(points: Floats, at: Floats) -> Floats:
    """(n, k): 1, and how far `at` has gone through each of the k - 1 pieces between points."""
    starts, widths = points[:-1], np.diff(points)
    gone = np.clip(at[:, None] - starts, 0.0, widths)
    return np.concatenate((np.ones((len(at), 1)), gone), axis=1)
