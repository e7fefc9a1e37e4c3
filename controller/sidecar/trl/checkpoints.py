"""A worker's state in a trainer's checkpoints: one file beside the trainer's own.

    trainer.add_callback(checkpoint_callback(worker))           # writes it with each checkpoint
    load_worker(worker, "output/checkpoint-200")                # before trainer.train(resume ...)

TRL keeps the place in its data set for its own worker only.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steersman.controller.sidecar.trl.worker import SteersmanRolloutWorker
from steersman.estimators.errors import InvalidInputError

NAME = "steersman_worker.msgpack"
ARRAY = "__array__"


def save_worker(worker: SteersmanRolloutWorker, folder: Path | str) -> Path:
    """Write the state; the file is whole or not there."""
    path = Path(folder) / NAME
    scratch = path.with_suffix(".tmp")
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_bytes(msgspec.msgpack.encode(worker.state_dict(), enc_hook=_plain))
    scratch.replace(path)
    return path


def load_worker(worker: SteersmanRolloutWorker, folder: Path | str) -> None:
    """Go on from a checkpoint."""
    path = Path(folder) / NAME
    try:
        state = msgspec.msgpack.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInputError(f"{path}: no state of a rollout worker: {error}") from error
    worker.load_state_dict(_restored(state))


def checkpoint_callback(worker: SteersmanRolloutWorker) -> Any:
    """For `Trainer.add_callback`."""
    from transformers import TrainerCallback

    class SaveWorker(TrainerCallback):
        """Beside each checkpoint."""

        def on_save(self, args: Any, state: Any, control: Any, **told: Any) -> None:
            """The trainer has written one."""
            if state.is_world_process_zero:
                save_worker(worker, Path(args.output_dir) / f"checkpoint-{state.global_step}")

    return SaveWorker()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {ARRAY: [str(value.dtype), list(value.shape), value.tobytes()]}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a state holds a {type(value).__name__}")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {ARRAY}:
            dtype, shape, raw = value[ARRAY]
            return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape).copy()
        return {key: _restored(each) for key, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value
