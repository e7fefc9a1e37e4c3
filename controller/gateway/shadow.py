"""Whom a request means: the fleet as a whole, or one engine behind its shadow endpoint.

A trainer whose one list of addresses carries requests and weights alike needs one address per
engine.  There are two kinds: paths (`/engines/engine-0/pause`), and ports (`gateway.shadow_ports`)
for trainers that take hosts and ports only.  Requests for text are steered wherever they come in;
all the rest goes to the engine that is meant.
"""

from aiohttp import web

PREFIX = "/engines/{engine}"
"""Of the routes of one engine."""
ANYTHING_ELSE = "/{path}"
"""The route of what the gateway does not know."""
PORTS: web.AppKey[dict[int, str]] = web.AppKey("shadow_ports", dict)
"""Port -> engine, of the ports that belong to one engine."""


def engine_by_port(request: web.Request) -> str | None:
    """The engine whose own port the request came in at."""
    ports = request.app.get(PORTS)
    if not ports:
        return None
    address = request.get_extra_info("sockname")
    return ports.get(address[1]) if isinstance(address, tuple) else None


def engine_of(request: web.Request) -> str | None:
    """The engine that is meant; None: the fleet."""
    return request.match_info.get("engine") or engine_by_port(request)


def route_of(request: web.Request) -> str:
    """The request's route, as if it came to the fleet ("/v1/completions"); "": it has none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical.removeprefix(PREFIX)


def path_of(request: web.Request, *, query: bool = False) -> str:
    """The request's path, as if it came to the fleet; with its query, if that is wanted."""
    path, engine = request.path_qs if query else request.path, request.match_info.get("engine")
    return path if engine is None else path.removeprefix(f"/engines/{engine}")
