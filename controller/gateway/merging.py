"""One answer out of many engines' answers to the same call of the control plane.

A trainer was written for one engine and reads one answer, so:

- equal answers are that answer, errors as well (no engine knows the route: 404);
- counts are summed (`/get_world_size`, `/load`): the fleet is one engine with all the workers, and
  its ranks in a weight transfer are numbered through; `/collective_rpc` lists all workers' results;
- yes is said only where all say yes (`/is_paused`, `/is_sleeping`, `/reset_prefix_cache`,
  `/weight_checker`), with all mismatches;
- other answers that differ come as `{"results": {engine: answer}}`, in which a trainer that expects
  one answer finds none and stops, rather than take one engine's word for all;
- if some engines failed, the answer is an error (502, or the status that all of them gave) that
  names each of them and what it said.  `results` in it holds all answers, since those that did not
  fail have done what was asked.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from steersman.mechanisms.http_vllm.ask import Answer

MAX_QUOTED = 300
"""Characters of an engine's error that are quoted in the message; `results` has all of it."""

Bodies = Mapping[str, Any]


def _sum(key: str) -> Callable[[Bodies], dict[str, Any]]:
    return lambda bodies: {key: sum(body[key] for body in bodies.values())}


def _all(key: str) -> Callable[[Bodies], dict[str, Any]]:
    def merge(bodies: Bodies) -> dict[str, Any]:
        said = {name: body[key] for name, body in bodies.items()}
        split = len(set(said.values())) > 1
        return {key: all(said.values()), **({"results": dict(bodies)} if split else {})}

    return merge


def _results(bodies: Bodies) -> dict[str, Any]:
    return {"results": [result for body in bodies.values() for result in body["results"]]}


def _mismatches(bodies: Bodies) -> dict[str, Any]:
    found = {name for body in bodies.values() for name in body["mismatches"]}
    return {"match": all(body["match"] for body in bodies.values()), "mismatches": sorted(found)}


RULES: Mapping[str, Callable[[Bodies], dict[str, Any]]] = {
    "/get_world_size": _sum("world_size"),
    "/load": _sum("server_load"),
    "/is_paused": _all("is_paused"),
    "/is_sleeping": _all("is_sleeping"),
    "/reset_prefix_cache": _all("success"),
    "/collective_rpc": _results,
    "/weight_checker": _mismatches,
}
"""Route -> the bodies by engine made one.  A rule that does not fit the bodies raises."""


def merged(route: str, answers: Mapping[str, Answer]) -> Answer:
    """The fleet's answer, from those of its engines (one at least)."""
    first, *others = answers.values()
    if not others:
        return first
    bodies = {name: _body(answer) for name, answer in answers.items()}
    if all(answer.status < 400 for answer in answers.values()):
        if route in RULES:
            try:
                return Answer(first.status, msgspec.json.encode(RULES[route](bodies)))
            except (KeyError, TypeError):
                pass  # an engine of another version answers otherwise
        if _equal(answers, bodies):
            return first
        return Answer(200, msgspec.json.encode({"results": bodies}))
    return first if _equal(answers, bodies) else _failure(answers, bodies)


def _equal(answers: Mapping[str, Answer], bodies: Bodies) -> bool:
    statuses = {answer.status for answer in answers.values()}
    first, *others = bodies.values()
    return len(statuses) == 1 and all(other == first for other in others)


def _failure(answers: Mapping[str, Answer], bodies: Bodies) -> Answer:
    failed = {name: answer.status for name, answer in answers.items() if answer.status >= 400}
    statuses = set(failed.values())
    status = statuses.pop() if len(failed) == len(answers) and len(statuses) == 1 else 502
    said = "; ".join(
        f"{name} answered {code}: {_quoted(bodies[name])}" for name, code in failed.items()
    )
    error = {
        "message": f"{len(failed)} of {len(answers)} engines failed: {said}",
        "type": "Bad Gateway",
        "param": None,
        "code": status,
    }
    results = {
        name: {"status": answer.status, "body": bodies[name]} for name, answer in answers.items()
    }
    return Answer(status, msgspec.json.encode({"error": error, "results": results}))


def _body(answer: Answer) -> Any:
    """The body's value; its text where it is no JSON."""
    if not answer.body:
        return None
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return answer.body.decode("utf-8", "replace")


def _quoted(body: Any) -> str:
    """What an error says, in one line."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", body) if isinstance(inner, dict) else inner
    text = " ".join(str(body).split()) if body is not None else "nothing"
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."
