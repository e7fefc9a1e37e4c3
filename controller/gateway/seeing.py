"""What can be seen of a running gateway over HTTP: metrics, the dashboard, and its state as JSON.

The state is made at most once in `FRESH_S`, however many look.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from steersman.controller.gateway.dashboard import Page, load_page
from steersman.controller.gateway.keys import DESK
from steersman.controller.gateway.metrics import GatewayMetrics
from steersman.controller.gateway.shadow import path_of
from steersman.controller.gateway.snapshot import snapshot
from steersman.controller.gateway.state import STATE_PATH

if TYPE_CHECKING:
    from steersman.controller.gateway.desk import Desk

FRESH_S = 0.25
"""As old as the decisions that it shows; a snapshot of ten thousand samples takes some ms."""
PAGE_PATH = "/dashboard"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Seeing:
    """What the handlers share."""

    def __init__(self, desk: "Desk", wall: Callable[[], float] = time.time) -> None:
        self.desk, self.metrics, self._wall = desk, GatewayMetrics(desk), wall
        self.page: Page = load_page()
        self._state, self._made_s = b"", float("-inf")

    def state(self) -> bytes:
        """The state as JSON, at most `FRESH_S` old."""
        now_s = time.monotonic()
        if now_s - self._made_s >= FRESH_S:
            self._state = msgspec.json.encode(snapshot(self.desk, self._wall()))
            self._made_s = now_s
        return self._state


SEEING = web.AppKey("seeing", Seeing)


def add_routes(app: web.Application) -> None:
    """Add the routes, and the middleware that counts and times every request."""
    app[SEEING] = Seeing(app[DESK])
    app.middlewares.insert(0, measured)
    app.router.add_get("/metrics", metrics)
    app.router.add_get(PAGE_PATH, page)
    app.router.add_get(STATE_PATH, state)


@web.middleware
async def measured(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count and time the request, whatever becomes of it."""
    observe, started_s, status = request.app[SEEING].metrics.observe_request, time.monotonic(), 0
    try:
        response = await handler(request)
        status = response.status
    except web.HTTPException as answer:
        status = answer.status
        raise
    except Exception:
        status = 500
        raise
    finally:  # a cancelled request has no status: its client went away
        observe(path_of(request), status, time.monotonic() - started_s)
    return response


async def metrics(request: web.Request) -> web.Response:
    """For Prometheus."""
    body, content_type = request.app[SEEING].metrics.exposition(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def page(request: web.Request) -> web.Response:
    """The dashboard: one document that loads nothing but the state."""
    shown = request.app[SEEING].page
    return web.Response(
        body=shown.html,
        content_type="text/html",
        charset="utf-8",
        headers={
            "Content-Security-Policy": shown.policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        },
    )


async def state(request: web.Request) -> web.Response:
    """What the dashboard, `steersman top` and `steersman observe --gateway` show."""
    return web.Response(
        body=request.app[SEEING].state(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
