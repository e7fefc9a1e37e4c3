"""Weights to all engines through a file: for machines without NCCL, and for several engines.

    pause (requests stay, KV is dropped) -> file -> every engine reloads -> version -> resume

The file is safetensors in a folder that the engines can read, by default in memory (`/dev/shm`).
It is written beside its place and renamed, so that no engine reads half of it, and the one before
is removed then.  Engines need no extension: `reload_weights` is vLLM's own, reached through
`/collective_rpc` (`VLLM_SERVER_DEV_MODE=1`).  Behind a gateway one call reaches them all, and the
gateway learns the version.

What was pushed is checked: one result per worker, the version that each engine reports, and, where
the engines' own URLs are known, the log-probabilities that each gives to one short text: they must
be equal, and those of the trainer where it tells them (`reference`).  An engine that was away gets
no requests until a later push reaches it.

With CUDA and NCCL none of this is needed: the gateway numbers the ranks of several engines as if
they were one, and TRL's own transfer works through it.

The version is the trainer's: `AsyncGRPOTrainer` counts its pushes from 1, and so does this.
"""

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steersman.controller.sidecar.trl.client import Client, RefusedError, Reply, run
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.estimators.errors import FleetError, InvalidInputError, WeightMismatchError

if TYPE_CHECKING:
    import torch

    Named = tuple[str, torch.Tensor]

PauseMode = Literal["keep", "wait", "abort"]
Reference = Callable[[Sequence[int]], Sequence[float]]

IN_MEMORY = Path("/dev/shm")
SHARD_BYTES = 4 << 30
"""Of one file of several: what is held in this process' memory at a time, besides the model."""
PREFIX = "steersman-weights-"
"""Of folders with weights; the process that made it follows."""
PROBE_TOKENS = (1, 2, 3, 5, 7, 4, 6, 2)
"""Ids that every vocabulary has: what they mean does not matter."""
TOLERANCE = 0.05
"""Nats per token, on average, by which engines may differ.  Equal weights gave 0 between float32
engines, and 0.01 between bfloat16 and float32; one Adam step of 3e-4 moved a small model by 0.016.
So weights that stay behind are found out after some steps; that a push was missed, by its
version."""

log = logging.getLogger(__name__)


class FileWeightTransfer:
    """TRL's `WeightTransferProtocol`.  `push` is all of it in one call."""

    def __init__(
        self,
        endpoints: Endpoints,
        folder: Path | str | None = None,
        *,
        pause: PauseMode = "keep",
        check: bool = True,
        reference: Reference | None = None,
    ) -> None:
        """
        Parameters
        ----------
        endpoints
            The gateway, or the engines; the same object as the rollouts'.
        folder
            Where the file goes; every engine must see it under the same path.  None: memory or the
            temporary folder of this machine, for engines that run on it.
        pause
            What becomes of running requests: "keep" freezes them (their KV is computed anew with
            the new weights), "wait" lets them end, "abort" ends them.
        check
            Whether the engines' log-probabilities are compared after each push.
        reference
            What the trainer's weights say of a text: the log-probability of each of its tokens
            after the first.
        """
        if pause not in ("keep", "wait", "abort"):
            raise InvalidInputError(f'pause is {pause!r}; valid: "keep", "wait", "abort"')
        self.endpoints, self._pause, self._check = endpoints, pause, check
        self.reference = reference
        self._given = Path(folder) if folder is not None else None
        self._folder: Path | None = None
        self._newest: Path | None = None
        self._model = ""
        self.weight_version = 0
        """Of the newest push; 0: none was."""
        self._missing = 0
        """Engines without the newest weights."""

    # TRL's protocol

    def init_weight_transfer(self) -> None:
        """See that the engines can be told to load weights."""
        run(self.endpoints, self._can_be_told)

    def pause(self) -> None:
        """Freeze the engines."""
        run(self.endpoints, self._pause_all)

    def send_weights(self, iterator: Iterable["Named"]) -> None:
        """Write the file, have every engine load it, and tell the version."""
        self._send(iterator, self.weight_version + 1)

    def resume(self) -> None:
        """Let the engines go on, and see that they compute alike."""
        run(self.endpoints, self._resume_all)
        if self._check and self.weight_version and not self._missing:
            run(self.endpoints, self._compare)

    def destroy(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._newest = None

    def push(self, iterator: Iterable["Named"], weight_version: int | None = None) -> None:
        """Pause, send, resume; None: the version counts on."""
        version = self.weight_version + 1 if weight_version is None else weight_version
        if version <= self.weight_version:
            raise InvalidInputError(
                f"weight_version {version} is not newer than {self.weight_version}"
            )
        self.pause()
        try:
            self._send(iterator, version)
        finally:
            self.resume()

    # How

    def _send(self, iterator: Iterable["Named"], version: int) -> None:
        file = self._written(iterator, version)
        run(self.endpoints, lambda client: self._load(client, file, version))
        before, self._newest = self._newest, file
        self.weight_version = self.endpoints.weight_version = version
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def _written(self, iterator: Iterable["Named"], version: int) -> Path:
        """The folder with the file, whole."""
        from safetensors.torch import save_file

        if self._folder is None:
            self._folder = self._place()
        scratch = self._folder / f".v{version}-{uuid.uuid4().hex[:8]}"
        scratch.mkdir()
        tensors = 0
        for number, shard in enumerate(_shards(iterator)):
            save_file(shard, scratch / f"model-{number:05d}.safetensors", {"format": "pt"})
            tensors += len(shard)
        if not tensors:
            raise InvalidInputError("there are no weights to send: the iterator was empty")
        file = self._folder / f"v{version}-{uuid.uuid4().hex[:8]}"
        return scratch.rename(file)

    def _place(self) -> Path:
        parent = self._given
        if parent is None:
            parent = IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
        if not parent.is_dir():
            raise InvalidInputError(f"{parent} is no folder; valid: one that the engines see too")
        if self._given is None:  # of another machine's processes nothing is known here
            _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
        folder.chmod(0o755)  # engines may run as another user
        return folder

    async def _can_be_told(self, client: Client) -> None:
        try:
            replies = await client.everyone("GET", "/get_world_size")
        except RefusedError as error:
            raise FleetError(
                f"the engines take no weights from here ({error}); start them with "
                "VLLM_SERVER_DEV_MODE=1"
            ) from None
        log.info("weights go to %d workers by file", sum(map(_world_size, replies)))
        self._model = await client.model_name()

    async def _pause_all(self, client: Client) -> None:
        await client.everyone("POST", "/pause", params={"mode": self._pause, "clear_cache": "true"})

    async def _resume_all(self, client: Client) -> None:
        await client.everyone("POST", "/resume")

    async def _load(self, client: Client, file: Path, version: int) -> None:
        sizes = {r.at: _world_size(r) for r in await client.everyone("GET", "/get_world_size")}
        if client.endpoints.direct and client.endpoints.gateway:
            await self._pause_all(client)  # the gateway may have been lost while it did
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(file)}}
        loaded = await client.everyone("POST", "/collective_rpc", body=call)
        for reply in loaded:
            results = reply.body.get("results") if isinstance(reply.body, dict) else None
            if reply.at in sizes and len(results or ()) != sizes[reply.at]:
                raise WeightMismatchError(
                    f"{reply.at}: {len(results or ())} of {sizes[reply.at]} workers loaded weights "
                    f"{version}"
                )
        self._note_missing(loaded, version)
        told = await client.everyone(
            "POST", "/update_weight_version", body={"new_version": str(version)}
        )
        took = {reply.at for reply in loaded} & {reply.at for reply in told}
        if client.endpoints.gateway not in took:
            client.endpoints.took_weights(sorted(took))
        for reply in await client.everyone("GET", "/weight_info"):
            reported = _versions(reply.body)
            if reported != {str(version)}:
                raise WeightMismatchError(
                    f"{reply.at} reports weights {', '.join(sorted(reported))} after {version} "
                    "was pushed"
                )

    def _note_missing(self, loaded: Sequence[Reply], version: int) -> None:
        """Say if engines missed the weights, whenever their number has changed."""
        known, took = len(self.endpoints.engines), len(loaded)
        if loaded[0].at == self.endpoints.gateway:  # one answer for all
            names = loaded[0].headers.get("X-Steersman-Engines", "")
            took = len(names.split(", ")) if names else known
        missing = max(known - took, 0)
        if missing and missing != self._missing:
            log.warning(
                "%d of %d engines missed weights %d, and get no requests until they have some",
                missing,
                known,
                version,
            )
        self._missing = missing

    async def _compare(self, client: Client) -> None:
        """Every engine that can be asked by itself says the same of the probe."""
        said: dict[str, Sequence[float]] = {}
        if self.reference is not None:
            said["the trainer"] = self.reference(PROBE_TOKENS)
        said |= await client.prompt_logprobs(self._model, PROBE_TOKENS)
        if len(said) < 2:
            return
        (first, expected), *others = said.items()
        for name, values in others:
            gaps = [abs(a - b) for a, b in zip(expected, values, strict=True)]
            mean = sum(gaps) / len(gaps)
            if not mean <= TOLERANCE:  # NaN neither
                raise WeightMismatchError(
                    f"after weights {self.weight_version} were pushed, {name} and {first} differ "
                    f"by {mean:.3f} nats per token of the probe; valid: up to {TOLERANCE}. "
                    "With tied embeddings on a CPU, the engine keeps its old output head: export "
                    "the model with tie_word_embeddings=false"
                )


def _sweep(parent: Path) -> None:
    """Remove what runs that were killed left behind: it may fill the machine's memory."""
    for folder in parent.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not _lives(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _shards(iterator: Iterable["Named"]) -> Iterator[dict[str, "torch.Tensor"]]:
    """Tensors as they can be written: in this machine's memory, none sharing another's."""
    shard: dict[str, torch.Tensor] = {}
    size, seen = 0, set[int]()
    for name, tensor in iterator:
        own = tensor.detach().cpu().contiguous()
        if own.data_ptr() in seen:  # tied
            own = own.clone()
        seen.add(own.data_ptr())
        if shard and size + own.nbytes > SHARD_BYTES:
            yield shard
            shard, size, seen = {}, 0, {own.data_ptr()}
        shard[name] = own
        size += own.nbytes
    if shard:
        yield shard


def _world_size(reply: Reply) -> int:
    try:
        return int(reply.body["world_size"])
    except (LookupError, TypeError, ValueError):
        raise FleetError(f"{reply.at} does not tell its world size: {reply.body}") from None


def _versions(told: Any) -> set[str]:
    """What the engines report, if a gateway asked several."""
    if isinstance(told, Mapping) and isinstance(told.get("results"), Mapping):
        return {version for each in told["results"].values() for version in _versions(each)}
    return {str(told.get("weight_version") if isinstance(told, Mapping) else told)}
