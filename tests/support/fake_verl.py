"""verl's actors as its clients see them, in one event loop: recorded signatures, no Ray, no verl.

`FakeServer` has the methods of `vLLMHttpServer` (verl 0.9.1) and as much of vLLM's engine as is
looked into.  It writes the deterministic text of `fake_fleet`, so that the one right answer to a
prompt is known whatever was moved where.
"""

import asyncio
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from support.fake_fleet import EOS, next_token


class RayActorError(Exception):
    """Ray's, by name."""


class ActorDiedError(RayActorError):
    """Ray's, by name."""


@dataclass
class TokenOutput:
    """verl's, without pydantic."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Handle:
    """An actor handle: `handle.method.remote(...)` is awaited; a killed actor answers nothing."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._dead = False
        self._calls: set[asyncio.Future[Any]] = set()

    def kill(self) -> None:
        self._dead = True
        for call in list(self._calls):
            call.cancel()

    def __getattr__(self, name: str) -> Any:
        if name == "__ray_call__":
            return SimpleNamespace(remote=self._ray_call)
        method = getattr(self._actor, name)
        return SimpleNamespace(remote=lambda *a, **k: self._call(method, *a, **k))

    def _ray_call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def beside_the_loop() -> Any:
            return await asyncio.to_thread(function, self._actor, *arguments)

        return self._call(beside_the_loop)

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def run() -> Any:
            if self._dead:
                raise ActorDiedError("the actor died")
            answer = method(*arguments, **named)
            work = asyncio.ensure_future(answer) if inspect.isawaitable(answer) else None
            if work is None:
                return answer
            self._calls.add(work)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if self._dead:
                    raise ActorDiedError("the actor died") from None
                raise
            finally:
                self._calls.discard(work)

        return asyncio.ensure_future(run())


@dataclass(eq=False)
class _State:
    external_req_id: str
    request_id: str
    prompt_len: int
    tokens: list[int] = field(default_factory=list)
    aborted: bool = False

    @property
    def detokenizer(self) -> Any:
        return SimpleNamespace(num_output_tokens=lambda: len(self.tokens))


class FakeServer:
    """`vLLMHttpServer`."""

    def __init__(self, seconds_per_token: float = 0.001, max_model_len: int = 512) -> None:
        self.seconds_per_token, self.max_model_len = seconds_per_token, max_model_len
        self.global_steps: int | None = None
        self.requests: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        """Raised by the next requests."""
        self._submission_paused = self._rejecting = False
        self._resumed = asyncio.Event()
        self._resumed.set()
        states: dict[str, _State] = {}
        config = SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=64, block_size=32),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            model_config=SimpleNamespace(max_model_len=max_model_len),
        )
        self.engine: Any = SimpleNamespace(
            vllm_config=config,
            output_processor=SimpleNamespace(request_states=states),
            output_handler=SimpleNamespace(get_loop=asyncio.get_running_loop),
            abort=self._abort,
        )
        loop = asyncio.get_running_loop()
        self.engine.output_handler.get_loop = lambda: loop
        self._states = states

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        kv_transfer_params: dict[str, Any] | None = None,
    ) -> TokenOutput:
        sampling = dict(sampling_params)
        self.requests.append({"request_id": request_id, "prompt_ids": prompt_ids, **sampling})
        if self.failures:
            raise self.failures.pop(0)
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ValueError("the prompt leaves no room to generate")
        most = max(1, min(sampling.pop("max_tokens", room), room))
        while self._submission_paused:
            if self._rejecting:
                return self._output([], [], "aborted")
            await self._resumed.wait()
        internal = f"{request_id}-{random.randrange(1 << 32):08x}"
        state = self._states[internal] = _State(request_id, internal, len(prompt_ids))
        try:
            while len(state.tokens) < most and not state.aborted:
                await asyncio.sleep(self.seconds_per_token)
                if not state.aborted:
                    state.tokens.append(next_token([*prompt_ids, *state.tokens]))
                    if state.tokens[-1] == EOS and not sampling.get("ignore_eos"):
                        break
        finally:
            del self._states[internal]
        ended = len(state.tokens) >= most or state.tokens[-1:] == [EOS]
        reason = "completed" if ended or not state.aborted else "aborted"
        return self._output(state.tokens, [-0.5] * len(state.tokens), reason)

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> Any:
        """As verl's: it knows internal ids only, and so finds nothing."""
        return {"aborted": False, "error": f"Request {request_id} not found"}

    async def abort_all_requests(
        self, reset_prefix_cache: bool = True, reject_request: bool = False
    ) -> Any:
        self._submission_paused, self._rejecting = True, reject_request
        self._resumed.clear()
        for state in self._states.values():
            state.aborted = True
        return {"aborted_count": len(self._states), "request_ids": list(self._states)}

    async def resume_generation(self) -> None:
        self._submission_paused = self._rejecting = False
        self._resumed.set()

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def _abort(self, request_ids: list[str]) -> None:
        for state in self._states.values():
            state.aborted = state.aborted or state.external_req_id in request_ids

    def _output(self, tokens: list[int], logprobs: list[float], reason: str) -> TokenOutput:
        fields = {"global_steps": self.global_steps, "num_cached_tokens": 0}
        return TokenOutput(list(tokens), logprobs, None, reason, None, fields)
