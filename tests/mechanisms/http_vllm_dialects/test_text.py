"""What is known of a text that came with the texts of its tokens, and what its engine kept back."""

from typing import Any

import pytest

from steersman.mechanisms.http_vllm.ask import Ask, Delta
from steersman.mechanisms.http_vllm.dialects.completions import COMPLETIONS
from steersman.mechanisms.http_vllm.dialects.seam import Seam
from steersman.mechanisms.http_vllm.dialects.text import kept_back, open_tokens

STOP = {"stop": ["\n---"]}
"""Three characters are kept back."""


def ask_of(*texts: str, known: str = "") -> Ask:
    """These are the texts of its tokens, and so much text has come."""
    ask = Ask(COMPLETIONS, "/v1/completions", {"prompt": [1]}, {}, 100, prompt_token_ids=[1])
    for index, text in enumerate(texts):
        told = {"tokens": [text], "token_logprobs": [-1.0]}
        ask.take(Delta([index], known if index == 0 else "", told))
    return ask


@pytest.mark.parametrize(
    ("texts", "known", "lacked"),
    [
        (["ab", "cde"], "ab", "cde"),
        (["ab", "cdef"], "abc", "def"),
        (["ab"], "", "ab"),
        (["", "", "語", ""], "", "語"),
        (["a", "", "é", "bc"], "a", "ébc"),
        (["a", "<eos>", "bcd", "efg"], "abcd", "efg"),
        (["abc", "d", "<eos>", "ef"], "abc", "def"),
        (["abc", "<eos>", "d", "<eos>", "ef"], "abc", "def"),
        (["a", "<eos>", "bc", "<eos>", "<xy>", "def"], "abc", "def"),
        (["a", "", "b", "cdef"], "a\N{REPLACEMENT CHARACTER}bc", "def"),
        # the part took a letter along, whose text nobody tells
        (["a", "", "b", "cdef"], "ax\N{REPLACEMENT CHARACTER}bc", "def"),
    ],
)
def test_the_texts_of_the_tokens_tell_what_is_kept_back(
    texts: list[str], known: str, lacked: str
) -> None:
    assert kept_back(ask_of(*texts, known=known), STOP) == lacked


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        (["ab", "cdefg"], "ab"),  # more than is kept back
        (["ab", "cd"], "ab"),  # less
        (["xy", "cde"], "ab"),  # another text
        (["abc", "d", "", "e"], "abc"),  # a part that nothing completed, or "é" of one token
        (["abc", "<e>", "<i>", "def"], "abc"),  # either may be special
        (["abcd"], ""),  # too much
        (["ab", "\N{REPLACEMENT CHARACTER}cd"], "ab"),  # it may continue a character
        (["\N{REPLACEMENT CHARACTER}cd"], ""),
        (["", "a"], ""),  # a part that nothing completed
        (["a", "", "", "é"], ""),  # nor here: it has but two bytes
    ],
)
def test_what_does_not_fit_is_not_believed(texts: list[str], known: str) -> None:
    assert kept_back(ask_of(*texts, known=known), STOP) is None


@pytest.mark.parametrize("name", ["<|end|>", "<s>", "[SEP]"])
def test_a_name_is_not_taken_for_text_where_all_may_be_kept_back(name: str) -> None:
    sampling: dict[str, Any] = {"stop": ["a very long stop string"]}
    assert kept_back(ask_of("a", name), sampling) is None
    assert kept_back(ask_of("a", name), sampling | {"skip_special_tokens": False}) == f"a{name}"
    assert kept_back(ask_of("a", "[i]", "<"), sampling) == "a[i]<"


def test_an_engine_that_told_nothing_leaves_what_the_one_before_it_kept_back() -> None:
    ask = ask_of("ab", "<eos>", "cde", known="ab")
    ask.seam = Seam("abcde", "cde", 3, clean=True, bridge=False)
    assert kept_back(ask, STOP) == "cde"


@pytest.mark.parametrize(
    ("texts", "known", "count"),
    [
        (["a", "b"], "ab", 0),
        (["a", ""], "a", 1),
        (["a", "", "é"], "aé", 0),
        (["a", "", "b"], "a\N{REPLACEMENT CHARACTER}b", 0),
        (["a", "<eos>"], "a", 1),
        (["a", "", "<eos>"], "a", 2),
        (["<eos>", ""], "", 2),
    ],
)
def test_tokens_without_a_place_in_the_text_are_counted(
    texts: list[str], known: str, count: int
) -> None:
    assert open_tokens(ask_of(*texts, known=known), {}, known) == count
