"""Requests that come as token ids from this process, without a client's own words."""

from typing import Any

from steersman.mechanisms.fleet import AttemptRequest
from steersman.mechanisms.http_vllm.ask import Abilities, Ask
from steersman.mechanisms.http_vllm.dialects import COMPLETIONS_PATH, GENERATE_PATH
from steersman.mechanisms.http_vllm.dialects.completions import COMPLETIONS
from steersman.mechanisms.http_vllm.dialects.generate import GENERATE


def ask_of(request: AttemptRequest, abilities: Abilities, model: str) -> Ask:
    """One attempt as an ask of its own; its tokens and log-probabilities are all that is wanted."""
    told = request.sampling
    sampling: dict[str, Any] = {
        "temperature": told.temperature,
        "top_p": told.top_p,
        "top_k": told.top_k,
        "stop_token_ids": list(told.stop_token_ids),
        "ignore_eos": told.ignore_eos,
        "max_tokens": request.max_tokens,
        "logprobs": 0,
    }
    if told.seed is not None:
        sampling["seed"] = told.seed
    body: dict[str, Any] = {"model": model}
    if request.priority:
        body["priority"] = request.priority
    if abilities.generate:
        body |= {
            "token_ids": request.token_ids,
            "sampling_params": sampling | {"detokenize": False},
        }
        path, dialect = GENERATE_PATH, GENERATE
    else:
        body |= sampling | {"prompt": request.token_ids, "return_tokens_as_token_ids": True}
        path, dialect = COMPLETIONS_PATH, COMPLETIONS
    return Ask(
        dialect=dialect,
        path=path,
        body=body,
        headers={},
        max_tokens=request.max_tokens,
        prompt_token_ids=request.token_ids,
    )
