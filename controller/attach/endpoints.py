"""Checks of what a trainer will speak to: the gateway, as the trainer may speak to it, and engines.

Nothing is changed by them.  Whether a route is there is asked with the wrong method, as the gateway
itself does when it meets an engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
from yarl import URL

from steersman.controller.attach.findings import Finding, State
from steersman.controller.attach.trainers import VLLM_ROUTES, Link, Token, Trainer
from steersman.controller.gateway.control import ENGINES_HEADER
from steersman.controller.gateway.state import STATE_PATH, GatewayState, decode_state
from steersman.estimators.errors import FleetError
from steersman.mechanisms.http_vllm.probe import Found, probe
from steersman.mechanisms.http_vllm.settings import HttpSettings
from steersman.mechanisms.http_vllm.wire import Wire

_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
LOOK_S = 5.0
"""For one answer."""


@dataclass(slots=True)
class Seen:
    """What the checks of a gateway and its engines have seen, beside their findings."""

    findings: list[Finding] = field(default_factory=list)
    state: GatewayState | None = None
    engines: list[Found] = field(default_factory=list)

    def note(self, check: str, state: State, words: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(check, state, words))


async def look_at_gateway(trainer: Trainer, url: str, token: str, seen: Seen) -> None:
    """As the trainer would come: with its token, or with none if it cannot send one."""
    base = URL(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    as_it = headers if trainer.token is Token.ONE else {}
    timeout = aiohttp.ClientTimeout(total=LOOK_S)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        try:
            status = await _status(client, base / "health", {})
        except _ERRORS as error:
            why = " ".join(str(error).split()) or type(error).__name__
            seen.note("gateway", State.FAIL, f"nothing answers at {url}: {why}")
            return
        if status != 200:
            words = f"{url}/health answers {status}: no engine is alive, or it is ending"
            seen.note("gateway", State.FAIL, words)
            return
        await _state(client, base, headers, seen)
        await _permissions(client, trainer, base, as_it, seen)
        if trainer.link in (Link.PATHS, Link.PORTS):
            await _shadows(client, trainer, base, as_it, seen)
    _headers(trainer, seen)


async def look_at_engines(trainer: Trainer, urls: Sequence[str], token: str, seen: Seen) -> None:
    """Each by itself, and whether they are alike."""
    async with Wire(HttpSettings(api_key=token)) as wire:
        for url in urls:
            base = URL(url)
            try:
                found = await probe(wire, base)
            except FleetError as error:
                seen.note("engine", State.FAIL, str(error))
                continue
            seen.engines.append(found)
            can = found.abilities
            words = f"{url}: {can.model}, up to {can.max_model_len} tokens"
            words += ", token ids" if can.token_ids else ", no token ids"
            words += ", aborts by id" if can.abort_path else ", no abort by id"
            seen.note("engine", State.OK, words)
            await _weights(wire, trainer, base, seen)
    names = {tuple(found.names) for found in seen.engines}
    if len(names) > 1:
        listed = " and ".join(sorted(", ".join(models) for models in names))
        seen.note("engines", State.FAIL, f"they serve different models: {listed}")


async def _state(
    client: aiohttp.ClientSession, base: URL, headers: dict[str, str], seen: Seen
) -> None:
    async with client.get(base.with_path(STATE_PATH), headers=headers) as answer:
        body = await answer.read()
    if answer.status in (401, 403):
        words = "it answers; its state needs its token (STEERSMAN_TOKEN, --token-file)"
        seen.note("gateway", State.WARN, words)
        return
    try:
        seen.state = state = decode_state(body)
    except msgspec.MsgspecError:
        words = f"what answers at {base} is no gateway of this version"
        seen.note("gateway", State.FAIL, words)
        return
    alive = [replica.name for replica in state.replicas if replica.alive]
    words = f"{len(alive)} of {len(state.replicas)} engines alive, {state.decider.state}"
    good = len(alive) == len(state.replicas) and state.decider.state == "enforcing"
    if state.decider.state != "enforcing":
        words += f" ({state.decider.why})" if state.decider.why else ""
    seen.note("gateway", State.OK if good else State.WARN, words)


async def _permissions(
    client: aiohttp.ClientSession, trainer: Trainer, base: URL, as_it: dict[str, str], seen: Seen
) -> None:
    sent = "with the token" if as_it else "without a token"
    status = await _status(client, base / "v1" / "models", as_it)
    if status != 200:
        seen.note("requests", State.FAIL, _refused(trainer, status, "requests", sent))
        return
    seen.note("requests", State.OK, f"taken from {trainer.title}, {sent}")
    if not trainer.routes:
        return
    status = await _status(client, base / "is_paused", as_it)
    if status in (401, 403):
        seen.note("control", State.FAIL, _refused(trainer, status, "control", sent))
    elif status == 200:
        seen.note("control", State.OK, f"pauses and weights are taken from it, {sent}")
    elif "/pause" in trainer.routes:
        words = "its engines have no trainer's routes: start them with VLLM_SERVER_DEV_MODE=1"
        seen.note("control", State.FAIL, words)
    else:
        words = f"open to {trainer.title}; the engines tell no pauses of their own ({status})"
        seen.note("control", State.OK, words)


def _refused(trainer: Trainer, status: int, what: str, sent: str) -> str:
    if status not in (401, 403):
        return f"{what} {sent} are answered {status}"
    if trainer.token is Token.NEVER:
        return (
            f"the gateway asks for a token, and {trainer.title}'s client sends none: "
            "let it listen on loopback without one, or with --insecure"
        )
    if status == 403:
        return "this token opens requests only, and control needs the admin token"
    return f"the gateway does not take {what} {sent} (--token-file, STEERSMAN_ADMIN_TOKEN)"


async def _shadows(
    client: aiohttp.ClientSession, trainer: Trainer, base: URL, as_it: dict[str, str], seen: Seen
) -> None:
    """The address of each engine at the gateway leads to that engine."""
    if seen.state is None:
        seen.note("addresses", State.SKIP, "the names of the engines are not known")
        return
    names, wrong = [replica.name for replica in seen.state.replicas], []
    for number, name in enumerate(names, 1):
        if trainer.link is Link.PATHS:
            at = base / "engines" / name / "health"
        else:
            at = base.with_port((base.port or 80) + number) / "health"
        try:
            async with client.get(at, headers=as_it) as answer:
                reached = answer.headers.get(ENGINES_HEADER)
        except _ERRORS:
            reached = None
        if reached != name:
            wrong.append(f"{at.parent} does not lead to {name}")
    if wrong:
        hint = "; set gateway.shadow_ports=true" if trainer.link is Link.PORTS else ""
        seen.note("addresses", State.FAIL, "; ".join(wrong) + hint)
        return
    kind = "paths" if trainer.link is Link.PATHS else "ports"
    seen.note("addresses", State.OK, f"{kind} of {', '.join(names)} lead to their engines")


def _headers(trainer: Trainer, seen: Seen) -> None:
    if trainer.session:
        words = f"it names conversations in {trainer.session}: they return to their engine's cache"
    else:
        words = "it names no conversations: later turns are placed like new requests"
    seen.note("headers", State.OK, words)


async def _weights(wire: Wire, trainer: Trainer, base: URL, seen: Seen) -> None:
    missing = []
    for route in trainer.routes:
        try:
            status = (await wire.call("GET", base.with_path(route))).status
        except _ERRORS:
            status = 0
        if status != 405:
            missing.append(route)
    if missing:
        words = f"{base} has no {', '.join(missing)}: {trainer.title} could not update its weights"
        if set(missing) <= set(VLLM_ROUTES):
            words += " (VLLM_SERVER_DEV_MODE=1?)"
        elif "/pause" not in missing:
            words += f" (is it a plain vLLM server, and not {trainer.title}'s own?)"
        seen.note("weights", State.FAIL, words)
    elif trainer.routes:
        seen.note("weights", State.OK, f"{base} has all {len(trainer.routes)} routes that it uses")
    if trainer.extension:
        await _extension(wire, trainer, base, seen)


async def _extension(wire: Wire, trainer: Trainer, base: URL, seen: Seen) -> None:
    try:
        body = await wire.look((base / "server_info").with_query(config_format="json"))
        told = msgspec.json.decode(body or b"null")
        loaded = told["vllm_config"]["parallel_config"]["worker_extension_cls"]
    except (*_ERRORS, msgspec.DecodeError, LookupError, TypeError):
        words = f"{base} does not tell its worker extension; it must be {trainer.extension}"
        seen.note("extension", State.SKIP, words)
        return
    good = trainer.extension in str(loaded)
    words = f"{base} has {loaded or 'no worker extension'}"
    if not good:
        words += f"; {trainer.title} needs {trainer.extension}"
    seen.note("extension", State.OK if good else State.FAIL, words)


async def _status(client: aiohttp.ClientSession, url: URL, headers: dict[str, str]) -> int:
    async with client.get(url, headers=headers) as answer:
        await answer.read()
        return answer.status
