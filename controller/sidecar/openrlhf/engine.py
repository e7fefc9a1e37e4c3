"""What is done inside OpenRLHF's engine actors (`RolloutRayActor`), for others.

Another engine, or the coordinator, asks with a prompt of a kind of its own: `generate_responses`
hands whatever it is given to the executor, which is ours in every engine.  So it runs on the
actor's event loop, where the engine's requests live.  (Ray's `__ray_call__` runs beside that loop.)
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

from steersman.mechanisms.leases.inside import reading_of


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
            return reading_of(actor.llm)


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
