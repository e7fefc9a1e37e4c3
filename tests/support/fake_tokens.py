"""The routes that write tokens: completions, chats, tokens in and tokens out."""

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from support.fake_engine import Piece, Stream
from support.fake_wire import (
    BadRequestError,
    ChatForm,
    CompletionForm,
    Form,
    GenerateForm,
    chat_prompt,
    error_body,
    prompts_of,
    streams_of,
    whole_number,
    wrong,
)

if TYPE_CHECKING:
    from support.fake_vllm import FakeVllm

_JSON = msgspec.json.Encoder()


class TokenRoutes:
    """Of one fake server."""

    def __init__(self, fake: "FakeVllm") -> None:
        self._fake = fake

    def routes(self) -> list[web.RouteDef]:
        """As the server was started."""
        routes = [
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chat),
        ]
        if self._fake.scale_out:
            routes.append(web.post("/inference/v1/generate", self._generate))
        return routes

    async def _body(self, request: web.Request) -> dict[str, Any]:
        """The JSON of a request for tokens, once it has passed the knobs."""
        if self._fake.fails > 0:
            self._fake.fails -= 1
            raise BadRequestError("it failed", kind="InternalServerError", status=500)
        if self._fake.overloaded:
            raise BadRequestError("overloaded", kind="ServiceUnavailableError", status=503)
        if request.content_type != "application/json":
            raise BadRequestError(
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                kind="Bad Request",
            )
        try:
            body = msgspec.json.decode(await request.read())
        except msgspec.DecodeError as error:
            raise BadRequestError(
                f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{error}'}}",
                "body",
                kind="Bad Request",
            ) from error
        if not isinstance(body, dict):
            raise wrong("", "dict_type", body)
        if len(self._fake.asked) < self._fake.keep_asked:
            self._fake.asked.append((request.path, body))
        model = body.get("model")
        if model not in (None, self._fake.model):
            raise BadRequestError(
                f"The model `{model}` does not exist. Valid aliases: {self._fake.model}.",
                "model",
                kind="NotFoundError",
                status=404,
            )
        if body.get("stream_options") and not body.get("stream"):
            raise BadRequestError(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "stream_options",
            )
        return body

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        prompts = prompts_of(body)
        name = f"cmpl-{_id(request, body)}"
        logprobs = body.get("logprobs")
        if logprobs is not None and (type(logprobs) is not int or logprobs < 0):
            raise BadRequestError("`logprobs` must be a positive value or -1.", "logprobs")
        streams = streams_of(
            body,
            prompts,
            [f"{name}-{i}" for i in range(len(prompts))],
            whole_number(body, "max_tokens", 16, 1),
            max_model_len=self._fake.max_model_len,
            streamed=bool(body.get("stream")),
            wants_logprobs=logprobs is not None,
        )
        return await self._answer(request, CompletionForm, body, name, streams)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        prompt = chat_prompt(body)
        name = f"chatcmpl-{_id(request, body)}"
        most = self._fake.max_model_len - len(prompt)
        asked = body.get("max_completion_tokens") or whole_number(body, "max_tokens", most, 1)
        streams = streams_of(
            body,
            [prompt],
            [name],
            asked,
            max_model_len=self._fake.max_model_len,
            streamed=bool(body.get("stream")),
            wants_logprobs=bool(body.get("logprobs")),
        )
        return await self._answer(request, ChatForm, body, name, streams)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        prompt, sampling = body.get("token_ids"), body.get("sampling_params")
        if not isinstance(prompt, list) or not prompt or any(type(t) is not int for t in prompt):
            raise wrong("token_ids", "list_type", prompt)
        if not isinstance(sampling, dict):
            raise wrong("sampling_params", "missing", sampling)
        name = f"generate-tokens-{_id(request, body)}"
        streams = streams_of(
            sampling,
            [prompt],
            [name],
            whole_number(sampling, "max_tokens", self._fake.max_model_len - len(prompt), 1),
            max_model_len=self._fake.max_model_len,
            streamed=bool(body.get("stream")),
            wants_logprobs=sampling.get("logprobs") is not None,
        )
        return await self._answer(request, GenerateForm, body, name, streams)

    async def _answer(
        self,
        request: web.Request,
        form_of: type[Form],
        body: dict[str, Any],
        name: str,
        streams: list[Stream],
    ) -> web.StreamResponse:
        samples = len(streams) // len({id(s.prompt) for s in streams})
        form = form_of(body, name, self._fake.model, int(time.time()), streams, samples)
        if body.get("stream"):
            return await self._stream(request, form)
        if self._fake.drops:
            await self._drop(request, self._fake.drops.pop(0), streams[0])
        pieces = await asyncio.gather(*(self._whole(stream) for stream in streams))
        return web.Response(body=_JSON.encode(form.whole(pieces)), content_type="application/json")

    async def _whole(self, stream: Stream) -> Piece:
        last: Piece | None = None
        async for pieces in self._fake.engine.run(stream):
            last = pieces[-1]
        assert last is not None
        return last

    async def _drop(self, request: web.Request, tokens: int, stream: Stream) -> None:
        """Write so many tokens and cut the connection."""
        stream.max_tokens = max(1, tokens)
        await self._whole(stream)
        await cut(request)

    async def _stream(self, request: web.Request, form: Form) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Request-Id": "fake"}
        )
        drop = self._fake.drops.pop(0) if self._fake.drops else None
        error = self._fake.errors.pop(0) if self._fake.errors else None
        await response.prepare(request)
        if opening := form.opening():
            await response.write(b"".join(map(_event, opening)))

        async def one(stream: Stream) -> bool:
            async for pieces in self._fake.engine.run(stream):
                told = [_event(form.chunk(stream, piece)) for piece in pieces]
                await response.write(b"".join(told))
                if drop is not None and form.written >= drop:
                    await cut(request)
                if error is not None and form.written >= error:
                    return False
            return True

        if len(form.streams) == 1:
            good = await one(form.streams[0])
        else:
            good = all(await asyncio.gather(*(one(stream) for stream in form.streams)))
        last = b""
        if not good:
            last = _event(error_body("it broke", "InternalServerError", 500))
        elif (form.body.get("stream_options") or {}).get("include_usage"):
            last = _event(form.closing())
        await response.write(last + b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _id(request: web.Request, body: dict[str, Any]) -> str:
    return request.headers.get("X-Request-Id") or body.get("request_id") or uuid.uuid4().hex


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _JSON.encode(chunk) + b"\n\n"


async def cut(request: web.Request) -> None:
    """Break the connection in the middle of the answer; returns never."""
    if request.transport is not None:
        request.transport.abort()
    await asyncio.Event().wait()
