"""Many migrations and many dead engines: nothing lost, nothing doubled, nobody notices."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from support.fake_model import reference, text_of
from support.gateway import Gateway, gateway

from steersman.estimators.lifecycle import Phase
from steersman.mechanisms.http_vllm.fleet import HttpSettings

PATH = "/v1/completions"
FAKE = Path(__file__).parents[2] / "support" / "fake_vllm.py"


def asks(prompt: list[int], length: int) -> dict[str, Any]:
    return {
        "model": "fake-model",
        "prompt": prompt,
        "max_tokens": length,
        "ignore_eos": True,
        "return_token_ids": True,
    }


async def streamed(gate: Gateway, prompt: list[int], length: int) -> None:
    """Ask for a stream; it must hold each token and each character once, in order."""
    events = await gate.events(PATH, asks(prompt, length))
    assert events[-1] == "[DONE]"
    choices = [msgspec.json.decode(event)["choices"][0] for event in events[:-1]]
    tokens = reference(prompt, length, ignore_eos=True)
    assert [t for choice in choices for t in choice["token_ids"]] == tokens
    assert "".join(choice["text"] for choice in choices) == text_of(tokens)
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]


async def test_500_migrations_in_mid_stream_lose_and_repeat_no_chunk() -> None:
    rng = random.Random(5)
    asked, open_ones = 0, set[asyncio.Task[None]]()
    async with gateway(3, token_s=0.002) as gate:
        counts = gate.desk.ledger.counts
        while counts().moves < 500 or open_ones:
            while len(open_ones) < 40 and counts().moves < 500:
                asked += 1
                open_ones.add(asyncio.create_task(streamed(gate, [40 + asked, 50, 60], 600)))
            await asyncio.sleep(0.002)
            running = [e for e in gate.running() if e.phase is Phase.RUNNING]
            for execution in rng.sample(running, min(4, len(running))):
                gate.move(execution)
            for task in [task for task in open_ones if task.done()]:
                open_ones.remove(task)
                await task
        assert counts().dispositions == {"truncated": asked}
        assert not gate.desk.questions
        assert all(fake.running == 0 for fake in gate.fakes)


@dataclass
class Engine:
    """A fake engine in a process of its own, which can be killed and comes back."""

    port: int = 0
    process: asyncio.subprocess.Process | None = None
    kills: int = 0

    async def up(self) -> str:
        """Start it, on its old port if it had one."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(FAKE), "--port", str(self.port), "--token-s", "0.004"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        url = (await self.process.stdout.readline()).decode().strip()
        self.port = int(url.rsplit(":", 1)[1])
        return url

    async def kill(self) -> None:
        """As the kernel would, with everything that runs on it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        self.kills += 1


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[Engine]]:
    fleet = [Engine() for _ in range(count)]
    try:
        yield fleet
    finally:
        for engine in fleet:
            if engine.process is not None and engine.process.returncode is None:
                await engine.kill()


async def test_engines_killed_20_times_under_load_lose_and_double_nothing() -> None:
    settings = HttpSettings(scrape_s=0.1, revive_s=0.2)
    answered: list[int] = []
    over = asyncio.Event()

    async def client(gate: Gateway, number: int) -> None:
        turn = 0
        while not over.is_set():
            prompt, turn = [40 + number, 41, 42 + turn % 100], turn + 1
            if number % 3 == 0:
                await streamed(gate, prompt, 150)
            else:
                status, answer = await gate.post(PATH, asks(prompt, 150))
                assert status == 200, answer
                tokens = answer["choices"][0]["token_ids"]
                assert tokens == reference(prompt, 150, ignore_eos=True)
            answered.append(number)

    async with engines(3) as fleet:
        urls = [await engine.up() for engine in fleet]
        async with gateway(urls, settings=settings) as gate:
            clients = [asyncio.create_task(client(gate, i)) for i in range(24)]
            for number in range(20):
                victim = fleet[number % 3]
                name = f"engine-{number % 3}"
                while not any(e.replica == name and e.generated_tokens for e in gate.running()):
                    await asyncio.sleep(0.01)
                await victim.kill()
                await victim.up()
                while not gate.desk.fleet.is_alive(name):
                    await asyncio.sleep(0.01)
            over.set()
            await asyncio.gather(*clients)
            counts = gate.desk.ledger.counts()
            assert sum(engine.kills for engine in fleet) == 20
            assert gate.desk.ledger.attempt_ends["lost"] >= 20
            assert counts.queued == counts.ended == counts.answered == len(answered)
            assert counts.dispositions == {"truncated": len(answered)}
