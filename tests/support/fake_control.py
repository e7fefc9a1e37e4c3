"""The routes around the model: health, metrics, lists, and the trainer's control plane."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from support import fake_metrics
from support.fake_model import VOCAB, decode, encode, token_text
from support.fake_wire import BadRequestError, chat_prompt, wrong

if TYPE_CHECKING:
    from support.fake_vllm import FakeVllm

WEIGHT_ROUTES = (
    "update_weight_version",
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "reset_prefix_cache",
    "collective_rpc",
    "sleep",
    "wake_up",
)


class ControlRoutes:
    """Of one fake server."""

    def __init__(self, fake: "FakeVllm") -> None:
        self._fake = fake

    def routes(self) -> list[web.RouteDef]:
        """As the server was started."""
        get, post = web.get, web.post
        routes = [
            get("/v1/models", self._models),
            get("/health", self._health),
            get("/ping", self._empty),
            get("/load", self._load),
            get("/version", self._version),
            post("/tokenize", self._tokenize),
            post("/detokenize", self._detokenize),
        ]
        if self._fake.scale_out:
            routes.append(post("/inference/v1/abort_requests", self._scale_out_abort))
        if self._fake.areal:
            routes += [
                post("/areal_pause_generation", self._pause),
                post("/areal_continue_generation", self._resume),
                post("/areal_update_weights", self._weights),
                post("/areal_set_update_weight_meta", self._weights),
                post("/areal_update_weights_xccl", self._weights),
                post("/areal_init_weights_update_group", self._weights),
            ]
        if self._fake.metrics:
            routes.append(get("/metrics", self._metrics))
        if self._fake.dev:
            routes += [
                post("/abort_requests", self._dev_abort),
                post("/pause", self._pause),
                post("/resume", self._resume),
                get("/is_paused", self._is_paused),
                get("/weight_info", self._weight_info),
                get("/server_info", self._server_info),
                *(post(f"/{name}", self._weights) for name in WEIGHT_ROUTES),
            ]
        return routes

    async def _scale_out_abort(self, request: web.Request) -> web.Response:
        ids = (await json_of(request)).get("request_ids")
        if ids is None:
            raise BadRequestError("Missing 'request_ids' in request body", kind="Bad Request")
        self._fake.aborts.append(ids)
        self._fake.engine.abort(ids)
        return web.Response()

    async def _dev_abort(self, request: web.Request) -> web.Response:
        ids = (await json_of(request)).get("request_ids")
        self._fake.aborts.append(ids or [])
        return answer({"status": "aborted", "aborted": self._fake.engine.abort(ids or None)})

    async def _models(self, request: web.Request) -> web.Response:
        card = {
            "id": self._fake.model,
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "vllm",
            "root": self._fake.model,
            "parent": None,
            "max_model_len": self._fake.max_model_len,
            "permission": [],
        }
        return answer({"object": "list", "data": [card]})

    async def _empty(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._fake.ill else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._fake.engine.catch_up()
        told = fake_metrics.page(
            self._fake.engine,
            self._fake.metric_style,
            self._fake.model,
            self._fake.blocks,
            self._fake.block_size,
        )
        return web.Response(text=told, content_type="text/plain")

    async def _load(self, request: web.Request) -> web.Response:
        return answer({"server_load": self._fake.running + len(self._fake.engine.line)})

    async def _version(self, request: web.Request) -> web.Response:
        return answer({"version": "0.32.0"})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if "messages" in body:
            ids = chat_prompt(body)
        elif isinstance(body.get("prompt"), str):
            ids = encode(body["prompt"])
        else:
            raise wrong("prompt", "missing", None)
        words = [token_text(t) for t in ids] if body.get("return_token_strs") else None
        told = {"count": len(ids), "max_model_len": self._fake.max_model_len, "tokens": ids}
        return answer(told | {"token_strs": words})

    async def _detokenize(self, request: web.Request) -> web.Response:
        ids = (await json_of(request)).get("tokens")
        if not isinstance(ids, list) or any(type(t) is not int or t >= VOCAB for t in ids):
            raise wrong("tokens", "list_type", ids)
        return answer({"prompt": decode(ids)})

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise wrong("mode", "literal_error", mode)
        if mode == "abort":
            self._fake.engine.abort(None)
        elif mode == "wait":
            while self._fake.engine.running:
                await asyncio.sleep(0.001)
        self._fake.engine.freeze(paused=True)
        return answer({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self._fake.engine.freeze(paused=False)
        return answer({"status": "resumed"})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return answer({"is_paused": self._fake.engine.paused})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return answer({"weight_version": self._fake.engine.weight_version})

    async def _weights(self, request: web.Request) -> web.Response:
        body = await json_of(request) if request.can_read_body else {}
        self._fake.updates.append((request.path, body))
        version = body.get("new_version", body.get("weight_version"))
        if request.path == "/update_weight_version":
            if not isinstance(version, str):
                raise wrong("new_version", "string_type", version)
            self._fake.engine.weight_version = version
            return answer({"success": True, "new_version": version})
        if request.path == "/finish_weight_update" and version is not None:
            self._fake.engine.weight_version = version
        return answer({"message": "done"})

    async def _server_info(self, request: web.Request) -> web.Response:
        config = {"scheduler_config": {"max_num_seqs": self._fake.engine.max_num_seqs}}
        return answer({"vllm_config": config, "vllm_env": {}, "system_env": {}})


def answer(told: Any, status: int = 200) -> web.Response:
    """JSON as FastAPI writes it."""
    return web.Response(
        body=msgspec.json.encode(told), status=status, content_type="application/json"
    )


async def json_of(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise BadRequestError("Invalid JSON format", kind="Bad Request") from error
    if not isinstance(body, dict):
        raise BadRequestError("Request body must be a JSON object", kind="Bad Request")
    return body
