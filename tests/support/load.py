"""A load of HTTP requests on loopback, cheap enough to leave the machine to what is measured.

    python tests/support/load.py URL [URL ...] --open 256 --seconds 10 --body '{...}'

Keeps `--open` requests open, each on a connection of its own (shared among the URLs), and prints
one JSON object: requests answered, events of streams, failures, and the quantiles of the time from
the request to the last byte of its answer.
"""

import argparse
import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

STREAMED = -2
"""Length of an answer in chunks."""
EVENT, END = b"data: {", b"0\r\n\r\n"


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.buffer = bytearray()
        self.sent_s = 0.0
        self.length = -1
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.load.clients.add(self)
        self.ask()

    def ask(self) -> None:
        assert self.transport is not None
        if self.load.over:
            self.transport.close()
            return
        self.sent_s = time.perf_counter()
        self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        if self.length == STREAMED:
            self.streamed(data)
            return
        self.buffer += data
        if self.length < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            if b" 200 " not in head[:16]:
                self.load.fail(self, head[:40].decode())
                return
            at = head.find(b"content-length:")
            if at < 0:
                self.length, rest = STREAMED, bytes(self.buffer[end + 4 :])
                self.buffer.clear()
                self.streamed(rest)
                return
            self.length = end + 4 + int(head[at + 15 :].split(b"\r", 1)[0])
        if len(self.buffer) >= self.length:
            del self.buffer[: self.length]
            self.ended()

    def streamed(self, data: bytes) -> None:
        """A piece of an answer in chunks, which ends with an empty one."""
        self.load.passed(data.count(EVENT))
        self.buffer[:] = (self.buffer + data)[-len(END) :]
        if self.buffer == END:
            self.buffer.clear()
            self.ended()

    def ended(self) -> None:
        """Answered; ask again."""
        self.length = -1
        self.load.answered(time.perf_counter() - self.sent_s)
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.clients.discard(self)
        if not self.load.over:
            self.load.fail(self, f"connection lost: {error}")


class Load:
    """The whole load."""

    def __init__(self, urls: list[str], path: str, body: bytes, headers: dict[str, str]) -> None:
        parts = [urlsplit(url) for url in urls]
        self.addresses = [(part.hostname or "127.0.0.1", part.port or 80) for part in parts]
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self.clients: set[Client] = set()
        self.over = False
        self.recording = False
        self.events = 0
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def answered(self, seconds: float) -> None:
        if self.recording:
            self.seconds.append(seconds)

    def passed(self, events: int) -> None:
        """Events of a stream came."""
        if self.recording:
            self.events += events

    def fail(self, client: Client, why: str) -> None:
        self.failures.append(why)
        if client.transport is not None:
            client.transport.abort()

    async def run(self, concurrency: int, warm_s: float, seconds: float) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        for number in range(concurrency):
            host, port = self.addresses[number % len(self.addresses)]
            await loop.create_connection(lambda: Client(self), host, port)
            await asyncio.sleep(warm_s / (2 * concurrency))  # not all in step with each other
        await asyncio.sleep(warm_s / 2)
        self.recording, started_s = True, time.perf_counter()
        await asyncio.sleep(seconds)
        self.recording, took_s = False, time.perf_counter() - started_s
        self.over = True
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.abort()
        taken = sorted(self.seconds)

        def quantile(q: float) -> float:
            return taken[min(int(q * len(taken)), len(taken) - 1)] if taken else float("nan")

        return {
            "answered": len(taken),
            "per_s": len(taken) / took_s,
            "events_per_s": self.events / took_s,
            "failures": len(self.failures),
            "p50_ms": 1e3 * quantile(0.5),
            "p90_ms": 1e3 * quantile(0.9),
            "p99_ms": 1e3 * quantile(0.99),
        }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="+")
    parser.add_argument("--path", default="/v1/completions")
    parser.add_argument("--body", default="{}")
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--open", type=int, default=256)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args(arguments)
    headers = dict(text.split(": ", 1) for text in args.header)
    load = Load(args.url, args.path, args.body.encode(), headers)
    result = asyncio.run(load.run(args.open, args.warm, args.seconds))
    print(json.dumps({**result, "why": load.failures[:3]}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
