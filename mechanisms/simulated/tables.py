"""Profiles out of CSV tables of measured (or composed) iterations.

Two kinds, told apart by their columns; times in milliseconds, lengths in tokens:

    gpu, model, tp, batch, context, step_ms          one decode iteration, `context` per sequence
    gpu, model, tp, prompt_tokens, prefill_ms        one prompt's prefill (batch, if given, is 1)

`rescaled` makes the profile of a GPU that no table has out of one of the same architecture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Floats
from steersman.mechanisms.simulated.fit import DecodeRows, PrefillRows, fit_decode, fit_prefill
from steersman.mechanisms.simulated.memory import kv_capacity_tokens
from steersman.mechanisms.simulated.profile import HardwareProfile

if TYPE_CHECKING:
    import polars as pl

KEY = ("gpu", "model", "tp")
DECODE, PREFILL = ("batch", "context", "step_ms"), ("prompt_tokens", "prefill_ms")
KERNELS = "NVIDIA aiconfigurator kernel tables for vLLM, bf16 (Apache-2.0)"


@dataclass(frozen=True)
class Overhead:
    """What kernels leave out."""

    iteration_s: float
    sequence_s: float
    source: str


TYPICAL_OVERHEAD = Overhead(
    iteration_s=0.1e-3,
    sequence_s=23e-6,
    source="assumed: fitted to 5 GRPO rollouts of 32 to 128 sequences on one H100 (TRL, vLLM 0.30)",
)
"""Per-sequence cost is sampling and output.  It also fits 20 rollouts of verl on H20 within 5 %
(median) unseen.  Engines without CUDA graphs (12 ms per iteration measured) or behind an HTTP
server (1.6 ms) have more."""


def profile_of_tables(
    paths: Sequence[Path],
    *,
    gpu: str | None = None,
    model: str | None = None,
    tensor_parallel: int | None = None,
    name: str | None = None,
    kv_capacity: int | None = None,
    overhead: Overhead = TYPICAL_OVERHEAD,
    source: str | None = None,
) -> HardwareProfile:
    """Fit one profile; a `gpu`, `model` or `tensor_parallel` not given must be the tables' only."""
    frames = [_read(path) for path in paths]
    wanted: dict[str, str | int | None] = {"gpu": gpu, "model": model, "tp": tensor_parallel}
    for column in KEY:
        wanted[column] = _choose(frames, column, wanted[column])
        frames = [frame.filter(frame[column] == wanted[column]) for frame in frames]
    gpu, model, tp = str(wanted["gpu"]), str(wanted["model"]), int(str(wanted["tp"]))
    capacity = kv_capacity if kv_capacity is not None else kv_capacity_tokens(gpu, model, tp)
    if capacity is None:
        raise InvalidInputError(
            f"no memory facts of {model} on {gpu}; "
            "give its KV cache with --kv-capacity (0: unlimited)"
        )
    if capacity < 0:
        raise InvalidInputError(f"{model} does not fit on {tp} x {gpu}")
    decode, prefill = _rows(frames, DECODE), _rows(frames, PREFILL)
    if not len(decode) or not len(prefill):
        kind, columns = ("decode", DECODE) if not len(decode) else ("prefill", PREFILL)
        raise InvalidInputError(f"no {kind} rows of {model} on {tp} x {gpu}; columns {columns}")
    rows = DecodeRows(decode[:, 0], decode[:, 0] * decode[:, 1], decode[:, 2] / 1e3)
    return fitted_profile(
        rows.within(capacity),
        PrefillRows(prefill[:, 0], prefill[:, 1] / 1e3),
        HardwareProfile(
            name=name or f"{model.rpartition('/')[2]}-{gpu.partition('_')[0]}-tp{tp}".lower(),
            gpu=gpu,
            model=model,
            tensor_parallel=tp,
            fixed_s=1.0,
            sequence_s=0.0,
            token_s=0.0,
            prefill_token_s=0.0,
            kv_capacity_tokens=capacity,
            overhead_s=overhead.iteration_s,
            overhead_sequence_s=overhead.sequence_s,
            overhead_source=overhead.source,
            source=source or ", ".join(path.name for path in paths),
        ),
    )


def fitted_profile(
    rows: DecodeRows, prefill: PrefillRows, labels: HardwareProfile
) -> HardwareProfile:
    """`labels` with its times, ranges and errors replaced by what the rows say."""
    decoded = fit_decode(rows)
    filled = fit_prefill(prefill, decoded.alone_s)
    context = rows.kv_tokens / rows.batch
    return replace(
        labels,
        fixed_s=decoded.fixed_s,
        sequence_s=decoded.sequence_s,
        token_s=decoded.token_s,
        batch_points=decoded.points,
        batch_point_s=decoded.point_s,
        prefill_step_s=filled.step_s,
        prefill_token_s=filled.token_s,
        batch_range=_range(rows.batch),
        context_range=_range(context),
        prompt_range=_range(filled.prompt_tokens),
        fit_error_median=float(np.median(decoded.errors)),
        fit_error_p90=float(np.quantile(decoded.errors, 0.9)),
        prefill_error_median=float(np.median(filled.errors)),
    )


def rescaled(
    profile: HardwareProfile, gpu: str, *, bandwidth: float, compute: float, name: str
) -> HardwareProfile:
    """For a GPU with `bandwidth` and `compute` times this one's memory bandwidth and peak FLOP/s.

    Reading weights and context goes with the bandwidth; what a sequence or a prompt token adds goes
    with compute, so that a small batch, which the memory bounds, comes out too slow.
    """
    capacity = kv_capacity_tokens(gpu, profile.model, profile.tensor_parallel)
    if capacity is None or profile.batch_points:
        raise InvalidInputError(f"cannot rescale {profile.name} to {gpu}")
    return replace(
        profile,
        name=name,
        gpu=gpu,
        fixed_s=profile.fixed_s / bandwidth,
        token_s=profile.token_s / bandwidth,
        sequence_s=profile.sequence_s / compute,
        prefill_step_s=profile.prefill_step_s / bandwidth,
        prefill_token_s=profile.prefill_token_s / compute,
        kv_capacity_tokens=capacity,
        fit_error_median=None,
        fit_error_p90=None,
        prefill_error_median=None,
        source=f"{profile.source}; rescaled from {profile.gpu} by memory bandwidth {bandwidth:.3g} "
        f"and compute {compute:.3g}",
    )


def _read(path: Path) -> "pl.DataFrame":
    import polars as pl

    try:
        frame = pl.read_csv(path)
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error
    except pl.exceptions.PolarsError as error:
        raise InvalidInputError(f"{path} is not a CSV table: {error}") from error
    kinds = [kind for kind in (DECODE, PREFILL) if set(kind) <= set(frame.columns)]
    if not kinds or not set(KEY) <= set(frame.columns):
        raise InvalidInputError(
            f"{path} has the columns {', '.join(frame.columns)}; valid: {', '.join(KEY)} with "
            f"{', '.join(DECODE)} or with {', '.join(PREFILL)}"
        )
    for column in kinds[0]:
        values = frame[column]
        if not values.dtype.is_numeric() or values.null_count() or not (values > 0).all():
            raise InvalidInputError(f"{path}: {column} is not a number above 0 in every row")
    return frame


def _choose(frames: "Sequence[pl.DataFrame]", column: str, given: str | int | None) -> str | int:
    """The value asked for, or the only one there is."""
    known = sorted({value for frame in frames for value in frame[column].unique().to_list()})
    if given is None and len(known) == 1:
        return known[0]  # type: ignore[no-any-return]
    if given is None:
        raise InvalidInputError(f"choose --{column}; the tables have {', '.join(map(str, known))}")
    if given not in known:
        raise UnknownNameError(column, str(given), map(str, known))
    return given


def _rows(frames: "Sequence[pl.DataFrame]", columns: tuple[str, ...]) -> Floats:
    """(n, columns) of the frames that have them all."""
    parts = [
        frame.select(columns).to_numpy().astype(np.float64)
        for frame in frames
        if set(columns) <= set(frame.columns)
    ]
    return np.concatenate([*parts, np.zeros((0, len(columns)))])


def _range(values: Floats) -> tuple[int, int]:
    return int(values.min()), int(values.max())
