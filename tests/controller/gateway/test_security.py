"""Who gets in, with what, and how much: nothing without a token but the health check."""

import asyncio
import base64
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.certificates import own_certificate

from steersman.controller.gateway import security
from steersman.controller.gateway.security import Tokens
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.shadow import PREFIX
from steersman.estimators.errors import InvalidInputError

BOTH = {"STEERSMAN_TOKEN": "for-data", "STEERSMAN_ADMIN_TOKEN": "for-control"}
PROMPT = "the secret of the prompt"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _echo(request: web.Request) -> web.Response:
    return web.Response(text=f"{len(await request.read())}")


def _application(
    settings: GatewayConfig, environ: dict[str, str], extra: dict[str, Handler]
) -> web.Application:
    tokens = Tokens.load(settings, environ)
    app = web.Application(
        middlewares=security.middlewares(settings, tokens),
        client_max_size=settings.max_body_bytes,
    )
    known = ("/health", "/v1/completions", "/pause", "/metrics", "/dashboard/view.js")
    for path in (*known, f"{PREFIX}/v1/completions", f"{PREFIX}/{{tail:.*}}"):
        app.router.add_route("*", path, _echo)
    for path, handler in extra.items():
        app.router.add_route("*", path, handler)
    app.router.add_route("*", "/{path:.*}", _echo)
    return app


@asynccontextmanager
async def gateway(
    settings: GatewayConfig | None = None,
    environ: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    **extra: Handler,
) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway without engines, and a client of it."""
    settings = settings if settings is not None else GatewayConfig()
    paths = {f"/{name}": handler for name, handler in extra.items()}
    runner = web.AppRunner(_application(settings, environ or {}, paths), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    base = f"http{'s' if tls else ''}://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(base) as client:
            yield client
    finally:
        await runner.cleanup()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"x:{token}".encode()).decode()}


async def status(
    client: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str]
) -> int:
    async with client.request(method, path, headers=headers) as response:
        return response.status


EVERYWHERE = [
    ("POST", "/v1/completions"),
    ("POST", "/pause"),
    ("GET", "/metrics"),
    ("GET", "/dashboard/view.js"),
    ("POST", "/engines/engine-0/pause"),
    ("POST", "/engines/engine-0/v1/completions"),
    ("GET", "/engines/engine-0/health"),
    ("POST", "/v1/embeddings"),
    ("GET", "/nowhere"),
    ("DELETE", "/health/"),
    ("OPTIONS", "/pause"),
]


async def test_without_the_token_only_health_answers() -> None:
    async with gateway(environ=BOTH) as client:
        assert await status(client, "GET", "/health", {}) == 200
        for headers in ({}, bearer("wrong"), bearer(""), {"Authorization": "for-data"}):
            for method, path in EVERYWHERE:
                async with client.request(method, path, headers=headers) as response:
                    assert response.status == 401, (method, path, headers)
                    challenges = response.headers.getall("WWW-Authenticate")
                    assert challenges[0] == 'Bearer realm="steersman"'
                    body = await response.json()
                    assert body["error"]["code"] == 401


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_the_token_of_control_opens_everything(method: str, path: str) -> None:
    async with gateway(environ=BOTH) as client:
        assert await status(client, method, path, bearer("for-control")) == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/completions", 200),
        ("POST", "/engines/engine-0/v1/completions", 200),
        ("GET", "/metrics", 200),
        ("POST", "/v1/embeddings", 200),
        ("GET", "/v1/models/org@rev:1", 200),
        ("POST", "/pause", 403),
        ("POST", "/engines/engine-0/pause", 403),
        ("POST", "/engines/engine-0/v1/embeddings", 403),
        ("POST", "/scale_elastic_ep", 403),
        ("POST", "/pause/", 403),
        ("POST", "//pause", 403),
        ("POST", "/v1/%2e%2e/pause", 403),
        ("POST", "/v1/..%2fpause", 403),
        ("POST", "/v1/%252e%252e/pause", 403),
        ("POST", "/v1/x/", 403),
    ],
)
async def test_the_token_of_data_opens_no_control(method: str, path: str, expected: int) -> None:
    async with gateway(environ=BOTH) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)  # type: ignore[union-attr]
        request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(f"{request}Authorization: Bearer for-data\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.split()[1] == str(expected).encode()


async def test_control_is_closed_where_only_requests_have_a_token() -> None:
    async with (
        gateway(environ={"STEERSMAN_TOKEN": "for-data"}) as client,
        client.post("/pause", headers=bearer("for-data")) as response,
    ):
        assert response.status == 403
        assert "the gateway has none (STEERSMAN_ADMIN_TOKEN" in await response.text()


async def test_requests_need_a_token_too_where_only_control_has_one() -> None:
    async with gateway(environ={"STEERSMAN_ADMIN_TOKEN": "for-control"}) as client:
        assert await status(client, "POST", "/v1/completions", {}) == 401
        assert await status(client, "POST", "/v1/completions", bearer("for-control")) == 200


async def test_without_any_token_set_everything_is_open() -> None:
    async with gateway() as client:
        for method, path in EVERYWHERE:
            assert await status(client, method, path, {}) == 200


async def test_a_browser_may_look_with_the_token_as_its_password_and_do_nothing_else() -> None:
    async with gateway(environ=BOTH) as client:
        async with client.get("/dashboard/view.js") as response:
            offered = response.headers.getall("WWW-Authenticate")
        assert offered[1] == 'Basic realm="steersman"'
        assert await status(client, "GET", "/dashboard/view.js", basic("for-data")) == 200
        assert await status(client, "GET", "/dashboard/view.js", basic("wrong")) == 401
        broken = {"Authorization": "Basic ???"}
        assert await status(client, "GET", "/dashboard/view.js", broken) == 401
        assert await status(client, "POST", "/pause", basic("for-control")) == 401
        assert await status(client, "POST", "/v1/completions", basic("for-data")) == 401


async def test_a_page_of_another_site_cannot_make_a_browser_steer() -> None:
    async with gateway() as client:
        own = str(client._base_url).rstrip("/")
        assert await status(client, "POST", "/pause", {"Origin": "http://evil.example"}) == 403
        assert await status(client, "POST", "/pause", {"Origin": "null"}) == 403
        assert await status(client, "POST", "/pause", {"Origin": "http://["}) == 403
        assert await status(client, "POST", "/pause", {"Origin": own}) == 200


async def test_a_body_that_is_too_large_is_refused_before_and_while_it_comes() -> None:
    async with gateway(GatewayConfig(max_body_bytes=1000)) as client:

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b"x" * 100

        for body, expected in ((b"x" * 1000, 200), (b"x" * 1001, 413), (pieces(), 413)):
            async with client.post("/v1/completions", data=body) as response:
                assert response.status == expected
                if expected == 413:
                    assert "gateway.max_body_bytes, 1,000 bytes" in await response.text()


async def test_headers_that_are_too_large_are_refused() -> None:
    async with gateway() as client:
        assert await status(client, "GET", "/health", {"X-Large": "x" * 20_000}) == 400
        many = {f"X-{i}": "x" for i in range(300)}
        assert await status(client, "GET", "/health", many) == 400
        assert await status(client, "GET", "/health", {}) == 200


async def test_what_takes_too_long_is_answered_with_504() -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        gateway(GatewayConfig(request_timeout_s=0.05), slow=slow) as client,
        client.get("/slow") as response,
    ):
        assert response.status == 504
        assert (await response.json())["error"]["message"] == "no answer within 0.05 s"


async def test_a_stream_that_takes_too_long_breaks_and_is_not_mixed_with_an_error() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await asyncio.Event().wait()
        return response

    async with (
        gateway(GatewayConfig(request_timeout_s=0.2), slow=slow) as client,
        client.get("/slow") as response,
    ):
        assert response.status == 200
        assert await response.content.readexactly(5) == b"begun"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()


async def test_a_timeout_inside_is_not_taken_for_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def inner(request: web.Request) -> web.Response:
        raise TimeoutError(PROMPT)

    async with gateway(inner=inner) as client, client.get("/inner") as response:
        assert response.status == 500


async def test_an_unexpected_error_tells_nobody_what_the_client_wrote(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(request: web.Request) -> web.Response:
        raise KeyError(await request.text())

    caplog.set_level(logging.DEBUG)
    async with (
        gateway(broken=broken) as client,
        client.post("/broken", data=PROMPT) as response,
    ):
        assert response.status == 500
        assert PROMPT not in await response.text()
    assert PROMPT not in caplog.text
    assert "KeyError" in caplog.text
    assert "test_security.py" in caplog.text


async def test_errors_of_http_have_the_engines_form_and_others_pass_as_they_are() -> None:
    async def gone(request: web.Request) -> web.Response:
        raise web.HTTPGone(reason="it has ended")

    async def own(request: web.Request) -> web.Response:
        raise web.HTTPTooManyRequests(text="{}", content_type="application/json")

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPFound("/health")

    async with gateway(gone=gone, own=own, moved=moved) as client:
        async with client.get("/gone") as response:
            error = {"message": "it has ended", "type": "Gone", "param": None, "code": 410}
            assert (response.status, await response.json()) == (410, {"error": error})
        async with client.get("/own") as response:
            assert (response.status, await response.text()) == (429, "{}")
        async with client.get("/moved", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, "/health")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_an_address_of_this_machine_alone_needs_no_token(host: str) -> None:
    security.check_exposure(GatewayConfig(host=host), Tokens())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_an_address_that_others_reach_needs_a_token_or_the_flag(host: str) -> None:
    with pytest.raises(InvalidInputError, match=f"gateway.host is {host}, which other machines"):
        security.check_exposure(GatewayConfig(host=host), Tokens())
    security.check_exposure(GatewayConfig(host=host, insecure=True), Tokens())
    for variable in BOTH:
        tokens = Tokens.load(GatewayConfig(), {variable: "x"})
        security.check_exposure(GatewayConfig(host=host), tokens)


def test_a_name_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InvalidInputError, match=r"'nowhere\.example' is no address"):
        security.check_exposure(GatewayConfig(host="nowhere.example"), Tokens())


def test_a_token_comes_from_its_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  from-file\n")
    found = Tokens.load(GatewayConfig(token_file=str(file)), BOTH)
    assert found == Tokens.load(GatewayConfig(), {**BOTH, "STEERSMAN_TOKEN": "from-file"})
    assert "from-file" not in repr(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\n", "it is empty; valid: a token"),
        (b"two words", "printable ASCII without spaces"),
        (b"\xff\xfe", "a token is printable ASCII"),
    ],
)
def test_a_token_file_that_holds_none_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        Tokens.load(GatewayConfig(admin_token_file=str(file)), {})
    assert str(file) in str(caught.value)


def test_a_token_in_the_environment_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="STEERSMAN_TOKEN: a token is printable ASCII"):
        Tokens.load(GatewayConfig(), {"STEERSMAN_TOKEN": "Wörter"})


async def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = own_certificate(tmp_path)
    tls = security.tls_context(GatewayConfig(tls_cert=str(cert), tls_key=str(key)))
    trust = ssl.create_default_context(cafile=cert)
    async with gateway(tls=tls) as client, client.get("/health", ssl=trust) as response:
        assert response.status == 200


def test_without_a_certificate_it_speaks_in_the_clear() -> None:
    assert security.tls_context(GatewayConfig()) is None


def test_a_certificate_that_cannot_be_used_is_named_in_one_line(tmp_path: Path) -> None:
    cert, key = own_certificate(tmp_path)
    with pytest.raises(InvalidInputError, match=r"tls_key is set without gateway\.tls_cert"):
        security.tls_context(GatewayConfig(tls_key=str(key)))
    for settings in (
        GatewayConfig(tls_cert=str(cert)),
        GatewayConfig(tls_cert=str(key), tls_key=str(key)),
        GatewayConfig(tls_cert=str(tmp_path / "none.pem")),
    ):
        with pytest.raises(InvalidInputError, match="no certificate with its key") as caught:
            security.tls_context(settings)
        assert "\n" not in str(caught.value)
        assert settings.tls_cert in str(caught.value)
