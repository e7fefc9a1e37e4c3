"""Whose request it is: what a client tells of it, and what follows where it tells nothing.

A trainer may tell the session, the group, the prompt's name, its step and its weight version: in
headers (`X-Session-ID`, `X-Steersman-Group`, ...), or in the body's field `steersman` (OpenAI's
client: `extra_body`), which is never sent on.  Where no group is told, requests for the same prompt
are one group while any of them is open; where no prompt is named, its content names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from steersman.estimators.errors import InvalidInputError

SESSION_HEADERS = ("X-Session-ID", "X-SMG-Routing-Key")
"""vLLM's name, and that of the routers of SGLang."""
MAX_NAME = 256
"""Characters of a name: they are kept, compared and written to the trace."""


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client tells of its request; the body's field `steersman` has these keys."""

    session: str = ""
    group: str = ""
    prompt: str = ""
    step: int | None = None
    weight_version: int | None = None
    info: bool = False
    """It wants a `steersman` block in the answer."""


_NOTHING = Told()
_HEADERS = {
    "group": "X-Steersman-Group",
    "prompt": "X-Steersman-Prompt",
    "step": "X-Steersman-Step",
    "weight_version": "X-Steersman-Weight-Version",
    "info": "X-Steersman-Info",
}


def told_by(headers: Mapping[str, str], body: Any) -> Told:
    """What headers and body tell; takes the field `steersman` out of `body`.

    Raises `InvalidInputError` for a field that is not known or of the wrong type: a name that is
    mistyped would scatter groups without anybody noticing.
    """
    values: dict[str, Any] = {}
    inside = isinstance(body, dict)
    for name in SESSION_HEADERS:
        if name in headers:
            values["session"] = headers[name]
            break
    else:
        if inside and isinstance(body.get("session_id"), str):
            values["session"] = body["session_id"]
    values |= {field: headers[name] for field, name in _HEADERS.items() if name in headers}
    block = body.pop("steersman", None) if inside else None
    if isinstance(block, bool):
        block = {"info": block}
    if block is not None and not isinstance(block, dict):
        raise InvalidInputError(f"steersman: valid: true, or an object with {_fields()}")
    if not (values or block):
        return _NOTHING
    try:
        told = msgspec.convert(values, Told, strict=False)
        if block:
            told = msgspec.structs.replace(told, **_checked(block))
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"steersman: {error}; valid fields: {_fields()}") from None
    for name in ("session", "group", "prompt"):
        if len(getattr(told, name)) > MAX_NAME:
            raise InvalidInputError(f"steersman: {name} has more than {MAX_NAME} characters")
    return told


def prompt_name(told: Told, prompt: Any) -> str:
    """The prompt's name: told, or a digest of its content."""
    if told.prompt:
        return told.prompt
    return blake2b(msgspec.json.encode(prompt), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Requests with the same key belong to one group."""

    name: str
    step: int


def _checked(block: dict[str, Any]) -> dict[str, Any]:
    """The block's fields, if they are valid."""
    told = msgspec.convert(block, Told)
    return {name: getattr(told, name) for name in block}


def _fields() -> str:
    return ", ".join(Told.__struct_fields__)
