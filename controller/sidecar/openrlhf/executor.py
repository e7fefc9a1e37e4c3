"""An agent executor whose engine is the whole fleet.

It passes OpenRLHF's own executors an engine that looks like the one they run in.  Each `generate`
becomes a trajectory of the coordinator, which says which engine writes it and may move it.  Where
the coordinator does not answer, or a request cannot be moved without changing what is sampled, it
goes to the engine it was given to, as without us.
"""

import asyncio
import hashlib
import logging
import math
import uuid
from typing import TYPE_CHECKING, Any

from steersman.controller.sidecar.leases.line import Line, RouterLostError
from steersman.controller.sidecar.leases.wire import Begin, Free, Gone, Grant, Report
from steersman.controller.sidecar.openrlhf import engine
from steersman.controller.sidecar.openrlhf.engine import Ask, Errand
from steersman.mechanisms.fleet import EndReason
from steersman.mechanisms.leases.inside import limits_of

if TYPE_CHECKING:
    from steersman.controller.sidecar.leases.line import Call

REASONS = {"stop": EndReason.STOP, "length": EndReason.LENGTH, "abort": EndReason.ABORT}

log = logging.getLogger(__name__)


class Steered:
    """To be named before an executor of OpenRLHF among the bases of `AgentExecutor`."""

    _joining: "asyncio.Task[Line | None] | None" = None

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> Any:
        """One sample of a prompt; or an errand for an executor in another engine."""
        if isinstance(prompt, Errand):
            return await engine.answer(llm_engine, prompt)
        if self._joining is None:
            self._joining = asyncio.create_task(_join(llm_engine))
        line = await asyncio.shield(self._joining)
        whole: Any = super()
        steered = SteeredEngine(llm_engine, line, hf_tokenizer)
        response = await whole.execute(
            prompt=prompt,
            label=label,
            sampling_params=sampling_params,
            max_length=max_length,
            hf_tokenizer=hf_tokenizer,
            llm_engine=steered,
            images=images,
        )
        if isinstance(response, dict):
            response["extra_logs"] = {**(response.get("extra_logs") or {}), **steered.logs()}
        return response


class SteeredEngine:
    """What an executor takes for its engine, during one sample."""

    def __init__(self, own: Any, line: Line | None, tokenizer: Any) -> None:
        """Without a line to the coordinator it is that engine and nothing else."""
        self._own, self._line, self._tokenizer = own, line, tokenizer
        self._session = uuid.uuid4().hex
        self._infos: list[dict[str, Any]] = []

    def logs(self) -> dict[str, float]:
        """How the sample came about, as OpenRLHF hands it on with the sample and logs it.

        Its weight (1: none is needed), how often it was moved, and whether it ended as it should
        (0: it was cut).  All samples have all of them: OpenRLHF stacks them.
        """
        infos = self._infos
        whole = ("finished", "truncated")
        return {
            "steersman_weight": math.prod(float(info["weight"]) for info in infos),
            "steersman_moves": float(sum(info["moves"] for info in infos)),
            "steersman_whole": float(all(info["disposition"] in whole for info in infos)),
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> Any:
        """vLLM's `RequestOutput`, whoever wrote it."""
        line = self._line
        if line is None or multi_modal_data or not _movable(sampling_params):
            return await self._own.generate(prompt_token_ids, sampling_params, multi_modal_data)
        call = line.open()
        written = _Written(prompt_token_ids, sampling_params, self._tokenizer)
        line.tell(
            Begin(
                call.number,
                self._session,
                _digest(prompt_token_ids),
                len(prompt_token_ids),
                sampling_params.max_tokens,
            )
        )
        try:
            return await self._follow(line, call, written)
        except RouterLostError:
            return await self._alone(written)
        except asyncio.CancelledError:
            line.tell(Gone(call.number))
            raise
        finally:
            line.close(call)

    async def _follow(self, line: Line, call: "Call", written: "_Written") -> Any:
        while True:
            order = await call.next()
            if isinstance(order, Free):
                log.warning("a sample goes on by itself: %s", order.why)
                return await self._alone(written)
            if not isinstance(order, Grant):
                self._infos.append(order.info)
                return written.output() if written.begun else await self._alone(written)
            written.keep(order.kept)
            handle = line.servers.get(order.replica)
            line.tell(await self._carry_out(order, handle, written))

    async def _carry_out(self, grant: Grant, handle: Any, written: "_Written") -> Report:
        """Ask the engine that is granted, and say how it ended."""
        ask = written.ask(grant.attempt_id)
        try:
            if handle is None:
                raise LookupError(f"no handle of {grant.replica}")
            if grant.replica == own_name():
                output = await engine.generate(self._own, ask)
            else:
                output = await engine.send(handle, ask)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            lost = engine.is_gone(error)
            reason = EndReason.LOST if lost else EndReason.ERROR
            return Report(grant.call, grant.attempt_id, reason, detail=why, replica_lost=lost)
        tokens = written.add(output)
        reason = REASONS.get(output.outputs[0].finish_reason, EndReason.ERROR)
        return Report(grant.call, grant.attempt_id, reason, tokens)

    async def _alone(self, written: "_Written") -> Any:
        """Go on in the engine that OpenRLHF chose."""
        if not written.is_full:
            written.add(await engine.generate(self._own, written.ask(uuid.uuid4().hex)))
        return written.output()


class _Written:
    """What one trajectory has written so far, over all of its attempts."""

    def __init__(self, prompt_token_ids: list[int], params: Any, tokenizer: Any) -> None:
        self._prompt, self._params, self._tokenizer = list(prompt_token_ids), params, tokenizer
        self._tokens: list[int] = []
        self._logprobs: list[Any] | None = None
        self._last: Any = None
        self._attempts = 0

    @property
    def begun(self) -> bool:
        """An engine has answered."""
        return self._last is not None

    @property
    def is_full(self) -> bool:
        """Nothing is left to be written."""
        return bool(len(self._tokens) >= self._params.max_tokens)

    def ask(self, request_id: str) -> Ask:
        """The next attempt."""
        whole = self._prompt + self._tokens
        return Ask(request_id, whole, self._params, len(self._tokens))

    def add(self, output: Any) -> int:
        """An attempt's output; returns how many tokens it wrote."""
        part = output.outputs[0]
        self._attempts += 1
        self._last = output
        self._tokens += part.token_ids
        if part.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *part.logprobs]
        return len(part.token_ids)

    def keep(self, tokens: int) -> None:
        """Give up what is beyond the first `tokens`."""
        del self._tokens[tokens:]
        if self._logprobs is not None:
            del self._logprobs[tokens:]

    def output(self) -> Any:
        """The last attempt's, with everything that was written."""
        assert self._last is not None, "a trajectory ends with an attempt"
        part = self._last.outputs[0]
        if self._attempts > 1:
            skip = self._params.skip_special_tokens
            part.text = self._tokenizer.decode(self._tokens, skip_special_tokens=skip)
            if part.finish_reason == "abort":  # with its last token it had all it may have
                part.finish_reason = "length"
        part.token_ids, part.logprobs = self._tokens, self._logprobs
        return self._last


def own_name() -> str:
    """Of the engine that this runs in: Ray's id of its actor."""
    import ray

    return str(ray.get_runtime_context().get_actor_id())


async def _join(own: Any) -> Line | None:
    """Make this engine known to the coordinator; None: there will be none."""
    import ray

    from steersman.controller.sidecar.openrlhf.coordinator import NAME, Coordinator

    try:
        actor: Any = ray.remote(Coordinator)
        options = {"name": NAME, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 10_000}
        coordinator = actor.options(**options).remote()
        handle = ray.get_runtime_context().current_actor
        await coordinator.register.remote(own_name(), [handle], limits_of(own.llm))
    except Exception as error:
        log.warning("samples stay where OpenRLHF puts them: %r", error)
        return None
    return Line(coordinator)


def _digest(token_ids: list[int]) -> str:
    return hashlib.blake2b(repr(token_ids).encode(), digest_size=12).hexdigest()


def _movable(params: Any) -> bool:
    """Whether tokens written so far may become a prompt without changing what is sampled."""
    return not (
        params.n != 1
        or params.max_tokens is None
        or params.seed is not None
        or params.stop
        or params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.prompt_logprobs is not None
        or params.structured_outputs is not None
    )
