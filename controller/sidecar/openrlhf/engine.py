"""What is done inside OpenRLHF's engine actors (`RolloutRayActor`), for others.

Another engine, or the coordinator, asks with a prompt of a kind of its own: `generate_responses`
hands whatever it is given to the executor, which is ours in every engine.  So it runs on the
actor's event loop, where the engine's requests live.  (Ray's `__ray_call__` runs beside that loop.)
"""

from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from steersman.mechanisms.leases.lease import EngineReading


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens wanted of one engine, under a request id by which they can be aborted."""

    request_id: str
    token_ids: list[int]
    """Prompt, and what earlier attempts wrote."""
    sampling_params: Any
    """vLLM's, of the whole trajectory."""
    written: int
    """Tokens of earlier attempts: they count against the limits."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Requests to be ended; their own answers tell how."""

    request_ids: list[str]


@dataclass(frozen=True, slots=True)
class Look:
    """How far its requests have come."""


Errand = Ask | Abort | Look


class Limits(NamedTuple):
    """Of an engine, for life; 0: unknown."""

    max_num_seqs: int
    max_model_len: int
    kv_capacity_tokens: int


async def send(handle: Any, errand: Errand) -> Any:
    """Ask an engine's actor, by its handle."""
    (answer,) = await handle.generate_responses.remote(errand, None, None, 0, None)
    return answer


def is_gone(error: BaseException) -> bool:
    """Whether it says that an engine's actor is dead, and will not come back."""
    return type(error).__name__ in ("RayActorError", "ActorDiedError")


async def answer(actor: Any, errand: Errand) -> Any:
    """Runs in the actor."""
    match errand:
        case Ask():
            return await generate(actor, errand)
        case Abort(request_ids):
            return await actor.llm.abort(request_ids)
        case Look():
            return look(actor)


async def generate(actor: Any, ask: Ask) -> Any:
    """vLLM's `RequestOutput`, as OpenRLHF's own `generate` returns it."""
    from vllm.inputs import TokensPrompt

    params = copy(ask.sampling_params)
    params.max_tokens = ask.sampling_params.max_tokens - ask.written
    params.min_tokens = max(params.min_tokens - ask.written, 0)
    prompt, last = TokensPrompt(prompt_token_ids=ask.token_ids), None
    async for output in actor.llm.generate(prompt, params, request_id=ask.request_id):
        last = output
    return last


def limits(actor: Any) -> Limits:
    """Of the engine that this runs in."""
    config = actor.llm.vllm_config
    blocks = config.cache_config.num_gpu_blocks or 0
    return Limits(
        config.scheduler_config.max_num_seqs,
        config.model_config.max_model_len,
        blocks * config.cache_config.block_size,
    )


def look(actor: Any) -> EngineReading:
    """How far its requests have come."""
    tokens: dict[str, int] = {}
    context = 0
    states = actor.llm.output_processor.request_states
    for state in states.values():
        written = state.detokenizer.num_output_tokens() if state.detokenizer is not None else 0
        context += state.prompt_len + written
        tokens[getattr(state, "external_req_id", state.request_id)] = written
    return EngineReading(tokens=tokens, requests=len(states), context_tokens=context)
