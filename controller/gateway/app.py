"""The gateway's HTTP application: routes, and the way of one request.

A request is read whole, told apart (which form, whose, a retry or not), begun at the desk and
answered: in one piece, or as a stream of what is written.  A client that goes away has its request
aborted, unless a retry of it waits for the same answer.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from steersman.controller.gateway import control, rewards, security, seeing
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.identity import Told, prompt_name, told_by
from steersman.controller.gateway.info import info_of
from steersman.controller.gateway.keys import DESK, RETRIES, SETTINGS
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.retries import Reply, Retries, RetryKey
from steersman.controller.gateway.room import OverloadedError
from steersman.controller.gateway.security import error_response
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.shadow import path_of
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.http_vllm.ask import Answer, Ask

FORWARDED = frozenset(
    {"x-session-id", "x-request-id", "x-data-parallel-rank", "traceparent", "tracestate"}
)
"""Headers that mean something to an engine and go with a request."""
PASSED_TOKENS = 256
"""Guess at what a request writes that is passed on unread."""

FAREWELL_S = 3.0
"""For answers on their way when the gateway ends.  A client that does not read them is cut off
after twice that: aiohttp waits for its handler, and once more when it is cancelled."""


def build_app(desk: Desk, settings: GatewayConfig) -> web.Application:
    """The application; whoever runs it opens and closes the desk."""
    app = web.Application(
        middlewares=security.middlewares(settings), client_max_size=settings.max_body_bytes
    )
    app[DESK], app[SETTINGS], app[RETRIES] = desk, settings, Retries()
    app.on_shutdown.append(_give_up)
    for path in FORMS:
        app.router.add_post(path, answer)
    control.add_routes(app)
    rewards.add_routes(app)
    seeing.add_routes(app)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def runner_of(app: web.Application) -> web.AppRunner:
    """Set up so that a request is given up when its client goes away."""
    return web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_S
    )


async def answer(request: web.Request) -> web.StreamResponse:
    """A request for output, or for anything that only an engine knows."""
    desk = request.app[DESK]
    raw = await request.read()
    try:
        question = question_of(request, raw, desk)
    except InvalidInputError as error:
        return error_response(400, str(error))
    retries, key = request.app[RETRIES], RetryKey.of(request.headers, path_of(request), raw)
    try:
        earlier = None if question.streamed else retries.find(key)
        if earlier is None:
            desk.begin(question)
    except InvalidInputError as error:
        return error_response(422, str(error))
    except OverloadedError as error:
        return error_response(error.status, str(error), {"Retry-After": str(error.retry_after_s)})
    if question.streamed:
        return await _stream(request, question, desk)
    if earlier is not None:
        desk.tally.joined += 1
        return _sent(await retries.wait(earlier))
    if key is None:
        return _sent(await _whole(question, desk))
    return _sent(await retries.wait(retries.run(key, _whole(question, desk))))


def question_of(request: web.Request, raw: bytes, desk: Desk) -> Question:
    """What the request asks, cut into asks."""
    headers, path = request.headers, path_of(request)
    body = _json(raw)
    told = told_by(headers, body)
    form = FORMS.get(path) if request.method == "POST" else None
    forwarded = {k: v for k, v in headers.items() if k.lower() in FORWARDED}
    if form is not None and isinstance(body, dict):
        asks, group_of = form.asks(body, raw, forwarded, desk.abilities)
    else:
        asks, group_of = [_passed_on(request, raw, forwarded)], [0]
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


async def _whole(question: Question, desk: Desk) -> Reply:
    try:
        await question.finished.wait()
    except asyncio.CancelledError:
        desk.abandon(question)
        raise
    if question.failure is not None:
        reply = _relayed(question.failure)
    elif question.asks[0].dialect is None:
        reply = _relayed(question.asks[0].answer or Answer(502, b""))
    else:
        assert question.form is not None
        if question.told.info:
            question.info = info_of(question, desk.pace.weight_version)
        reply = Reply(200, question.form.whole(question), {"Content-Type": "application/json"})
    question.release()
    return reply


async def _stream(request: web.Request, question: Question, desk: Desk) -> web.StreamResponse:
    """Send what is written as it is written; an error before that is an answer of its own."""
    try:
        await question.news.wait()
        if question.failure is not None:
            return _sent(_relayed(question.failure))
        if question.finished.is_set() and question.asks[0].dialect is None and not question.passed:
            return _sent(_relayed(question.asks[0].answer or Answer(502, b"")))
        response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        response.content_type, response.charset = "text/event-stream", "utf-8"
        await response.prepare(request)
        await _send(response, question, desk)
    except (asyncio.CancelledError, ConnectionError):
        desk.abandon(question)
        raise
    finally:
        question.release()
    await response.write_eof()
    return response


async def _send(response: web.StreamResponse, question: Question, desk: Desk) -> None:
    form, begun = question.form, [False] * len(question.asks)
    if question.asks[0].dialect is not None and form is not None:
        for event in form.opening(question):
            await response.write(event)
    while True:
        question.news.clear()
        events: list[bytes] = []
        while question.passed:
            events.append(question.passed.popleft())
        while question.written and form is not None:
            index, delta = question.written.popleft()
            events += form.chunk(question, index, delta, not begun[index])
            begun[index] = True
        if events:
            await response.write(b"".join(events))
        if question.finished.is_set() and not (question.written or question.passed):
            break
        await question.news.wait()
    if question.failure is not None:
        failure = question.failure.body
        await response.write(b"data: " + failure.replace(b"\n", b" ") + b"\n\ndata: [DONE]\n\n")
    elif question.asks[0].dialect is not None and form is not None:
        if question.told.info:
            question.info = info_of(question, desk.pace.weight_version)
        await response.write(b"".join(form.closing(question)))


async def _give_up(app: web.Application) -> None:
    """Nobody will ask for what is still under way."""
    await app[RETRIES].close()


def _relayed(answer: Answer) -> Reply:
    return Reply(answer.status, answer.body, {"Content-Type": answer.content_type})


def _sent(reply: Reply) -> web.Response:
    return web.Response(status=reply.status, body=reply.body, headers=reply.headers)


def _passed_on(request: web.Request, raw: bytes, headers: Mapping[str, str]) -> Ask:
    path = path_of(request, query=True)
    kept = {**headers, "Content-Type": request.headers.get("Content-Type", "application/json")}
    return Ask(None, path, raw, kept, PASSED_TOKENS, method=request.method, continuable=False)


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
