"""What engines are asked: at first, and for what is missing."""

from typing import Any

import msgspec
import pytest

from steersman.mechanisms.fleet import AttemptRequest, Sampling
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta, Dialect, Upstream
from steersman.mechanisms.http_vllm.dialects.chat import CHAT
from steersman.mechanisms.http_vllm.dialects.completions import COMPLETIONS
from steersman.mechanisms.http_vllm.dialects.generate import GENERATE, SPANS
from steersman.mechanisms.http_vllm.dialects.tokens import ask_of
from steersman.mechanisms.http_vllm.dialects.upstream import PROGRESS_TOKENS

ABILITIES = Abilities(generate=True, abort_path="/abort", model="tiny", max_model_len=1024)
CLOSING = Abilities(model="tiny", max_model_len=1024)
"""Requests can only be aborted by closing their connection."""


def ask_with(dialect: Dialect = COMPLETIONS, written: int = 0, **body: Any) -> Ask:
    """An ask of 100 tokens after the prompt [1, 2], with so many written."""
    full = {"model": "tiny", "prompt": [1, 2], "max_tokens": 100} | body
    ask = Ask(dialect, "/", full, {"X-Request-Id": "the client's", "traceparent": "t"}, 100)
    ask.prompt_token_ids = [1, 2]
    for token in range(written):
        ask.take(Delta([10 + token], "word "))
    return ask


def body_of(upstream: Upstream) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(upstream.body)
    return body


def resumed(ask: Ask, abilities: Abilities = ABILITIES) -> dict[str, Any]:
    assert ask.dialect is not None
    return body_of(ask.dialect.resume(ask, "a", abilities))


def test_a_request_has_the_attempt_s_name_and_the_client_s_headers() -> None:
    upstream = COMPLETIONS.ask(ask_with(), "run-3-0", ABILITIES)
    assert upstream.path == "/v1/completions"
    assert upstream.abort_id == "cmpl-run-3-0-0"
    assert upstream.headers == {
        "X-Request-Id": "run-3-0",
        "traceparent": "t",
        "Content-Type": "application/json",
    }


@pytest.mark.parametrize(("streamed", "interval"), [(False, PROGRESS_TOKENS), (True, None)])
def test_events_hold_many_tokens_unless_the_client_streams(
    streamed: bool, interval: int | None
) -> None:
    ask = ask_with()
    ask.streamed = streamed
    body = body_of(COMPLETIONS.ask(ask, "a", ABILITIES))
    assert (body["stream"], body.get("stream_interval")) == (True, interval)


def test_what_is_missing_is_asked_for_after_all_tokens() -> None:
    body = resumed(ask_with(written=30, min_tokens=40))
    assert body["prompt"] == [1, 2, *range(10, 40)]
    assert (body["max_tokens"], body["min_tokens"]) == (70, 10)


def test_a_continuation_does_not_draw_the_numbers_that_drew_the_beginning() -> None:
    seeds = {resumed(ask_with(written=n, seed=5, temperature=1.0))["seed"] for n in (20, 21)}
    assert len(seeds | {5}) == 3


def test_a_chat_goes_on_as_a_completion_of_tokens() -> None:
    ask = ask_with(CHAT, 30, logprobs=True, top_logprobs=2, top_k=4)
    ask.body.pop("prompt")
    ask.body |= {"messages": [], "chat_template_kwargs": {"a": 1}, "user": "me"}
    upstream = CHAT.resume(ask, "a", ABILITIES)
    body = body_of(upstream)
    assert (upstream.path, upstream.abort_id) == ("/v1/completions", "cmpl-a-0")
    assert (body["prompt"], body["top_k"]) == ([1, 2, *range(10, 40)], 4)
    assert (body["logprobs"], body["max_tokens"]) == (2, 70)
    assert not {"messages", "top_logprobs", "chat_template_kwargs", "user"} & body.keys()


def test_a_chat_without_a_length_goes_on_to_the_end_of_the_context() -> None:
    ask = ask_with(CHAT, 30)
    ask.max_tokens = 1024
    assert resumed(ask)["max_tokens"] == 1024 - 32


def test_tokens_go_on_without_a_look_at_texts() -> None:
    ask = ask_with(GENERATE, token_ids=[1, 2], sampling_params={"max_tokens": 100})
    for token in range(5):
        ask.take(Delta([10 + token]))
    body = resumed(ask)
    assert body["token_ids"] == [1, 2, 10, 11, 12, 13, 14]
    assert body["sampling_params"]["max_tokens"] == 95


def test_spans_of_weight_versions_are_joined_across_attempts() -> None:
    ask = ask_with(GENERATE, token_ids=[1, 2], sampling_params={"max_tokens": 100})
    for attempt, (version, tokens) in enumerate([("7", 3), ("7", 2), ("8", 4)]):
        (GENERATE.resume if attempt else GENERATE.ask)(ask, "a", ABILITIES)
        spans = [{"version": version, "start": 0, "end": tokens}]
        choice = {"index": 0, "token_ids": [9] * tokens, SPANS: spans, "finish_reason": "abort"}
        delta = GENERATE.read(ask, {"choices": [choice]})
        assert delta is not None
        assert delta.weight_version == int(version)
        ask.take(delta)
    assert ask.frame[SPANS] == [
        {"version": "7", "start": 0, "end": 5},
        {"version": "8", "start": 5, "end": 9},
    ]


def test_text_kept_back_by_a_dead_engine_cannot_be_carried_on() -> None:
    ask = ask_with(written=5, stop=["</end>"])
    assert not ask.resumable


def test_texts_are_asked_for_where_an_engine_may_take_them_along() -> None:
    stop = {"stop": ["</end>"]}
    assert "logprobs" not in body_of(COMPLETIONS.ask(ask_with(**stop), "a", ABILITIES))
    assert body_of(COMPLETIONS.ask(ask_with(**stop), "a", CLOSING))["logprobs"] == 0
    streamed = ask_with(**stop)
    streamed.streamed = True
    assert body_of(COMPLETIONS.ask(streamed, "a", ABILITIES))["logprobs"] == 0
    assert body_of(CHAT.ask(ask_with(CHAT, **stop), "a", CLOSING))["logprobs"] is True


def test_a_stop_string_across_the_seam_is_looked_for_token_by_token() -> None:
    ask = ask_with(stop=["word </end>", "."], include_stop_str_in_output=True)
    ask.take(Delta([10], "a word "))
    bridge = resumed(ask)
    assert (bridge["max_tokens"], bridge["stop"]) == (1, [])
    choice = {"token_ids": [11], "text": "</e", "finish_reason": "length"}
    delta = COMPLETIONS.read(ask, {"choices": [choice]})
    assert delta is not None
    assert (delta.finish_reason, ask.cut) == (None, True)
    ask.take(delta)
    resumed(ask)
    choice = {"token_ids": [12], "text": "nd> and more", "finish_reason": "length"}
    delta = COMPLETIONS.read(ask, {"choices": [choice]})
    assert delta is not None
    assert (delta.finish_reason, delta.stop_reason, ask.cut) == ("stop", "word </end>", False)


def test_past_a_stop_string_that_did_not_come_all_goes_on_as_usual() -> None:
    ask = ask_with(stop=["word </end>"], include_stop_str_in_output=True)
    ask.take(Delta([10], "a word "))
    resumed(ask)
    choice = {"token_ids": [11], "text": "again", "finish_reason": "length"}
    delta = COMPLETIONS.read(ask, {"choices": [choice]})
    assert delta is not None
    ask.take(delta)
    body = resumed(ask)
    assert (body["max_tokens"], body["stop"]) == (98, ["word </end>"])


@pytest.mark.parametrize(
    ("before", "told", "own", "new", "as_told"),
    [
        ("a cat", " sat", "sat", " sat", "sat"),  # some tokenizers tell no space before a word
        ("a cat", "sat", "sat", "sat", "sat"),
        ("a cat", "Hi: a cat\ufffd sat", " sat", "\ufffd sat", " sat"),
        ("a cat", "Hi: a caté", "", "é", "é"),
        ("a cat", "Hi: a cat\ufffd語", "", "\ufffd語", "語"),
        ("", "Hi\ufffd sat", " sat", "\ufffd sat", " sat"),
        ("", "Hi\ufffd\ufffd sat", " sat", "\ufffd sat", " sat"),  # the first is the prompt's
    ],
)
def test_a_first_text_of_everything_is_told_from_the_token_s_own(
    before: str, told: str, own: str, new: str, as_told: str
) -> None:
    ask = ask_with()
    ask.take(Delta([10], before))  # one token, of which the end is not known to be whole
    if before:
        ask.take(Delta([11]))
    resumed(ask)
    logprobs = {"tokens": [own], "token_logprobs": [-1.0], "top_logprobs": [{own: -1.0}]}
    choice = {"token_ids": [12], "text": told, "logprobs": logprobs, "finish_reason": "length"}
    delta = COMPLETIONS.read(ask, {"choices": [choice]})
    assert delta is not None
    assert (delta.text, delta.logprobs["tokens"]) == (new, [as_told])


def test_alternatives_of_the_sampled_token_s_own_text_are_told_apart_in_a_chat() -> None:
    ask = ask_with(CHAT, 30, logprobs=True, top_logprobs=2)
    CHAT.resume(ask, "a", ABILITIES)
    told = {
        "text_offset": [0],
        "token_logprobs": [-0.1],
        "tokens": [""],
        "top_logprobs": [{"": -5.0, "x": -3.0}],
    }
    choice = {"token_ids": [9], "text": "", "logprobs": told}
    delta = CHAT.read(ask, {"choices": [choice]})
    assert delta is not None
    (entry,) = delta.logprobs["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("", -0.1, [])
    assert [(e["token"], e["logprob"]) for e in entry["top_logprobs"]] == [("", -0.1), ("x", -3.0)]


@pytest.mark.parametrize("generate", [True, False])
def test_tokens_of_this_process_are_asked_for_in_the_engine_s_best_way(generate: bool) -> None:
    sampling = Sampling(temperature=0.5, stop_token_ids=(2,), seed=8)
    request = AttemptRequest("a", [4, 5], 33, sampling, priority=1)
    ask = ask_of(request, Abilities(generate=generate), "tiny")
    assert ask.dialect is not None
    body = body_of(ask.dialect.ask(ask, "a", ABILITIES))
    told = body["sampling_params"] if generate else body
    assert body["token_ids" if generate else "prompt"] == [4, 5]
    assert (told["max_tokens"], told["seed"], told["stop_token_ids"]) == (33, 8, [2])
    assert (told["logprobs"], body["priority"], ask.prompt_tokens) == (0, 1, 2)
