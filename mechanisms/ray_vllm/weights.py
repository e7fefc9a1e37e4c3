"""Weights and model folders on their way to a replica, and the check that they arrived.

After a push every replica scores the trainer's probe sequences.  Same weights must give the same
log-probabilities up to rounding; a tensor that was left out (a tied or stale output head is the
classic) does not.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.errors import WeightMismatchError
from steersman.mechanisms.fleet import LogprobProbe, NamedTensors

TOLERANCE = {"float32": (1e-2, 1e-4), "bfloat16": (3.0, 0.2), "float16": (3.0, 0.2)}
"""Largest and mean absolute difference of log-probabilities that rounding explains.

Measured, engine against transformers, on the tests' random model (mean log-probability -7, far
more extreme than a trained model's): 6e-5 and 4e-6 in float32 over 1,500 tokens, 1.4 and 0.13 in
bfloat16 over 600.  So in 16 bits only a gross error is caught.  The largest difference grows with
training, at tokens that have become very unlikely: 8e-4 within 30 steps of the demo, while the mean
kept its bound at each push.  A stale output head moved the mean by 0.006 at the first push.
"""
MAX_SHIPPED_BYTES = 2 << 30
"""Largest model folder sent through Ray's object store; larger ones belong on shared storage."""

Packed = NDArray[np.uint8]
"""Named tensors as the bytes of a safetensors file."""


def pack(tensors: NamedTensors) -> Packed:
    """The tensors as one array, which Ray's object store passes on without copies."""
    from safetensors.torch import save

    seen: set[int] = set()
    contiguous = {}
    for name, tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        # Tied tensors share memory, which the file format refuses.
        contiguous[name] = whole.clone() if whole.data_ptr() in seen else whole
        seen.add(whole.data_ptr())
    return np.frombuffer(save(contiguous), dtype=np.uint8)


def read_folder(model: str) -> dict[str, bytes] | None:
    """The files of a small model folder; None if it is not a folder here, or too large."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if sum(path.stat().st_size for path in files) > MAX_SHIPPED_BYTES:
        return None
    return {path.name: path.read_bytes() for path in files}


def write_folder(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a model folder that was read elsewhere."""
    for name, content in files.items():
        (folder / name).write_bytes(content)


def check_probes(
    replica: str,
    dtype: str,
    weight_version: int,
    probes: Iterable[LogprobProbe],
    scores: Iterable[list[float]],
) -> float:
    """The largest difference; raises `WeightMismatchError` if rounding does not explain it."""
    found = 0.0
    largest, mean = TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
    for number, (probe, score) in enumerate(zip(probes, scores, strict=True)):
        difference = np.abs(np.subtract(score, probe.logprobs))
        # Written so that a NaN fails too.
        if not (difference.max() <= largest and difference.mean() <= mean):
            raise WeightMismatchError(
                f"replica {replica!r} disagrees with the trainer after the push of weight version "
                f"{weight_version}: log-probabilities of probe {number} differ by up to "
                f"{difference.max():.3g} (mean {difference.mean():.3g}); {dtype} explains "
                f"{largest:g} (mean {mean:g})"
            )
        found = max(found, float(difference.max()))
    return found
