"""A scene behind HTTP, with the routes that viewers use and, if asked, a token."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from support.gateway_scene import Scene

from steersman.controller.gateway import seeing
from steersman.controller.gateway.keys import DESK

UNIX_S = 1.79e9
"""Wall clock when a scene begins."""


def app_of(scene: Scene, token: str = "") -> web.Application:
    """Whatever is asked shows the scene as it is then; with a `token`, the state needs it."""

    @web.middleware
    async def guarded(request: web.Request, handler: Callable[..., Awaitable[Any]]) -> Any:
        wrong = request.headers.get("Authorization") != f"Bearer {token}"
        if token and request.path == "/dashboard/state" and wrong:
            raise web.HTTPUnauthorized
        return await handler(request)

    app = web.Application(middlewares=[guarded])
    app[DESK] = scene  # type: ignore[misc]
    seeing.add_routes(app)
    app[seeing.SEEING] = seeing.Seeing(scene, lambda: UNIX_S + scene.now_s())  # type: ignore[arg-type]
    return app


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Its address while it runs."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
