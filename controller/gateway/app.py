"""The gateway's HTTP application: routes, and the way of one request.

A request is read whole, told apart (which form, whose, a retry or not), begun at the desk and
answered: in one piece, or as a stream of what is written.  A client that goes away has its request
aborted, unless a retry of it waits for the same answer.
"""

import asyncio
from typing import cast

from aiohttp import web

from steersman.controller.gateway import control, rewards, security, seeing
from steersman.controller.gateway.asked import (
    Asked,
    final_reply,
    overloaded,
    question_of,
    reply_of,
)
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.forms import FORMS
from steersman.controller.gateway.keys import DESK, RETRIES, SETTINGS
from steersman.controller.gateway.lane import FAREWELL_S, Lanes
from steersman.controller.gateway.outflow import Outflow
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.reply import Reply, error_response, response_of
from steersman.controller.gateway.retries import Retries, RetryKey
from steersman.controller.gateway.room import OverloadedError
from steersman.controller.gateway.settings import GatewayConfig
from steersman.estimators.errors import InvalidInputError


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


class Runner(web.AppRunner):
    """Lets connections begin in a quick lane."""

    def __init__(self, app: web.Application) -> None:
        # a request is given up when its client goes away
        super().__init__(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=FAREWELL_S
        )
        settings = app[SETTINGS]
        tokens = security.Tokens.load(settings)
        self.lanes = Lanes(app[DESK], settings, tokens, app[RETRIES])
        app.on_shutdown.append(lambda _: self.lanes.close())

    async def setup(self) -> None:
        """Ready for sites."""
        await super().setup()
        self.lanes.behind = cast(web.Server, super().server)

    @property
    def server(self) -> web.Server | None:
        """What makes a protocol for each connection."""
        # sites only call it
        return None if super().server is None else cast(web.Server, self.lanes)


async def answer(request: web.Request) -> web.StreamResponse:
    """A request for output, or for anything that only an engine knows."""
    desk = request.app[DESK]
    raw = await request.read()
    asked = Asked.of(request)
    try:
        question = question_of(asked, raw, desk)
    except InvalidInputError as error:
        return error_response(400, str(error))
    retries, key = request.app[RETRIES], RetryKey.of(asked.headers, asked.path, raw)
    try:
        earlier = None if question.streamed else retries.find(key)
        if earlier is None:
            desk.begin(question)
    except InvalidInputError as error:
        return error_response(422, str(error))
    except OverloadedError as error:
        return response_of(overloaded(error))
    if question.streamed:
        return await _stream(request, question, desk)
    if earlier is not None:
        desk.tally.joined += 1
        return response_of(await retries.wait(earlier))
    if key is None:
        return response_of(await _whole(question, desk))
    entry = retries.begin(key, lambda: desk.abandon(question))
    question.when_finished(lambda question: entry.resolve(final_reply(question, desk)))
    return response_of(await retries.wait(entry))


async def _whole(question: Question, desk: Desk) -> Reply:
    try:
        await question.finished.wait()
    except asyncio.CancelledError:
        desk.abandon(question)
        raise
    return reply_of(question, desk)


async def _stream(request: web.Request, question: Question, desk: Desk) -> web.StreamResponse:
    """Send what is written as it is written; an error before that is an answer of its own."""
    outflow, news = Outflow(question, desk), asyncio.Event()
    question.when_told(news.set)
    try:
        await news.wait()
        if (instead := outflow.instead()) is not None:
            return response_of(instead)
        news.clear()
        events = outflow.take()
        response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        response.content_type, response.charset = "text/event-stream", "utf-8"
        await response.prepare(request)
        while True:
            if events:
                await response.write(events)
            if outflow.over:
                break
            await news.wait()
            news.clear()
            events = outflow.take()
    except BaseException:  # its client went away, its time is over, or a bug
        desk.abandon(question)
        raise
    finally:
        question.release()
    await response.write_eof()
    return response


async def _give_up(app: web.Application) -> None:
    """Nobody will ask for what is still under way."""
    app[RETRIES].close()
