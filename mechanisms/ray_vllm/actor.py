"""The replica: one vLLM engine in one Ray actor.

One task per request moves what the engine streams into its driver's mailbox; `poll` hands the
mailbox over.  The engine runs on through everything else: metrics are counted as they pass by, and
a weight update holds the requests in flight, whose KV cache is recomputed with the new weights.

vLLM is imported when the engine is launched, not when this module is: drivers import it too.
"""

import asyncio
import ctypes
import logging
import os
import signal
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steersman.mechanisms.fleet import (
    AttemptRequest,
    EndReason,
    ReplicaInfo,
    ReplicaStats,
    Sampling,
    VersionSpan,
)
from steersman.mechanisms.ray_vllm.draft_control import DraftControl, extra_args
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT
from steersman.mechanisms.ray_vllm.options import ReplicaSpec
from steersman.mechanisms.ray_vllm.weights import Packed, write_folder
from steersman.mechanisms.ray_vllm.wire import Command, End, Mailbox, Reply

IDLE_WAIT_S = 1.0
"""How long a poll waits while there is nothing to report on."""
LEASE_S = 600.0
"""A driver silent for so long is gone: its attempts are aborted to free the engine for the others.
A driver whose event loop a trainer blocks is silent too, so this is longer than a training step."""
SCORE_PRIORITY = -(1 << 30)
"""Scoring is one iteration that a trainer waits for: before everything else."""
PR_SET_PDEATHSIG = 1
"""Linux: the signal to get when the parent dies."""
EXTENSION = "steersman.mechanisms.ray_vllm.extension.SteersmanExtension"
REASONS = {"stop": EndReason.STOP, "length": EndReason.LENGTH, "abort": EndReason.ABORT}

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Request:
    handle: int
    request: AttemptRequest
    in_engine: bool = False
    aborted: bool = False
    draft_tokens: int | None = None
    """As commanded since it was started."""
    slot: int = NO_SLOT
    """Where its drafts are counted."""


@dataclass(eq=False)
class _Driver:
    """A driver as seen from here."""

    mailbox: Mailbox = field(default_factory=Mailbox)
    requests: dict[int, _Request] = field(default_factory=dict)
    early: dict[int, Command] = field(default_factory=dict)
    """Commands that arrived before their predecessors."""
    applied: int = 0
    polls: int = 0
    heard_s: float = field(default_factory=time.monotonic)


class Replica:
    """The actor.  All methods are calls of a driver."""

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self._on_gpu = spec.num_gpus > 0
        self._weight_version = spec.weight_version
        self._drivers: dict[str, _Driver] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._updating = asyncio.Lock()
        self._scored = 0
        self._vocabulary = 0
        self._failure = ""
        self._engine: Any = None
        self._counters: Any = None
        self._info: ReplicaInfo | None = None
        self._drafts = DraftControl(spec.engine.draft_tokens, self._commanded_drafts)

    async def launch(self, files: list[Any]) -> ReplicaInfo:
        """Start the engine.

        `files` holds a reference to the model folder's content, or nothing; it is fetched only if
        the folder is not on this machine.
        """
        if files and not Path(self._spec.model).exists():
            with tempfile.TemporaryDirectory(prefix="steersman-model-") as folder:
                await asyncio.to_thread(write_folder, await files[0], Path(folder))
                config = self._build(folder)
        else:
            config = self._build(self._spec.model)
        await self._engine.update_weight_version(str(self._weight_version))
        for fault in filter(None, await self._engine.collective_rpc("steersman_prepare")):
            log.warning("this engine is not built as expected: %s", fault)
        await self._drafts.arm(self._engine)
        self._vocabulary = config.model_config.get_vocab_size()
        self._info = ReplicaInfo(
            name=self._spec.name,
            pool=self._spec.pool,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            kv_capacity_tokens=config.cache_config.num_gpu_blocks * config.cache_config.block_size,
            max_draft_tokens=self._drafts.max_draft_tokens,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
        )
        return self._info

    def _build(self, model: str) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from steersman.mechanisms.ray_vllm.metrics import Counters

        arguments = {
            "seed": self._spec.seed,
            "worker_extension_cls": EXTENSION,
            **self._spec.engine.engine_args(model, self._on_gpu),
        }
        if not self._on_gpu:
            import vllm.utils.system_utils as system_utils

            # In a Ray actor vLLM insists on spawning its core, which imports vLLM again: 12 s.
            system_utils.is_in_ray_actor = lambda: False
        config = AsyncEngineArgs(**arguments).create_engine_config()
        if not self._on_gpu:
            # Creating the configuration forces "spawn" on CPU; forking is safe without CUDA.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
            os.register_at_fork(after_in_child=_die_with_parent)
        self._counters = Counters(lambda: self._engine.get_num_unfinished_requests(), self._drafts)
        self._engine = AsyncLLM.from_vllm_config(
            config, stat_loggers=[lambda config, index: self._counters]
        )
        return config

    async def info(self) -> ReplicaInfo:
        """What does not change while the replica lives."""
        if self._info is None:
            raise RuntimeError(f"replica {self._spec.name!r} has not been launched")
        return self._info

    async def processes(self) -> list[int]:
        """Process ids of the actor and its children, on the actor's machine."""
        import multiprocessing

        return [os.getpid(), *(child.pid or 0 for child in multiprocessing.active_children())]

    async def drafting(self) -> tuple[str, str, str]:
        """The machine's id in Ray, why nothing is drafted (or ""), the store's keeper (or "")."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node, self._drafts.refusal, self._drafts.host

    async def attach_drafts(self, store: str, host: str) -> str:
        """Draft from this machine's store `store`, kept by actor `host`; answers why not, or ""."""
        return await self._drafts.attach(self._engine, store, host)

    async def command(self, client: str, command: Command) -> None:
        """Start and abort attempts and set their drafts, in the order of the commands' numbers."""
        driver = self._driver(client)
        driver.early[command.number] = command
        while (present := driver.early.pop(driver.applied + 1, None)) is not None:
            driver.applied += 1
            for handle, request in present.starts:
                self._start(driver, _Request(handle, request))
            self._draft(driver, present)
            await self._abort([driver.requests.get(handle) for handle in present.aborts])

    async def poll(self, client: str, acknowledged: int, wait_s: float) -> Reply:
        """Everything new, as soon as an attempt ended, or after `wait_s`."""
        driver = self._driver(client)
        driver.polls += 1
        try:
            if (reply := driver.mailbox.unread(acknowledged)) is not None:
                return reply
            if not driver.requests and not self._failure:
                await driver.mailbox.wait(IDLE_WAIT_S)
            else:
                await driver.mailbox.wait(wait_s)
            await self._abort_for_silent_drivers()
            stats, silent_s = self._stats(), self._counters.silent_s()
            return driver.mailbox.take(stats, silent_s, self._failure)
        finally:
            driver.polls -= 1
            driver.heard_s = time.monotonic()

    async def leave(self, client: str) -> None:
        """The driver goes: abort its attempts and answer its poll."""
        driver = self._drivers.pop(client, None)
        if driver is not None:
            driver.mailbox.wake()
            await self._abort(list(driver.requests.values()))

    async def update_weights(self, packed: Packed, weight_version: int) -> None:
        """Load weights; requests in flight are held and go on with them."""
        shared_memory = Path("/dev/shm")
        folder = shared_memory if shared_memory.is_dir() else None
        async with self._updating:
            self._counters.pause()
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".safetensors") as file:
                file.write(packed.data)
                file.flush()
                await self._engine.pause_generation(mode="keep", clear_cache=True)
                try:
                    await self._engine.collective_rpc("steersman_load", args=(file.name,))
                    await self._engine.update_weight_version(str(weight_version))
                    self._weight_version = weight_version
                finally:
                    await self._engine.resume_generation()
                    self._counters.resume()

    async def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """log p(ids[i] | ids[:i]) for i = 1.. of each sequence."""
        return list(await asyncio.gather(*(self._score(ids) for ids in sequences)))

    # -- one request -----------------------------------------------------------------------------

    def _start(self, driver: _Driver, request: _Request) -> None:
        request.slot = self._drafts.take_slot()
        driver.requests[request.handle] = request
        driver.mailbox.wake()
        if self._engine.get_num_unfinished_requests() == 0:
            self._counters.work_arrives()
        self._spawn(self._run(driver, request))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, driver: _Driver, request: _Request) -> None:
        """Supervise one request: whatever happens, its end is written exactly once."""
        handle = request.handle
        try:
            end = await self._consume(driver, request)
        except Exception as error:
            if self._engine.errored:
                self._fail(str(error.__cause__ or error))
                return
            end = End(handle, EndReason.ERROR, [], _one_line(error.__cause__ or error))
        del driver.requests[handle]
        drafted_at, accepted_at = self._drafts.free_slot(request.slot)
        driver.mailbox.finish(replace(end, drafted_at=drafted_at, accepted_at=accepted_at))
        if self._engine.get_num_unfinished_requests() == 0:
            self._counters.idle()

    async def _consume(self, driver: _Driver, running: _Request) -> End:
        request, handle = running.request, running.handle
        if running.aborted:
            return End(handle, EndReason.ABORT, [])
        self._check(request.token_ids, request.max_tokens)
        # The first step of the generator registers the request without waiting, so from here on
        # the engine knows the id and an abort finds it.
        running.in_engine = True
        stream = self._engine.generate(
            {"type": "token", "prompt_token_ids": request.token_ids},
            _engine_sampling(request, running.slot),
            request.attempt_id,
            priority=request.priority,
        )
        async for output in stream:
            (completion,) = output.outputs
            if completion.token_ids:
                driver.mailbox.write(
                    handle,
                    list(completion.token_ids),
                    list(completion.logprobs.logprobs),
                    self._weight_version,
                )
            if completion.finish_reason is not None:
                reason = REASONS.get(completion.finish_reason, EndReason.ERROR)
                detail = "" if reason is not EndReason.ERROR else completion.finish_reason
                return End(handle, reason, _spans(completion.weight_versions), detail)
        return End(handle, EndReason.ERROR, [], "the engine's stream broke off")

    def _check(self, token_ids: list[int], max_tokens: int) -> None:
        """Refuse what the engine would not: it runs without a tokenizer and knows no vocabulary.

        A token outside of it kills the whole engine (an index error in its embedding), and a
        sequence that reaches the engine's limit ends as if by its own `max_tokens`.
        """
        assert self._info is not None
        limit = self._info.max_model_len
        if not token_ids:
            raise ValueError("the prompt is empty")
        if len(token_ids) + max_tokens > limit:
            raise ValueError(
                f"{len(token_ids)} tokens and {max_tokens} to come exceed the engine's "
                f"max_model_len of {limit}"
            )
        if min(token_ids) < 0 or max(token_ids) >= self._vocabulary:
            raise ValueError(
                f"token ids {min(token_ids)} to {max(token_ids)} are not all in the model's "
                f"vocabulary of {self._vocabulary}"
            )

    def _draft(self, driver: _Driver, command: Command) -> None:
        for handle, draft_tokens in command.speculate.items():
            if (request := driver.requests.get(handle)) is not None:
                request.draft_tokens = draft_tokens
        something = command.draft is not None or command.speculate
        if something and self._drafts.change(command.draft):
            self._spawn(self._drafts.tell(self._engine))

    def _commanded_drafts(self) -> dict[str, int]:
        """Tokens to draft for each attempt that was given a number since it was started."""
        return {
            request.request.attempt_id: request.draft_tokens
            for driver in self._drivers.values()
            for request in driver.requests.values()
            if request.draft_tokens is not None
        }

    async def _abort(self, requests: list[_Request | None]) -> None:
        in_engine = []
        for request in requests:
            if request is not None:
                request.aborted = True
                if request.in_engine:
                    in_engine.append(request.request.attempt_id)
        if in_engine:
            await self._engine.abort(in_engine)

    async def _score(self, token_ids: list[int]) -> list[float]:
        from vllm import SamplingParams

        self._check(token_ids, 1)
        self._scored += 1
        sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        sampling.detokenize = False
        prompt = {"type": "token", "prompt_token_ids": token_ids}
        name = f"{self._spec.name}-score-{self._scored}"
        output = None
        async for output in self._engine.generate(prompt, sampling, name, priority=SCORE_PRIORITY):
            if output.prompt_logprobs:
                found = output.prompt_logprobs
        return [entry[token].logprob for entry, token in zip(found[1:], token_ids[1:], strict=True)]

    # -- drivers ---------------------------------------------------------------------------------

    def _driver(self, client: str) -> _Driver:
        return self._drivers.setdefault(client, _Driver())

    async def _abort_for_silent_drivers(self) -> None:
        """Their mailboxes stay: should they come back, they find the ends."""
        now_s = time.monotonic()
        for driver in list(self._drivers.values()):
            if driver.polls == 0 and now_s - driver.heard_s > LEASE_S:
                await self._abort(list(driver.requests.values()))

    def _stats(self) -> ReplicaStats:
        stats: ReplicaStats = self._counters.stats(self._weight_version)
        return stats

    def _fail(self, why: str) -> None:
        self._failure = f"its engine died: {why}"
        for driver in self._drivers.values():
            driver.mailbox.wake()


def _die_with_parent() -> None:
    """Let the kernel kill this process when the actor dies.

    A forked engine also holds the actor's sockets: were it to live on, Ray would not see that the
    actor was killed (measured: nothing for 30 s).
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _engine_sampling(request: AttemptRequest, slot: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling: Sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        # vLLM stops at stop tokens even with ignore_eos, which means only the model's own.
        stop_token_ids=[] if sampling.ignore_eos else list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        max_tokens=request.max_tokens,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra_args(request, slot),
    )


def _spans(weight_versions: Any) -> list[VersionSpan]:
    return [VersionSpan(int(s.version), s.start, s.end) for s in weight_versions or ()]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
