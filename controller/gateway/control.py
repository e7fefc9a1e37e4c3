"""The trainer's control plane: passed to the engines, answered as by one engine, and understood.

A call to the fleet goes to every living engine at once (`merging` says what one answer it gets); a
call to a shadow endpoint goes to its engine alone.  What only describes the engines, which are
alike, is asked of one of them.  Some of it means something here:

- pauses and new weights: see `understanding`;
- aborts: by the ids that clients know, wherever their requests are now;
- ranks: the workers of engine i take their ranks of a weight transfer after those of all engines
  before it, as if the fleet were one engine of `/get_world_size` workers.

A call is carried out to its end even if the trainer hangs up: half a pause is worse than none.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import ClientError, web
from aiohttp.typedefs import Handler

from steersman.controller.gateway.call import Call, fields_of
from steersman.controller.gateway.keys import DESK, SETTINGS
from steersman.controller.gateway.merging import merged
from steersman.controller.gateway.reply import error_response
from steersman.controller.gateway.security import DATA, WATCH, Scope, scope_of
from steersman.controller.gateway.shadow import (
    ANYTHING_ELSE,
    PREFIX,
    engine_by_port,
    engine_of,
    route_of,
)
from steersman.controller.gateway.understanding import Understanding
from steersman.estimators.errors import SteersmanError
from steersman.mechanisms.http_vllm.ask import Answer

if TYPE_CHECKING:
    from steersman.controller.gateway.desk import Desk

ALL_POST = (
    "/pause",
    "/resume",
    "/sleep",
    "/wake_up",
    "/release_kv_cache_memory",
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
    "/start_weight_update",
    "/start_draft_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/weight_checker",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/stop_profile",
)
"""Passed to every engine; so is the next."""
ALL_GET = ("/is_paused", "/is_sleeping", "/weight_info", "/get_world_size", "/load")
ANY = {
    "/v1/models": "GET",
    "/version": "GET",
    "/ping": "*",
    "/server_info": "GET",
    "/tokenizer_info": "GET",
    "/tokenize": "POST",
    "/detokenize": "POST",
}
"""Asked of one engine, in turn: all would say the same."""
ABORT = ("/abort_requests", "/inference/v1/abort_requests")
ENGINES_HEADER, DEAD_HEADER = "X-Steersman-Engines", "X-Steersman-Dead"
"""Who answered, and who could not be asked."""
TIMEOUT_SHARE = 0.9
"""Of the request's time, for the engines: what is left is for saying which one did not answer."""

log = logging.getLogger(__name__)


class ControlPlane:
    """What the handlers share."""

    def __init__(self, desk: "Desk", timeout_s: float) -> None:
        self._desk, self._timeout_s = desk, timeout_s
        self._turn = itertools.count()
        self._understanding = Understanding(desk)
        self._calls: set[asyncio.Task[web.Response]] = set()

    # Handlers

    async def everyone(self, request: web.Request) -> web.Response:
        """A call to all engines, or to the one that is meant."""
        engine = engine_of(request)
        if engine is not None:
            return await self.one(request)
        call, names = await Call.of(request), self._understanding.living()
        return await self._to_its_end(call, names) if names else _nobody()

    async def one(self, request: web.Request) -> web.Response:
        """A call to the engine that is meant, whatever it is."""
        name, known = engine_of(request), [info.name for info in self._desk.fleet.replicas]
        if name is None or name not in known:
            return error_response(404, f"unknown engine {name!r}; valid: {', '.join(known)}")
        return await self._to_its_end(await Call.of(request), [name])

    async def anyone(self, request: web.Request) -> web.Response:
        """A call that one engine answers for all."""
        if engine_of(request) is not None:
            return await self.one(request)
        call, names = await Call.of(request), self._understanding.living()
        if not names:
            return _nobody()
        start = next(self._turn) % len(names)
        for name in names[start:] + names[:start]:
            answer = await self._ask(name, call)
            if answer.status != 502:
                break
        return _response(answer, [name])

    async def abort(self, request: web.Request) -> web.Response:
        """End requests by the ids that clients know; without ids, all of them."""
        try:
            told = msgspec.json.decode(await request.read())
        except (msgspec.DecodeError, RecursionError):
            return error_response(400, "Invalid JSON format")
        ids = told.get("request_ids") if isinstance(told, dict) else told
        if not isinstance(told, dict) or not _is_ids(ids):
            return error_response(400, "request_ids must be a list of request ids")
        scale_out = route_of(request) == ABORT[1]
        if scale_out and ids is None:
            return error_response(400, "Missing 'request_ids' in request body")
        if scale_out:
            self._desk.abort(ids)
            return web.Response()
        if not ids and engine_of(request) is not None:
            return await self.one(request)
        found = self._desk.abort(ids or None)
        # engines count the ids they are given, known or not
        return web.json_response({"status": "aborted", "aborted": len(ids) if ids else found})

    async def finish_session(self, request: web.Request) -> web.Response:
        """A conversation is over (SkyRL and routers of vLLM tell that); unknown ones do not
        matter."""
        self._desk.arrivals.forget(request.query.get("session_id", ""))
        return web.json_response({"status": "ok"})

    async def health(self, request: web.Request) -> web.Response:
        """200 while requests are taken in and an engine lives to answer them."""
        if engine_of(request) is not None:
            return await self.one(request)
        return web.Response(
            status=200 if self._understanding.living() and not self._desk.draining else 503
        )

    # How a call is carried out

    async def _to_its_end(self, call: Call, names: Sequence[str]) -> web.Response:
        task = asyncio.create_task(self._carry_out(call, names))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _carry_out(self, call: Call, names: Sequence[str]) -> web.Response:
        self._understanding.before(call, names)
        ranked = await self._ranked(call, names)
        if isinstance(ranked, Mapping):
            asked = await asyncio.gather(*(self._ask(name, c) for name, c in ranked.items()))
            answers = dict(zip(ranked, asked, strict=True))
            self._understanding.after(call, answers)
            answer = merged(call.path, answers)
        else:
            answer = ranked
        if answer.status >= 500:
            log.warning("%s failed with %d", call.path, answer.status)
        return _response(answer, names, [] if len(names) == 1 else self._understanding.dead())

    async def _ask(self, name: str, call: Call) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer: Answer = await self._desk.fleet.request(
                    name,
                    call.method,
                    call.path,
                    body=call.body or None,
                    headers=call.headers,
                    params=call.params,
                )
                return answer
        except TimeoutError:
            why = f"{name} did not answer within {self._timeout_s:g} s"
        except (SteersmanError, ClientError, OSError) as error:
            why = f"{name} cannot be reached: {error}"
        return _failure(why)

    async def _ranked(self, call: Call, names: Sequence[str]) -> Mapping[str, Call] | Answer:
        """The call for each engine, with ranks numbered through the fleet; or what is wrong."""
        told = call.told.get("init_info")
        info: dict[str, Any] = told if isinstance(told, dict) else {}
        first = info.get("rank_offset")
        if call.path != "/init_weight_transfer_engine" or len(names) == 1 or type(first) is not int:
            return dict.fromkeys(names, call)
        question = Call("GET", "/get_world_size", (), b"", {})
        answers = await asyncio.gather(*(self._ask(name, question) for name in names))
        calls = {}
        for name, answer in zip(names, answers, strict=True):
            size = (fields_of(answer.body) if answer.status == 200 else {}).get("world_size")
            if type(size) is not int:
                why = f"{name} does not tell its world size: {answer.status}"
                return _failure(why)
            body = {**call.told, "init_info": {**info, "rank_offset": first}}
            calls[name] = replace(call, body=msgspec.json.encode(body))
            first += size
        return calls


def add_routes(app: web.Application) -> None:
    """Add the control plane, and the shadow endpoints of every route there is so far."""
    settings = app[SETTINGS]
    plane = ControlPlane(app[DESK], TIMEOUT_SHARE * settings.request_timeout_s)
    table: list[tuple[str, str, Handler]] = [
        (route.method, route.resource.canonical, route.handler)
        for route in app.router.routes()
        if route.resource is not None and route.resource.canonical in DATA
    ]
    own: list[tuple[str, str, Handler]] = [
        *(("POST", path, plane.everyone) for path in (*ALL_POST, *settings.control_paths)),
        *(("GET", path, plane.everyone) for path in ALL_GET),
        *((method, path, plane.anyone) for path, method in ANY.items()),
        *(("POST", path, plane.abort) for path in ABORT),
        ("POST", "/finish_session", plane.finish_session),
        ("GET", "/health", plane.health),
    ]
    for method, path, handler in own:
        app.router.add_route(method, path, handler)
    for method, path, handler in table + own:
        app.router.add_route(method, PREFIX + path, handler)
    app.router.add_route("*", PREFIX + "/{tail:.*}", plane.one)
    app.middlewares.append(_aim(plane, {path for _, path, _ in own}))


def _aim(plane: ControlPlane, own: set[str]) -> Any:
    """What neither output nor control is must not reach one engine of many unnoticed."""

    @web.middleware
    async def aim(request: web.Request, handler: Handler) -> web.StreamResponse:
        route, scope = route_of(request), scope_of(request)
        looks = route.startswith(WATCH)
        if engine_by_port(request) is not None and route not in own:
            return await (plane.one if scope is Scope.CONTROL or looks else handler)(request)
        if route == ANYTHING_ELSE and scope is Scope.CONTROL:
            why = f"unknown route {request.method} {request.path[:100]}; a trainer's own control "
            return error_response(404, f"{why}routes must be named in gateway.control_paths")
        return await handler(request)

    return aim


def _response(answer: Answer, names: Sequence[str], dead: Sequence[str] = ()) -> web.Response:
    kind = {"Content-Type": answer.content_type} if answer.body else {}
    headers = {**kind, ENGINES_HEADER: ", ".join(names)}
    if dead:
        headers[DEAD_HEADER] = ", ".join(dead)
    return web.Response(status=answer.status, body=answer.body, headers=headers)


def _failure(why: str) -> Answer:
    error = {"message": why, "type": "Bad Gateway", "param": None, "code": 502}
    return Answer(502, msgspec.json.encode({"error": error}))


def _nobody() -> web.Response:
    return error_response(503, "no engine is alive", {"Retry-After": "2"})


def _is_ids(ids: Any) -> bool:
    return ids is None or (isinstance(ids, list) and all(isinstance(i, str) for i in ids))
