"""OpenRLHF's executor, steered, on engines that are fakes made after its source (0.11.2).

tests/trainers/openrlhf runs its own actors and executor around real engines.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_model import reference

from steersman.controller.sidecar.leases.line import Line
from steersman.controller.sidecar.openrlhf import executor as ours
from steersman.controller.sidecar.openrlhf.coordinator import Coordinator
from steersman.controller.sidecar.openrlhf.engine import Abort, Ask, Look
from steersman.controller.sidecar.openrlhf.executor import Steered
from steersman.mechanisms.leases.inside import Limits

PROMPT = [70, 71, 72]
TOKENS = 60
PLAIN = {
    "n": 1,
    "max_tokens": TOKENS,
    "min_tokens": 1,
    "seed": None,
    "stop": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "prompt_logprobs": None,
    "structured_outputs": None,
    "skip_special_tokens": False,
    "logprobs": 1,
}


def params(**changed: Any) -> Any:
    return SimpleNamespace(**PLAIN | changed)


class Remote:
    """An actor's method as its handle shows it."""

    def __init__(self, call: Any) -> None:
        self.remote = call


@dataclass
class Engine:
    """`RolloutRayActor` with its executor, and its own handle."""

    name: str
    token_s: float = 0.001
    asked: list[Ask] = field(default_factory=list)
    own: int = 0
    """Requests that came over OpenRLHF's own `generate`."""
    gone: bool = False

    def __post_init__(self) -> None:
        self.llm = self
        self.executor = type("AgentExecutor", (Steered, OwnExecutor), {})()
        self.generate_responses = Remote(self._generate_responses)
        self._states: dict[str, Any] = {}
        self.output_processor = SimpleNamespace(request_states=self._states)

    async def _generate_responses(self, prompt: Any, *rest: Any) -> list[Any]:
        if self.gone:
            raise type("RayActorError", (Exception,), {})("the actor died")
        label, sampling_params, max_length, tokenizer = rest
        return [
            await self.executor.execute(prompt, label, sampling_params, max_length, tokenizer, self)
        ]

    async def write(self, token_ids: list[int], most: int, request_id: str) -> Any:
        state = SimpleNamespace(written=0, aborted=False, prompt_len=len(token_ids))
        state.detokenizer = SimpleNamespace(num_output_tokens=lambda: state.written)
        state.external_req_id = state.request_id = request_id
        self._states[request_id] = state
        whole = reference(token_ids, most, ignore_eos=True)
        while state.written < most and not state.aborted:
            await asyncio.sleep(self.token_s)
            if self.gone:
                raise type("RayActorError", (Exception,), {})("the actor died")
            state.written += 1
        del self._states[request_id]
        tokens = whole[: state.written]
        reason = "length" if len(tokens) == most else "abort"
        output = SimpleNamespace(
            token_ids=list(tokens), text="", finish_reason=reason, logprobs=[{t: t} for t in tokens]
        )
        return SimpleNamespace(outputs=[output])

    async def generate(
        self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> Any:
        self.own += 1
        return await self.write(prompt_token_ids, sampling_params.max_tokens, f"own-{self.own}")

    async def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if request_id in self._states:
                self._states[request_id].aborted = True


class OwnExecutor:
    """`SingleTurnAgentExecutor` as far as it concerns engines."""

    async def execute(self, prompt: Any, sampling_params: Any, llm_engine: Any, **_: Any) -> Any:
        output = await llm_engine.generate(prompt, sampling_params, multi_modal_data=None)
        return output.outputs[0]


@asynccontextmanager
async def fleet(
    monkeypatch: pytest.MonkeyPatch, placement: str = "sticky_least_inflight"
) -> AsyncIterator[tuple[list[Engine], Coordinator]]:
    """Two engines that know their coordinator, without Ray and vLLM."""
    told = {"STEERSMAN_PLACEMENT__NAME": placement, "STEERSMAN_TICK_S": "0.02"}
    told |= {"STEERSMAN_GUARD__MOVE_COOLDOWN_S": "0", "STEERSMAN_GUARD__MAX_MOVES_PER_TICK": "64"}
    coordinator = Coordinator(told)
    engines = [Engine("one"), Engine("two")]
    handle = SimpleNamespace(
        steersman_tell=Remote(coordinator.steersman_tell),
        steersman_fetch=Remote(coordinator.steersman_fetch),
    )

    async def generate(actor: Engine, ask: Ask) -> Any:
        actor.asked.append(ask)
        return await actor.write(
            ask.token_ids, ask.sampling_params.max_tokens - ask.written, ask.request_id
        )

    monkeypatch.setattr(ours.engine, "generate", generate)
    # one process stands for both actors: none of them is "here"
    monkeypatch.setattr(ours, "own_name", lambda: "nowhere")
    for engine in engines:
        await coordinator.register(engine.name, [engine], Limits(32, 4096, 100_000))
        line: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        line.set_result(Line(handle))
        engine.executor._joining = line
    try:
        yield engines, coordinator
    finally:
        for task in coordinator._watching:
            task.cancel()
        assert coordinator._desk is not None
        await coordinator._desk.__aexit__(None, None, None)


def ask_all(engine: Engine, count: int, **changed: Any) -> list["asyncio.Task[Any]"]:
    """As OpenRLHF does: all samples are given to one engine."""
    return [
        asyncio.create_task(
            engine._generate_responses(PROMPT, "", params(**changed), 512, Tokenizer())
        )
        for _ in range(count)
    ]


class Tokenizer:
    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return f"{len(tokens)} tokens"


EXPECTED = reference(PROMPT, TOKENS, ignore_eos=True)


async def test_samples_given_to_one_engine_are_placed_on_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(monkeypatch) as (engines, coordinator):
        for (output,) in await asyncio.gather(*ask_all(engines[0], 8)):
            assert output.token_ids == EXPECTED
            assert output.finish_reason == "length"
        assert [len(engine.asked) for engine in engines] == [4, 4]
        counts = await coordinator.counts()
        assert (counts["open"], counts["set_free"]) == (0, 0)


async def test_a_sample_that_is_moved_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(monkeypatch, "support.restless_policy:Restless") as (engines, _):
        for engine in engines:
            engine.token_s = 0.02
        texts = []
        for (output,) in await asyncio.gather(*ask_all(engines[1], 4)):
            assert output.token_ids == EXPECTED
            assert len(output.logprobs) == TOKENS
            assert output.finish_reason == "length"
            texts.append(output.text)
        moved = [ask for ask in engines[1].asked if ask.written]
        assert len(moved) == 2  # those that were placed on the first
        assert texts.count(f"{TOKENS} tokens") == 2
        assert all(ask.token_ids == PROMPT + EXPECTED[: ask.written] for ask in moved)


async def test_what_cannot_be_moved_goes_to_the_engine_it_was_given_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(monkeypatch) as (engines, _):
        for changed in ({"seed": 7}, {"stop": ["x"]}, {"presence_penalty": 0.5}, {"n": 2}):
            await asyncio.gather(*ask_all(engines[1], 1, **changed))
        assert [engine.own for engine in engines] == [0, 4]
        assert not engines[0].asked


async def test_a_dead_engines_samples_go_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(monkeypatch) as (engines, _):
        for engine in engines:
            engine.token_s = 0.01
        calls = ask_all(engines[0], 4)
        while not engines[1].asked:
            await asyncio.sleep(0.005)
        engines[1].gone = True
        for (output,) in await asyncio.gather(*calls):
            assert output.token_ids == EXPECTED
        assert len(engines[0].asked) == 4


async def test_without_the_coordinator_samples_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(monkeypatch) as (engines, _):
        calls = ask_all(engines[0], 2)
        while not engines[1].asked:
            await asyncio.sleep(0.005)

        async def dead(*_: Any) -> None:
            raise RuntimeError("the coordinator died")

        line = engines[0].executor._joining.result()
        line._router = SimpleNamespace(steersman_tell=Remote(dead), steersman_fetch=Remote(dead))
        for (output,) in await asyncio.gather(*calls):
            assert output.token_ids == EXPECTED
        (last,) = ask_all(engines[0], 1)
        assert (await last)[0].token_ids == EXPECTED


async def test_an_engine_is_looked_into_and_told_to_abort_on_its_own_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet(monkeypatch) as (engines, _):
        call = asyncio.create_task(engines[0].generate(PROMPT, params()))
        reading = await ours.engine.send(engines[0], Look())
        while not reading.tokens.get("own-1"):
            await asyncio.sleep(0.002)
            reading = await ours.engine.send(engines[0], Look())
        assert (reading.requests, list(reading.tokens)) == (1, ["own-1"])
        await ours.engine.send(engines[0], Abort(["own-1"]))
        assert (await call).outputs[0].finish_reason == "abort"


async def test_each_sample_tells_how_it_came_about_where_openrlhf_hands_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Telling(OwnExecutor):
        async def execute(self, *args: Any, **named: Any) -> Any:
            return {"output": await super().execute(*args, **named), "extra_logs": {"format": 0.5}}

    async with fleet(monkeypatch) as (engines, _):
        executor = type("AgentExecutor", (Steered, Telling), {})()
        executor._joining = engines[0].executor._joining
        response = await executor.execute(PROMPT, "", params(), 512, Tokenizer(), engines[0])
        logs = {"steersman_weight": 1.0, "steersman_moves": 0.0, "steersman_whole": 1.0}
        assert response["extra_logs"] == {"format": 0.5, **logs}
        alone = await executor.execute(PROMPT, "", params(seed=1), 512, Tokenizer(), engines[0])
        assert alone["extra_logs"].keys() == response["extra_logs"].keys()
