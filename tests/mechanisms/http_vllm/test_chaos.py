"""Whatever engines do, every attempt ends exactly once and nothing is lost or doubled.

Seeded storms of drops, failures, deaths and aborts over three engines: each request is carried on
wherever it stopped, and its tokens must be the undisturbed ones.
"""

import asyncio
import random
from collections import Counter

import pytest
from support.attempts import end_of
from support.fake_vllm import FakeVllm, reference
from support.plain_dialect import plain_ask, request_of

from steersman.mechanisms.fleet import Attempt, EndReason
from steersman.mechanisms.http_vllm.ask import Abilities, Ask
from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings

REQUESTS = 240
AT_ONCE = 40
TOKENS = 250
NATURAL = (EndReason.STOP, EndReason.LENGTH)


class Storm:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fakes = [FakeVllm(token_s=0.001, max_num_seqs=32) for _ in range(3)]
        self.reasons: Counter[EndReason] = Counter()
        self.ends: Counter[str] = Counter()
        self.room = asyncio.Semaphore(AT_ONCE)
        self.fleet: HttpFleet

    async def run(self) -> None:
        """Until every request has its answer."""
        for fake in self.fakes:
            await fake.up()
        settings = HttpSettings(scrape_s=0.02, revive_s=0.02)
        self.fleet = await HttpFleet.attach([fake.url for fake in self.fakes], settings)
        self.fleet.engine("engine-2").abilities = Abilities()
        weather = asyncio.create_task(self._weather())
        try:
            await asyncio.gather(*(self._request(number) for number in range(REQUESTS)))
        finally:
            weather.cancel()
            await asyncio.gather(weather, return_exceptions=True)
            await self.fleet.close()
            for fake in self.fakes:
                await fake.down()

    async def _request(self, number: int) -> None:
        prompt = [self.rng.randrange(3, 200) for _ in range(self.rng.randrange(1, 40))]
        interval = self.rng.choice((1, 8, 32))
        ask = plain_ask(prompt, TOKENS, body={"stream_interval": interval})
        if number % 4 == 0:
            ask.continuable = False
        async with self.room:
            for attempt_number in range(200):
                if await self._attempt(ask, f"{number}-{attempt_number}"):
                    break
        assert ask.token_ids == reference(prompt, TOKENS)
        assert ask.restarts == 0 or not ask.continuable

    async def _attempt(self, ask: Ask, attempt_id: str) -> bool:
        rng, fleet = self.rng, self.fleet
        living = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
        if not living:
            await asyncio.sleep(0.01)
            return False
        before = len(ask.token_ids)
        attempt = fleet.start(rng.choice(living), request_of(ask, attempt_id))
        attempt.on_end(self._count)
        if ask.movable and rng.random() < 0.5:
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.15), fleet.abort, attempt)
        end = await end_of(attempt)
        if ask.continuable:
            assert ask.token_ids[before:] == end.tokens
        assert [span.start for span in end.spans[:1]] == [0] * bool(end.tokens)
        assert [span.end for span in end.spans[-1:]] == [len(end.tokens)] * bool(end.tokens)
        assert len(end.logprobs) == len(end.tokens)
        return end.reason in NATURAL

    def _count(self, attempt: Attempt) -> None:
        assert attempt.end is not None
        self.ends[attempt.request.attempt_id] += 1
        self.reasons[attempt.end.reason] += 1

    async def _weather(self) -> None:
        rng = self.rng
        while True:
            await asyncio.sleep(rng.uniform(0, 0.03))
            fake = rng.choice(self.fakes)
            match rng.randrange(6):
                case 0:
                    fake.drops.append(rng.randrange(60))
                case 1:
                    fake.fails += 1
                case 2:
                    fake.errors.append(rng.randrange(60))
                case 3:
                    fake.engine.abort(None)
                case 4:
                    fake.closes_kept = not fake.closes_kept
                case 5:
                    await fake.down()
                    await asyncio.sleep(rng.uniform(0, 0.05))
                    await fake.up()


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_or_doubled_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    async with asyncio.timeout(60):
        await storm.run()
    assert set(storm.ends.values()) == {1}
    assert storm.reasons[EndReason.REFUSED] == 0
    for reason in (EndReason.STOP, EndReason.ABORT, EndReason.LOST, EndReason.ERROR):
        assert storm.reasons[reason] > 0, f"the storm brought no {reason}"
