"""Requests cut into asks: what is understood, what is sent on as it is, and what an ask holds."""

from typing import Any

import msgspec
import pytest
from support.vllm_cases import CHAT, COMPLETIONS, FORWARDED, GENERATE, UNDERSTOOD, Case

from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.forms.fields import MAX_ASKS
from steersman.controller.gateway.identity import Told
from steersman.controller.gateway.question import Question
from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta
from steersman.mechanisms.http_vllm.dialects.chat import SILENT
from steersman.mechanisms.http_vllm.dialects.seam import AHEAD, DROPPED
from steersman.mechanisms.http_vllm.dialects.text import ABORTED, LEVEL

ABILITIES = Abilities(generate=True, abort_path="/abort", model="tiny", max_model_len=1024)
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "The cat"}
TALK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "The cat"}]}
IDS: dict[str, Any] = {"token_ids": [5, 6], "sampling_params": {}}


def asks_of(
    path: str, body: dict[str, Any], abilities: Abilities = ABILITIES
) -> tuple[list[Ask], list[int]]:
    return FORMS[path].asks(body, msgspec.json.encode(body), {}, abilities)


def question_of(path: str, body: dict[str, Any]) -> Question:
    asks, group_of = asks_of(path, body)
    names = [str(i) for i in range(max(group_of) + 1)]
    streamed = body.get("stream") is True
    return Question(FORMS[path], "7", path, body, asks, group_of, names, streamed, 0, Told())


@pytest.mark.parametrize("case", UNDERSTOOD, ids=str)
def test_what_is_understood_is_an_ask_per_sample(case: Case) -> None:
    asks, _ = asks_of(case.path, case.body)
    assert all(ask.dialect is not None for ask in asks)


@pytest.mark.parametrize("case", FORWARDED, ids=str)
def test_what_is_not_understood_is_sent_on_byte_by_byte(case: Case) -> None:
    raw = b" " + msgspec.json.encode(case.body)
    (ask,), group_of = FORMS[case.path].asks(case.body, raw, {}, ABILITIES)
    assert (ask.dialect, ask.body, ask.movable, group_of) == (None, raw, False, [0])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, TEXT | {"prompt": None}),
        (COMPLETIONS, TEXT | {"prompt": ["The cat", [5]]}),
        (COMPLETIONS, TEXT | {"prompt": [5, True]}),
        (COMPLETIONS, TEXT | {"prompt": [5, -1]}),
        (COMPLETIONS, TEXT | {"prompt": ["The cat", ""]}),
        (COMPLETIONS, {"model": "tiny"}),
        (COMPLETIONS, TEXT | {"n": None}),
        (COMPLETIONS, TEXT | {"n": 0}),
        (COMPLETIONS, TEXT | {"n": MAX_ASKS + 1}),
        (COMPLETIONS, TEXT | {"prompt": ["The cat"] * 65, "n": 4}),
        (COMPLETIONS, TEXT | {"temperature": 0, "n": 2}),
        (COMPLETIONS, TEXT | {"temperature": True}),
        (COMPLETIONS, TEXT | {"top_p": 0}),
        (COMPLETIONS, TEXT | {"logprobs": -1}),
        (COMPLETIONS, TEXT | {"stop": [""]}),
        (COMPLETIONS, TEXT | {"stop": [5]}),
        (COMPLETIONS, TEXT | {"seed": 2**63}),
        (COMPLETIONS, TEXT | {"ignore_eos": None}),
        (COMPLETIONS, TEXT | {"stream": "yes"}),
        (COMPLETIONS, TEXT | {"suffix": "."}),
        (COMPLETIONS, TEXT | {"stream_options": {"include_usage": True}}),
        (COMPLETIONS, TEXT | {"stream": True, "stream_options": {"include_obfuscation": True}}),
        (COMPLETIONS, TEXT | {"vllm_xargs": {"a": 1}}),
        (CHAT, {"model": "tiny"}),
        (CHAT, TALK | {"tools": []}),
        (CHAT, TALK | {"tool_choice": "auto"}),
        (CHAT, TALK | {"top_logprobs": 2}),
        (CHAT, TALK | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (CHAT, TALK | {"messages": ["The cat"]}),
        (GENERATE, IDS | {"sampling_params": None}),
        (GENERATE, {"token_ids": [5]}),
        (GENERATE, IDS | {"sampling_params": {"structured_outputs": {"regex": "a"}}}),
        (GENERATE, IDS | {"features": {}}),
    ],
)
def test_anything_unusual_is_sent_on(path: str, body: dict[str, Any]) -> None:
    (ask,), _ = asks_of(path, body)
    assert ask.dialect is None


def test_a_chat_is_left_to_an_engine_that_tells_reasoning_apart() -> None:
    (ask,), _ = asks_of(CHAT, TALK, Abilities(reasoning_parser=True, max_model_len=1024))
    assert ask.dialect is None


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, TEXT), (CHAT, TALK)])
def test_an_engine_that_tells_no_token_ids_answers_for_itself(
    path: str, body: dict[str, Any]
) -> None:
    (ask,), _ = asks_of(path, body, Abilities(token_ids=False, max_model_len=1024))
    assert ask.dialect is None


def test_the_gateway_s_own_field_is_not_sent_on() -> None:
    body = TEXT | {"echo": True}
    raw = msgspec.json.encode(body | {"steersman": True})
    (ask,), _ = FORMS[COMPLETIONS].asks(body, raw, {}, ABILITIES)
    assert msgspec.json.decode(ask.body) == body


def test_each_sample_has_the_prompt_and_the_seed_that_vllm_gives_it() -> None:
    asks, group_of = asks_of(COMPLETIONS, TEXT | {"prompt": [[5], [6, 7]], "n": 2, "seed": 40})
    assert [ask.body["prompt"] for ask in asks] == [[5], [5], [6, 7], [6, 7]]
    assert [ask.body["seed"] for ask in asks] == [40, 41, 40, 41]
    assert group_of == [0, 0, 1, 1]
    assert not any({"n", "request_id"} & ask.body.keys() for ask in asks)


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        (COMPLETIONS, TEXT, 16),
        (COMPLETIONS, TEXT | {"max_tokens": 99}, 99),
        (CHAT, TALK, 1024),
        (CHAT, TALK | {"max_tokens": 5}, 5),
        (CHAT, TALK | {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (GENERATE, IDS, 1022),
        (GENERATE, IDS | {"sampling_params": {"max_tokens": 3}}, 3),
    ],
)
def test_most_that_is_written_is_known(path: str, body: dict[str, Any], most: int) -> None:
    (ask,), _ = asks_of(path, body)
    assert ask.max_tokens == most


@pytest.mark.parametrize(
    ("path", "body", "movable"),
    [
        (COMPLETIONS, TEXT | {"repetition_penalty": 1.3, "min_tokens": 4}, True),
        (COMPLETIONS, TEXT | {"presence_penalty": 0.0}, True),
        (COMPLETIONS, TEXT | {"presence_penalty": 0.1}, False),
        (COMPLETIONS, TEXT | {"frequency_penalty": 0.1}, False),
        (COMPLETIONS, TEXT | {"bad_words": ["dog"]}, False),
        (GENERATE, IDS | {"sampling_params": {"stop": "."}}, False),
        (GENERATE, IDS | {"sampling_params": {"stop": "."}, "output_mode": "text"}, True),
    ],
)
def test_what_counts_the_tokens_written_is_not_moved(
    path: str, body: dict[str, Any], movable: bool
) -> None:
    (ask,), _ = asks_of(path, body)
    assert ask.movable is movable


def test_a_chat_of_unknown_length_is_not_moved() -> None:
    (ask,), _ = asks_of(CHAT, TALK, Abilities())
    assert not ask.movable


def test_an_answer_of_the_gateway_s_own_ids_and_info() -> None:
    question = question_of(COMPLETIONS, TEXT)
    question.asks[0].take(Delta([5], "a", finish_reason="stop"))
    question.info = {"samples": []}
    answer = msgspec.json.decode(question.form.whole(question)) if question.form else {}
    assert (answer["id"], answer["steersman"]) == ("cmpl-7", {"samples": []})


def chunks_of(question: Question, deltas: list[Delta]) -> list[dict[str, Any]]:
    assert question.form is not None
    events: list[bytes] = []
    for number, delta in enumerate(deltas):
        question.asks[0].take(delta)
        events += question.form.chunk(question, 0, delta, number == 0)
    return [msgspec.json.decode(event.removeprefix(b"data: "))["choices"][0] for event in events]


def test_a_client_does_not_see_the_abort_of_one_attempt() -> None:
    question = question_of(COMPLETIONS, TEXT | {"stream": True})
    aborted = Delta([6], "b", finish_reason="abort", rest={LEVEL: ABORTED})
    chunks = chunks_of(question, [Delta([5], "a"), aborted, Delta([], finish_reason="abort")])
    assert [chunk["finish_reason"] for chunk in chunks] == [None, None, "abort"]


def test_what_may_become_a_stop_string_is_not_shown_after_a_seam_either() -> None:
    question = question_of(COMPLETIONS, TEXT | {"stream": True, "stop": ["</end>"]})
    deltas = [
        Delta([5], "one two"),
        Delta([6], " </e", rest={AHEAD: True}),
        Delta([7], "nd>", finish_reason="stop", stop_reason="</end>", rest={DROPPED: 6}),
    ]
    chunks = chunks_of(question, deltas)
    assert [chunk["text"] for chunk in chunks] == ["one two", "", " "]


def test_the_prompt_of_all_choices_is_counted_by_the_first_that_is_written() -> None:
    told = {"include_usage": True, "continuous_usage_stats": True}
    body = TALK | {"stream": True, "n": 2, "temperature": 1.0, "stream_options": told}
    question = question_of(CHAT, body)
    question.asks[1].prompt_token_ids = [1, 2, 3, 4, 5]
    question.asks[1].take(Delta([6], "b"))
    assert question.form is not None
    events = question.form.chunk(question, 1, question.asks[1].deltas[0], True)
    chunks = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
    assert [chunk["usage"]["prompt_tokens"] for chunk in chunks] == [5, 5, 5]


def test_what_a_parser_on_the_engine_took_makes_no_chunk_of_its_own() -> None:
    question = question_of(CHAT, TALK | {"stream": True})
    deltas = [Delta([5], "a"), Delta([6], rest={SILENT: True})]
    deltas.append(Delta([7], finish_reason="stop", rest={SILENT: True}))
    chunks = chunks_of(question, deltas)[1:]
    assert [chunk["delta"] for chunk in chunks] == [{"content": "a"}, {}]


def test_a_stream_tells_the_role_of_every_choice_first() -> None:
    question = question_of(CHAT, TALK | {"stream": True, "n": 2, "temperature": 1.0})
    chunks = chunks_of(question, [Delta([5], "a"), Delta([6], "b")])
    assert [(chunk["index"], chunk["delta"]) for chunk in chunks] == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
        (0, {"content": "a"}),
        (0, {"content": "b"}),
    ]
