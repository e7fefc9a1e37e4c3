"""What an engine is found to offer.

Whether a route is there is asked with the wrong method: a route that exists answers 405.  (With the
right one, an empty request to abort would abort everything.)  Whether it splits chats into
reasoning and content is in its configuration; where it does not tell that, it is asked for one
token, whose usage says so.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from steersman.estimators.errors import FleetError
from steersman.mechanisms.http_vllm.ask import Abilities
from steersman.mechanisms.http_vllm.wire import Wire

FIRST_TOKEN_S = 10.0
"""For one token of an engine that may be busy."""
_TELLS_TOKEN_IDS = (0, 10, 2)
"""First vLLM version with `return_token_ids`."""
_STEADY_USAGE = (0, 32)
"""vLLM version that tells of cached tokens even where there are none; earlier ones may not."""


@dataclass(frozen=True, slots=True)
class Found:
    """An engine as it answered."""

    abilities: Abilities
    models: list[dict[str, Any]]
    """`data` of `/v1/models`."""
    weight_version: int | None = None
    """None: it has none, or one that is no number."""
    max_num_seqs: int = 0
    """0: not told."""
    dtype: str = ""

    @property
    def names(self) -> list[str]:
        """Its base models; adapters come and go."""
        return sorted(str(card.get("id")) for card in self.models if not card.get("parent"))


async def probe(wire: Wire, base: URL) -> Found:
    """Raises `FleetError` in one line where nothing answers there as vLLM does."""
    models = await _models(wire, base)
    generate, abort, dev_abort, info, version, server = await asyncio.gather(
        _has(wire, base / "inference/v1/generate"),
        _has(wire, base / "inference/v1/abort_requests"),
        _has(wire, base / "abort_requests"),
        _json(wire, base / "weight_info"),
        _json(wire, base / "version"),
        _json(wire, (base / "server_info").with_query(config_format="json")),
    )
    developer = info is not None
    first = next((card for card in models if not card.get("parent")), models[0])
    config = (server or {}).get("vllm_config")
    config = config if isinstance(config, dict) else {}
    name = str(first.get("id", ""))
    reasons = bool(_told(config, "structured_outputs_config", "reasoning_parser"))
    if not config:
        reasons = await _reasons(wire, base, name)
    return Found(
        Abilities(
            generate=generate,
            token_ids=_version(version) >= _TELLS_TOKEN_IDS,
            reasoning_parser=reasons,
            abort_path=_abort_path(abort, developer and dev_abort),
            developer=developer,
            model=name,
            max_model_len=int(first.get("max_model_len") or 0),
            steady_usage=_version(version) >= _STEADY_USAGE,
        ),
        models,
        weight_version=as_version((info or {}).get("weight_version")),
        max_num_seqs=int(_told(config, "scheduler_config", "max_num_seqs") or 0),
        dtype=str(_told(config, "model_config", "dtype") or "").removeprefix("torch."),
    )


def as_version(told: Any) -> int | None:
    """A weight version as engines tell it: a text, of a number if the trainer gave one."""
    text = str(told)
    return int(text) if text.isdecimal() else None


async def _models(wire: Wire, base: URL) -> list[dict[str, Any]]:
    try:
        answer = await wire.call("GET", base / "v1/models")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise FleetError(f"no engine answers at {base}: {_reason(error)}") from error
    if answer.status != 200:
        raise FleetError(f"{base}/v1/models answers {answer.status}: is it a vLLM server?")
    try:
        models = msgspec.json.decode(answer.body)["data"]
        if models and all(isinstance(card, dict) for card in models):
            return list(models)
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    raise FleetError(f"{base}/v1/models lists no model: is it a vLLM server?")


async def _reasons(wire: Wire, base: URL, model: str) -> bool:
    """Whether it counts reasoning tokens; an engine that does not answer may."""
    messages = [{"role": "user", "content": "."}]
    body = {"model": model, "messages": messages, "max_tokens": 1}
    try:
        answer = await wire.call(
            "POST",
            base / "v1/chat/completions",
            msgspec.json.encode(body),
            {"Content-Type": "application/json"},
            timeout_s=FIRST_TOKEN_S,
        )
        usage = msgspec.json.decode(answer.body).get("usage")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return True
    except (msgspec.DecodeError, AttributeError):
        return False
    return isinstance(usage, dict) and usage.get("completion_tokens_details") is not None


async def _has(wire: Wire, url: URL) -> bool:
    try:
        return (await wire.call("GET", url)).status == 405
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def _json(wire: Wire, url: URL) -> dict[str, Any] | None:
    try:
        body = await wire.look(url)
        told = None if body is None else msgspec.json.decode(body)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
        return None
    return told if isinstance(told, dict) else None


def _told(config: dict[str, Any], section: str, name: str) -> Any:
    inside = config.get(section)
    return inside.get(name) if isinstance(inside, dict) else None


def _abort_path(scale_out: bool, developer: bool) -> str:
    if scale_out:
        return "/inference/v1/abort_requests"
    return "/abort_requests" if developer else ""


def _version(told: dict[str, Any] | None) -> tuple[int, ...]:
    """Builds between releases count as new."""
    parts = str((told or {}).get("version", "")).split(".")[:3]
    numbers = tuple(int(part) for part in parts if part.isdecimal())
    return numbers if len(numbers) == len(parts) else (1,)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
