"""A request for output, whichever way it came in: what it asks, and what it is answered."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Self

import msgspec
from aiohttp import web

from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.identity import Told, prompt_name, told_by
from steersman.controller.gateway.info import info_of
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.reply import Reply, refusal
from steersman.controller.gateway.room import OverloadedError
from steersman.controller.gateway.security import unexpected
from steersman.controller.gateway.shadow import path_of
from steersman.mechanisms.http_vllm.ask import Answer, Ask

FORWARDED = frozenset(
    {"x-session-id", "x-request-id", "x-data-parallel-rank", "traceparent", "tracestate"}
)
"""Headers that mean something to an engine and go with a request."""
PASSED_TOKENS = 256
"""Guess at what a request writes that is passed on unread."""


class Asked(msgspec.Struct, frozen=True):
    """A request as it came in, but for its body."""

    method: str
    path: str
    """As if it came to the fleet."""
    target: str
    """The same with its query."""
    headers: Mapping[str, str]
    """Their names may be written in any way."""

    @classmethod
    def of(cls, request: web.Request) -> Self:
        """By aiohttp."""
        return cls(request.method, path_of(request), path_of(request, query=True), request.headers)


def question_of(asked: Asked, raw: bytes, desk: Desk) -> Question:
    """What the request asks, cut into asks; `raw` is its body.

    Raises `InvalidInputError` where it tells wrong things of itself.
    """
    headers, path = asked.headers, asked.path
    body = _json(raw)
    told = told_by(headers, body)
    form = FORMS.get(path) if asked.method == "POST" else None
    forwarded = {k: v for k, v in headers.items() if k.lower() in FORWARDED}
    if form is not None and isinstance(body, dict):
        asks, group_of = form.asks(body, raw, forwarded, desk.abilities)
    else:
        asks, group_of = [_passed_on(asked, raw, forwarded)], [0]
    question = Question(
        form=form,
        request_id=_request_id(headers, body),
        path=path,
        body=body,
        asks=asks,
        group_of=group_of,
        prompts=_prompt_names(told, body, max(group_of) + 1),
        streamed=isinstance(body, dict) and body.get("stream") is True,
        created_unix_s=int(time.time()),
        told=told,
    )
    if question.streamed:
        question.listen()
    return question


def reply_of(question: Question, desk: Desk) -> Reply:
    """The answer to a request that has finished; lets go of what was written."""
    if question.failure is not None:
        reply = relayed(question.failure)
    elif question.asks[0].dialect is None:
        reply = relayed(question.asks[0].answer or Answer(502, b""))
    else:
        assert question.form is not None
        if question.told.info:
            question.info = info_of(question, desk.pace.weight_version)
        reply = Reply(200, question.form.whole(question))
    question.release()
    return reply


def final_reply(question: Question, desk: Desk) -> Reply:
    """The same, whatever happens: for who cannot be told of an error in another way."""
    try:
        return reply_of(question, desk)
    except Exception as error:
        return unexpected(question.path, error)


def overloaded(error: OverloadedError) -> Reply:
    """There is no room; when to come back."""
    return refusal(error.status, str(error), {"Retry-After": str(error.retry_after_s)})


def relayed(answer: Answer) -> Reply:
    """An engine's own words."""
    return Reply(answer.status, answer.body, {"Content-Type": answer.content_type})


def _passed_on(asked: Asked, raw: bytes, headers: Mapping[str, str]) -> Ask:
    kept = {**headers, "Content-Type": asked.headers.get("Content-Type", "application/json")}
    return Ask(None, asked.target, raw, kept, PASSED_TOKENS, method=asked.method, continuable=False)


def _json(raw: bytes) -> Any:
    """The body's value; None where it is not JSON: an engine will say so."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _request_id(headers: Mapping[str, str], body: Any) -> str:
    told = headers.get("X-Request-Id")
    if told is None and isinstance(body, dict) and isinstance(body.get("request_id"), str):
        told = body["request_id"]
    return told if told is not None else secrets.token_hex(16)


def _prompt_names(told: Told, body: Any, prompts: int) -> list[str]:
    content = body
    if isinstance(body, dict):
        keys = ("prompt", "messages", "token_ids")
        content = next((body[key] for key in keys if key in body), body)
    if prompts == 1:
        return [prompt_name(told, content)]
    names = [prompt_name(told, part) for part in content]
    return [f"{name}/{i}" for i, name in enumerate(names)] if told.prompt else names
