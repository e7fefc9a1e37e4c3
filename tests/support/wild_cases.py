"""Requests of a hot model, which writes broken characters and special tokens, cut anywhere.

They are sampled, so that no other answer can be compared: what tells right from wrong is the text
that a vLLM which was never left makes of the same tokens.
"""

import random
from dataclasses import dataclass
from typing import Any

from support.form_client import Cut
from support.vllm_cases import CHAT, COMPLETIONS, GENERATE, MODEL, PROMPT, Case, folded
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

HALF = [131]
"""A token that is the first byte of a character."""


@dataclass(frozen=True)
class Written:
    """What an answer holds."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str


def wild(seed: int) -> tuple[Case, list[Cut]]:
    """A request, and where it is cut."""
    rng = random.Random(seed)
    length = rng.randint(20, 50)
    sampling: dict[str, Any] = {
        "temperature": rng.choice([1.0, 1.5, 2.0]),
        "seed": seed,
        "max_tokens": length,
        "min_tokens": rng.choice([0, 0, rng.randint(1, 15)]),
        "ignore_eos": True,
        "stop": rng.choice([[], [], ["e"], ["the", ">"], ["fish", "</answer>", " 🌍"]]),
        "include_stop_str_in_output": rng.random() < 0.5,
    }
    top = rng.choice([None, None, 0, 2])
    common = {"return_token_ids": True, "stream": rng.random() < 0.5}
    # (what a stream after half a character begins with can be lost with its engine)
    prompt = rng.choice(["The cat", PROMPT, PROMPT if common["stream"] else PROMPT + HALF])
    path = rng.choice([COMPLETIONS, CHAT, GENERATE])
    if path == COMPLETIONS:
        body = {"model": MODEL, "prompt": prompt, **sampling}
        body |= {} if top is None else {"logprobs": top}
    elif path == CHAT:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "The cat"}], **sampling}
        body |= {} if top is None else {"logprobs": True, "top_logprobs": top}
    else:
        sampling |= {} if top is None else {"logprobs": top}
        body = {"token_ids": PROMPT, "sampling_params": sampling, "output_mode": "text"}
    cuts = sorted(rng.choices(range(1, length), k=rng.randint(1, 4)))
    case = Case(f"wild {seed}", path, body | common)
    return case, [Cut(at, rng.choice(["close", "abort"])) for at in cuts]


def written(case: Case, answer: Any) -> Written:
    """Read from an answer, or from the events of one."""
    if case.body["stream"]:
        choice = folded(answer)["choices"][0]
        text, (end, _) = choice["text"], choice["end"]
        return Written(choice["prompt_token_ids"], choice["token_ids"], text, end["finish_reason"])
    (choice,) = answer["choices"]
    text = choice["message"]["content"] if case.path == CHAT else choice["text"]
    prompt = choice.get("prompt_token_ids") or answer["prompt_token_ids"]
    return Written(prompt, choice["token_ids"], text, choice["finish_reason"])


def undisturbed(case: Case, told: Written, tokenizer: Tokenizer) -> Written:
    """The same tokens as vLLM's detokenizer, which is not interrupted, makes text of them."""
    sampling = case.body.get("sampling_params", case.body)
    stream = DecodeStream(ids=told.prompt_token_ids, skip_special_tokens=True)
    text = ""
    for count, token in enumerate(told.token_ids, 1):
        known = len(text)
        text += stream.step(tokenizer, token) or ""
        if count <= sampling["min_tokens"] or len(text) == known:
            continue
        places = [(text.find(s, max(known - len(s) + 1, 0)), s) for s in sampling["stop"]]
        ends = [(place + len(s), place) for place, s in places if place >= 0]
        if ends:
            end, place = min(ends)
            text = text[: end if sampling["include_stop_str_in_output"] else place]
            return Written(told.prompt_token_ids, told.token_ids[:count], text, "stop")
    return Written(told.prompt_token_ids, told.token_ids, text, "length")
