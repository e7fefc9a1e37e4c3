"""Two real vLLM servers behind the gateway: its answers are an engine's own, moved or not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from support.form_client import CannotGoOnError, Cut, FormClient, answer_of, parsed
from support.gateway import Gateway, gateway
from support.tiny_chat_model import SPECIAL_TOKENS, tiny_chat_model
from support.vllm_cases import (
    CHAT,
    COMPLETIONS,
    CUT,
    FORWARDED,
    GENERATE,
    MODEL,
    PROMPT,
    REFUSED,
    UNDERSTOOD,
    Case,
    differences,
    folded,
    text,
)
from support.vllm_server import VllmServer, start_vllm, vllm_servers
from support.wild_cases import undisturbed, wild, written
from tokenizers import Tokenizer

from steersman.estimators.lifecycle import Phase
from steersman.mechanisms.http_vllm.fleet import HttpSettings

pytestmark = pytest.mark.engine

CUT_AT = (1, 2, 3, 13, 20, 21, 33, 34, 36, 55)
"""Tokens; some of these are in the middle of a character, some in that of a stop string."""
MOVES, MOST_ROUNDS = 60, 30
"""A request is over in half a second: how often it can be moved depends on the machine."""
WILD = 300
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat_model(tmp_path_factory.mktemp("chat-model"))


@pytest.fixture(scope="module")
def urls(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("servers")
    with vllm_servers(model, folder, 2) as servers:
        yield [server.url for server in servers]


@pytest_asyncio.fixture
async def gate(urls: list[str]) -> AsyncIterator[Gateway]:
    async with gateway(urls) as gate:
        yield gate


async def asked(gate: Gateway, url: str, case: Case) -> tuple[int, Any]:
    async with gate.client.post(url + case.path, json=case.body) as response:
        body = await response.read()
        if response.content_type == "text/event-stream":
            return response.status, folded(parsed(body))
        return response.status, await response.json()


async def found_different(gate: Gateway, urls: list[str], case: Case) -> list[str]:
    status, want = await asked(gate, urls[0], case)
    got_status, got = await asked(gate, gate.url, case)
    return differences(want | {"status": status}, got | {"status": got_status})


@pytest.mark.parametrize("case", [*UNDERSTOOD, *FORWARDED], ids=str)
async def test_an_answer_is_the_engine_s_own(gate: Gateway, urls: list[str], case: Case) -> None:
    assert await found_different(gate, urls, case) == []


@pytest.mark.parametrize("usage", [{}, USAGE], ids=["plain", "usage"])
@pytest.mark.parametrize("case", UNDERSTOOD, ids=str)
async def test_a_stream_is_the_engine_s_own(
    gate: Gateway, urls: list[str], case: Case, usage: dict[str, Any]
) -> None:
    assert await found_different(gate, urls, case.streamed(**usage)) == []


@pytest.mark.parametrize("case", REFUSED, ids=str)
async def test_an_error_is_the_engine_s_own(gate: Gateway, urls: list[str], case: Case) -> None:
    status, _ = await asked(gate, urls[0], case)
    assert status in (400, 404, 422)
    assert await found_different(gate, urls, case) == []


@pytest.mark.parametrize("way", ["close", "abort"])
@pytest.mark.parametrize("case", CUT, ids=str)
async def test_a_cut_does_not_show(urls: list[str], case: Case, way: Any) -> None:
    async with aiohttp.ClientSession() as session:
        want = await answer_of(session, urls[0], case)
        streamed = case.streamed(**USAGE)
        want_streamed = folded(await answer_of(session, urls[0], streamed))
        for at in CUT_AT:
            client = FormClient.over(session, urls, cuts=[Cut(at, way)])
            found = differences(want, await client.answer(case))
            client = FormClient.over(session, urls, cuts=[Cut(at, way)])
            found += differences(want_streamed, folded(await client.answer(streamed)))
            if way == "close" and case.path == GENERATE:
                # an engine tells the versions of weights at its end; this one never came to it
                found = [difference for difference in found if "weight_versions" not in difference]
            assert found == [], at


async def test_broken_characters_and_special_tokens_are_told_once_wherever_an_answer_is_cut(
    model: Path, urls: list[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    broken = special = given_up = 0
    async with aiohttp.ClientSession() as session:
        for seed in range(WILD):
            case, cuts = wild(seed)
            try:
                answer = await FormClient.over(session, urls, cuts=cuts).answer(case)
            except CannotGoOnError:  # text that a dead engine kept back: nobody can tell it
                given_up += 1
                continue
            told = written(case, answer)
            assert told == undisturbed(case, told, tokenizer), (case, case.body, cuts)
            broken += "\N{REPLACEMENT CHARACTER}" in told.text
            special += any(token < len(SPECIAL_TOKENS) for token in told.token_ids)
    assert broken > 0.2 * WILD
    assert special > 0.03 * WILD
    assert given_up < 0.05 * WILD


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_requests_that_are_moved_all_the_time_are_answered_as_undisturbed_ones(
    gate: Gateway, urls: list[str], streamed: bool
) -> None:
    cases = [case.streamed(**USAGE) if streamed else case for case in CUT]
    want = [await asked(gate, urls[0], case) for case in cases]
    for _ in range(MOST_ROUNDS):
        asking = [asyncio.create_task(asked(gate, gate.url, case)) for case in cases]
        while not all(task.done() for task in asking):
            for execution in gate.running():
                if execution.phase is Phase.RUNNING and execution.generated_tokens:
                    gate.move(execution)
            await asyncio.sleep(0.01)
        for case, (_, wanted), task in zip(cases, want, asking, strict=True):
            status, got = task.result()
            assert status == 200, (case, got)
            assert differences(wanted, got) == [], case
        if gate.desk.ledger.counts().moves >= MOVES:
            return
    raise AssertionError(f"only {gate.desk.ledger.counts().moves} moves")


async def test_an_engine_killed_in_the_middle_does_not_show(
    urls: list[str], model: Path, tmp_path: Path
) -> None:
    victim = start_vllm(model, tmp_path / "vllm.log")
    try:
        await asyncio.to_thread(victim.wait)
        await _kill_in_the_middle(victim, urls)
    finally:
        victim.kill()


async def _kill_in_the_middle(victim: VllmServer, urls: list[str]) -> None:
    long = {"temperature": 0, "ignore_eos": True, "max_tokens": 800, "logprobs": 1}
    cases = [text(f"{n} tokens", PROMPT * n, return_token_ids=True, **long) for n in range(1, 9)]
    cases += [case.streamed() for case in cases]
    settings = HttpSettings(scrape_s=0.1, revive_s=60)
    async with gateway([victim.url, urls[0]], settings=settings) as gate:
        want = [await asked(gate, urls[0], case) for case in cases]
        asking = [asyncio.create_task(asked(gate, gate.url, case)) for case in cases]

        def written() -> int:
            return sum(e.generated_tokens for e in gate.running() if e.replica == "engine-0")

        while written() < 200:
            await asyncio.sleep(0.01)
        victim.kill()
        for case, wanted, task in zip(cases, want, asking, strict=True):
            status, got = await task
            assert status == 200, (case, got)
            assert differences(wanted[1], got) == [], case
        assert gate.desk.ledger.attempt_ends["lost"] > 0


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_openai_s_client_sees_no_difference(gate: Gateway, urls: list[str]) -> None:
    messages = [{"role": "user", "content": "The cat"}]
    asks: list[Any] = [
        lambda c: c.completions.create(
            model=MODEL, prompt=["The cat", "Zo"], max_tokens=20, temperature=0, logprobs=2
        ),
        lambda c: c.completions.create(
            model=MODEL, prompt=PROMPT, n=3, seed=4, max_tokens=20, stop=["fish"]
        ),
        lambda c: c.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=9, extra_body={"return_token_ids": True}
        ),
        lambda c: c.chat.completions.create(
            model=MODEL, messages=messages, seed=4, n=2, logprobs=True, top_logprobs=2
        ),
        lambda c: c.models.list(),
    ]
    async with client_of(urls[0]) as direct, client_of(gate.url) as through:
        for ask in asks[:2] + asks[3:4]:
            want, got = await ask(direct), await ask(through)
            assert differences(want.model_dump(), got.model_dump()) == []
        assert len((await asks[2](through)).choices[0].token_ids) == 9
        want, got = await asks[4](direct), await asks[4](through)
        assert [m.id for m in got.data] == [m.id for m in want.data]


async def test_openai_s_client_streams_the_same(gate: Gateway, urls: list[str]) -> None:
    messages = [{"role": "user", "content": "The cat"}]

    async def events(client: openai.AsyncOpenAI, path: str) -> list[dict[str, Any]]:
        common: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 40}
        common |= {"stream": True, "stream_options": {"include_usage": True}}
        if path == CHAT:
            stream = await client.chat.completions.create(messages=messages, **common)
        else:
            stream = await client.completions.create(prompt="The cat", **common)
        return [event.model_dump() async for event in stream]

    async with client_of(urls[0]) as direct, client_of(gate.url) as through:
        for path in (COMPLETIONS, CHAT):
            want, got = await events(direct, path), await events(through, path)
            assert differences(folded(want), folded(got)) == []


async def test_openai_s_client_raises_the_same_errors(gate: Gateway, urls: list[str]) -> None:
    async with client_of(urls[0]) as direct, client_of(gate.url) as through:
        for wrong in (
            {"temperature": 3},
            {"max_tokens": 5000},
            {"model": "none"},
            {"logprobs": 200},
            {"n": 2, "temperature": 0},
        ):
            body: dict[str, Any] = {"model": MODEL, "prompt": "The cat"} | wrong
            raised = []
            for client in (direct, through):
                with pytest.raises(openai.APIStatusError) as caught:
                    await client.completions.create(**body)
                raised.append((type(caught.value), caught.value.status_code, caught.value.body))
            assert raised[0] == raised[1]
