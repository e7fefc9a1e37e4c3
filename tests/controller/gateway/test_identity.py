"""Whose request it is."""

import pytest

from steersman.controller.gateway.identity import MAX_NAME, Told, prompt_name, told_by
from steersman.estimators.errors import InvalidInputError


def test_headers_tell_session_group_prompt_step_and_version() -> None:
    headers = {
        "X-Session-ID": "s1",
        "X-Steersman-Group": "g7",
        "X-Steersman-Prompt": "math/12",
        "X-Steersman-Step": "41",
        "X-Steersman-Weight-Version": "40",
        "X-Steersman-Info": "true",
    }
    assert told_by(headers, {}) == Told("s1", "g7", "math/12", 41, 40, True)


def test_the_block_in_the_body_wins_over_headers_and_is_not_sent_on() -> None:
    body = {"prompt": "a", "steersman": {"step": 3, "group": "g"}}
    assert told_by({"X-Steersman-Step": "2"}, body) == Told(group="g", step=3)
    assert body == {"prompt": "a"}


def test_true_alone_asks_for_the_block_in_the_answer() -> None:
    assert told_by({}, {"steersman": True}).info


def test_the_session_comes_from_the_body_where_no_header_names_it() -> None:
    assert told_by({}, {"session_id": "s2"}).session == "s2"
    assert told_by({"X-SMG-Routing-Key": "k"}, {"session_id": "s2"}).session == "k"


def test_a_body_that_is_no_object_tells_nothing() -> None:
    assert told_by({}, [1, 2]) == Told()
    assert told_by({}, None) == Told()


@pytest.mark.parametrize(
    ("headers", "block", "says"),
    [
        ({}, {"grup": "g"}, "grup"),
        ({}, {"step": "three"}, "step"),
        ({}, 7, "an object"),
        ({"X-Steersman-Step": "soon"}, None, "step"),
        ({"X-Session-ID": "s" * (MAX_NAME + 1)}, None, "session"),
    ],
)
def test_a_field_that_is_mistyped_is_named(
    headers: dict[str, str], block: object, says: str
) -> None:
    body = {} if block is None else {"steersman": block}
    with pytest.raises(InvalidInputError, match=says):
        told_by(headers, body)


def test_the_same_prompt_has_the_same_name_and_another_one_another() -> None:
    assert prompt_name(Told(), [1, 2, 3]) == prompt_name(Told(), [1, 2, 3])
    assert prompt_name(Told(), [1, 2, 3]) != prompt_name(Told(), [12, 3])
    assert prompt_name(Told(prompt="p"), [1]) == "p"
