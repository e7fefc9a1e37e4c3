"""One call of the trainer's control plane, and whether it brings new weights."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from steersman.controller.gateway.shadow import path_of

LOADS = re.compile(r"(?:load|update|receive|sync)\w*(?:weight|lora|adapter)", re.ASCII)
"""In a route or a method of `/collective_rpc`: weights are loaded."""
WHOLE = re.compile(r"reload|lora|adapter")
"""Of these: with one call they are all there; others may bring them tensor by tensor."""
ALIASES = {"/areal_pause_generation": "/pause", "/areal_continue_generation": "/resume"}
"""Trainers' own routes that do what one of vLLM's does: AReaL's server pauses by aborting, as
`/pause` does unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the control plane."""

    method: str
    path: str
    params: Sequence[tuple[str, str]]
    body: bytes
    headers: Mapping[str, str]

    @classmethod
    async def of(cls, request: web.Request) -> "Call":
        """As a client made it."""
        kind = request.headers.get("Content-Type")
        return cls(
            request.method,
            path_of(request),
            list(request.query.items()),
            await request.read(),
            {} if kind is None else {"Content-Type": kind},
        )

    @property
    def meaning(self) -> str:
        """vLLM's route that does the same; its own path where there is none."""
        return ALIASES.get(self.path, self.path)

    @property
    def told(self) -> dict[str, Any]:
        """The fields of its body; none where it has none."""
        return fields_of(self.body)

    def param(self, name: str, default: str) -> str:
        """A parameter of its address."""
        return dict(self.params).get(name, default)

    @property
    def loads(self) -> str:
        """What loads weights in it: a route or a method; "": nothing."""
        what = str(self.told.get("method")) if self.path == "/collective_rpc" else self.path
        return what if LOADS.search(what) is not None and "unload" not in what else ""


def fields_of(body: bytes) -> dict[str, Any]:
    """Of a JSON object; none where it is no such thing."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
