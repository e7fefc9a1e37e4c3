"""One answer out of many: read as if there were one engine, and no failure is lost."""

import json
from typing import Any

import pytest

from steersman.controller.gateway.merging import MAX_QUOTED, merged
from steersman.mechanisms.http_vllm.ask import Answer


def told(body: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(body).encode())


def merge(route: str, *bodies: Any) -> Any:
    answer = merged(route, {f"engine-{i}": told(body) for i, body in enumerate(bodies)})
    assert answer.status == 200
    return json.loads(answer.body)


@pytest.mark.parametrize(
    "answer",
    [told({"message": "Weights updated"}), told({"error": "no"}, 404), Answer(200, b"", "text/x")],
)
def test_equal_answers_are_that_answer(answer: Answer) -> None:
    assert merged("/update_weights", {"engine-0": answer, "engine-1": answer}) == answer


def test_the_answer_of_a_single_engine_stays_as_it_is() -> None:
    only = told({"world_size": 2, "more": 1})
    assert merged("/get_world_size", {"engine-0": only}) is only


@pytest.mark.parametrize(
    ("route", "bodies", "expected"),
    [
        ("/get_world_size", [{"world_size": 2}, {"world_size": 2}], {"world_size": 4}),
        ("/load", [{"server_load": 3}, {"server_load": 4}], {"server_load": 7}),
        ("/is_paused", [{"is_paused": True}, {"is_paused": True}], {"is_paused": True}),
        (
            "/is_paused",
            [{"is_paused": True}, {"is_paused": False}],
            {
                "is_paused": False,
                "results": {"engine-0": {"is_paused": True}, "engine-1": {"is_paused": False}},
            },
        ),
        ("/reset_prefix_cache", [{"success": True}, {"success": True}], {"success": True}),
        ("/collective_rpc", [{"results": [1, 2]}, {"results": [3]}], {"results": [1, 2, 3]}),
        (
            "/weight_checker",
            [{"match": True, "mismatches": []}, {"match": False, "mismatches": ["b", "a"]}],
            {"match": False, "mismatches": ["a", "b"]},
        ),
        (
            "/weight_checker",
            [{"checksums": {"a": "1"}}, {"checksums": {"a": "1"}}],
            {"checksums": {"a": "1"}},
        ),
        (
            "/weight_info",
            [{"weight_version": "1"}, {"weight_version": "2"}],
            {
                "results": {
                    "engine-0": {"weight_version": "1"},
                    "engine-1": {"weight_version": "2"},
                }
            },
        ),
        ("/load", [{"load": 3}, [4]], {"results": {"engine-0": {"load": 3}, "engine-1": [4]}}),
        ("/collective_rpc", [None, None], None),
    ],
)
def test_answers_that_differ_are_put_together(route: str, bodies: list[Any], expected: Any) -> None:
    assert merge(route, *bodies) == expected


def test_a_failure_of_some_names_each_and_what_it_said() -> None:
    answers = {
        "engine-0": told({"status": "paused"}),
        "engine-1": told({"error": {"message": "out of\nmemory"}}, 500),
        "engine-2": Answer(503, b"<html>busy</html>", "text/html"),
    }
    answer = merged("/pause", answers)
    body = json.loads(answer.body)
    assert answer.status == body["error"]["code"] == 502
    assert body["error"]["message"] == (
        "2 of 3 engines failed: engine-1 answered 500: out of memory; "
        "engine-2 answered 503: <html>busy</html>"
    )
    assert body["results"]["engine-0"] == {"status": 200, "body": {"status": "paused"}}
    assert body["results"]["engine-1"]["status"] == 500


def test_a_failure_of_all_keeps_the_status_they_agree_on() -> None:
    answers = {f"engine-{i}": told({"error": f"unknown mode {i}"}, 400) for i in range(2)}
    answer = merged("/pause", answers)
    assert answer.status == 400
    assert "engine-1 answered 400: unknown mode 1" in answer.body.decode()


def test_a_long_error_is_quoted_in_part_and_given_whole_beside() -> None:
    answers = {"engine-0": told({}), "engine-1": told({"error": "x" * 5000}, 500)}
    body = json.loads(merged("/pause", answers).body)
    assert len(body["error"]["message"]) < MAX_QUOTED + 100
    assert body["results"]["engine-1"]["body"] == {"error": "x" * 5000}
