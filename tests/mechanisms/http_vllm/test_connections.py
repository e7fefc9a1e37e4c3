"""Requests over kept connections, and what servers do to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from steersman.mechanisms.http_vllm.connections import Connections
from steersman.mechanisms.http_vllm.response import HIGH_WATER

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[tuple[URL, list[bytes], Connections]]:
    """A server that answers each request by `serve`; the heads it got; and a pool."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
                heads.append(head + await reader.readexactly(length))
                await serve(reader, writer, heads[-1])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    pool = Connections({"User-Agent": "test"}, 2.0, 3.0, False)
    port = server.sockets[0].getsockname()[1]
    try:
        yield URL(f"http://127.0.0.1:{port}/v1/x?a=b"), heads, pool
    finally:
        pool.close()
        server.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def body_of(pool: Connections, url: URL, body: bytes = b"{}", method: str = "POST") -> bytes:
    async with await pool.request(method, url, body, {"X-A": "b"}) as response:
        return await response.read()


async def answers(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
    writer.write(OK)


def in_two(go: asyncio.Event) -> Serve:
    """Answers "one" at once, and "two" and the end when it may."""

    async def chunks(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        await go.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    return chunks


async def test_a_connection_serves_one_request_after_another() -> None:
    async with served(answers) as (url, heads, pool):
        assert [await body_of(pool, url) for _ in range(3)] == [b"ok"] * 3
        assert len(pool._all) == 1
    assert heads[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-A: b\r\n" in heads[0]
    assert heads[0].endswith(b"Content-Length: 2\r\n\r\n{}")


async def test_a_kept_connection_that_its_server_closed_costs_no_request() -> None:
    async def once(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with served(once) as (url, heads, pool):
        for _ in range(5):
            assert await body_of(pool, url) == b"ok"
    assert len(heads) == 5


async def test_a_connection_that_breaks_on_its_first_request_is_an_error() -> None:
    async def never(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.close()

    async with served(never) as (url, heads, pool):
        with pytest.raises(ConnectionError):
            await body_of(pool, url)
    assert len(heads) == 1


async def test_a_body_that_breaks_off_raises_after_what_came() -> None:
    async def half(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with served(half) as (url, _, pool), await pool.request("POST", url, b"", {}) as response:
        assert await response.readany() == b"half"
        with pytest.raises(ConnectionError):
            await response.readany()


async def test_pieces_come_as_they_are_written_and_a_given_up_answer_ends_its_connection() -> None:
    go = asyncio.Event()

    async with served(in_two(go)) as (url, _, pool):
        async with await pool.request("POST", url, b"", {}) as response:
            assert await response.readany() == b"one"
            go.set()
            assert await response.readany() == b"two"
            assert await response.readany() == b""
            assert response.at_eof()
        go.clear()
        async with await pool.request("POST", url, b"", {}) as response:
            assert await response.readany() == b"one"
        while pool._all:
            await asyncio.sleep(0.001)
        go.set()


async def test_a_taker_gets_each_piece_at_once_and_its_error_is_raised() -> None:
    go = asyncio.Event()

    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return piece == b"two"

    def refuse(piece: bytes) -> bool:
        raise ValueError(piece.decode())

    async with served(in_two(go)) as (url, _, pool):
        async with await pool.request("POST", url, b"", {}) as response:
            response.give(take)
            go.set()
            await response.moved()
            assert taken == [b"one", b"two"]
            await response.moved()
            assert response.at_eof()
        async with await pool.request("POST", url, b"", {}) as response:
            response.give(refuse)
            with pytest.raises(ValueError, match="one"):
                await response.moved()


async def test_a_body_that_nobody_reads_holds_its_server_and_is_whole_in_the_end() -> None:
    size = 40 * HIGH_WATER

    async def much(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)

    async with served(much) as (url, _, pool), await pool.request("POST", url, b"", {}) as response:
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert response._waiting < 4 * HIGH_WATER
        assert len(await response.read()) == size


async def test_an_answer_to_head_has_no_body_whatever_its_length() -> None:
    async def length_only(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")

    async with served(length_only) as (url, _, pool):
        assert await body_of(pool, url, b"", "HEAD") == b""


async def test_what_is_not_http_is_an_error() -> None:
    async def noise(reader: object, writer: asyncio.StreamWriter, head: bytes) -> None:
        writer.write(b"\x00\x01 hello\r\n\r\n")

    async with served(noise) as (url, _, pool):
        with pytest.raises(ConnectionError, match="does not speak HTTP"):
            await body_of(pool, url)


async def test_a_header_with_a_line_break_is_never_written() -> None:
    async with served(answers) as (url, heads, pool):
        with pytest.raises(ConnectionError, match="line break"):
            await pool.request("POST", url, b"", {"X-A": "b\r\nX-Evil: 1"})
    assert heads == []


async def test_what_is_sent_at_once_goes_out_on_a_kept_connection_or_not_at_all() -> None:
    async with served(answers) as (url, heads, pool):
        assert pool.at_once("POST", url, b"{}", {}) is None
        assert await body_of(pool, url) == b"ok"
        response = pool.at_once("POST", url, b"{}", {})
        assert response is not None
        await response.head()
        assert await response.read() == b"ok"
        response.close()
        assert len(pool._all) == 1
    assert len(heads) == 2


async def test_who_does_not_wait_is_called_at_the_head_for_pieces_and_at_the_end() -> None:
    async with served(answers) as (url, _, pool):
        await body_of(pool, url)
        response = pool.at_once("POST", url, b"{}", {})
        assert response is not None
        seen: list[tuple[bool, bool]] = []
        over = asyncio.Event()

        def called() -> None:
            assert response is not None
            seen.append((response.begun, response.at_eof()))
            if response.at_eof():
                over.set()

        response.give(lambda piece: piece == b"ok")
        response.call(called)
        await asyncio.wait_for(over.wait(), 5)
        response.close()
    assert seen == [(True, False), (True, False), (True, True)]


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it never ends"])
async def test_an_answer_that_is_let_go_frees_its_connection_at_its_end_or_after_a_while(
    ends: bool,
) -> None:
    go = asyncio.Event()

    async with served(in_two(go)) as (url, _, pool):
        response = await pool.request("POST", url, b"", {})
        (connection,) = pool._all
        response.let_go(60.0 if ends else 0.01)
        if ends:
            go.set()
            while not any(pool._idle.values()):
                await asyncio.sleep(0.001)
            assert connection.is_open
        else:
            while pool._all:
                await asyncio.sleep(0.001)
            go.set()
        assert response._caller is response._taker is response._patience is None
