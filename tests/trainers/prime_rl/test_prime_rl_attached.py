"""verifiers 0.4.0's own clients, which prime-rl rolls out with, at a gateway."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support import fake_wire
from support.fake_engine import Piece
from support.fake_model import decode, reference
from support.gateway import Gateway, gateway
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.clients.train import ElasticRendererPool, RendererSlot, TrainClient
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.types import SamplingConfig

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

PROMPT = [70, 71, 72]
BODY = {"model": "fake-model", "messages": [{"role": "user", "content": "once"}]}


@pytest.fixture(autouse=True)
def engines_before_vllm_0_32(monkeypatch: pytest.MonkeyPatch) -> None:
    """renderers 0.1.12 reads `token_id:N`, as prime-rl's engines tell it; vLLM 0.32 tells a number
    instead."""

    def logprobs(piece: Piece) -> dict[str, Any]:
        pairs = zip(piece.token_ids, piece.logprobs, strict=True)
        return {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in pairs
            ]
        }

    monkeypatch.setattr(fake_wire, "generate_logprobs", logprobs)


class Renderer:
    """Renders every conversation to the same prompt: no tokenizer is needed."""

    supports_tools = True

    def render(self, messages: Any, **_: Any) -> Any:
        return SimpleNamespace(
            token_ids=PROMPT, multi_modal_data=None, message_token_spans=list, is_content=None
        )

    def get_stop_token_ids(self) -> list[int]:
        return [2]

    def parse_response(self, ids: list[int], **_: Any) -> Any:
        return SimpleNamespace(
            content=decode(ids), reasoning_content=None, tool_calls=[], reasoning_complete=True
        )


def train_client(g: Gateway) -> TrainClient:
    pool = ElasticRendererPool("fake-model", None, multiplex=256)
    if not pool.renderers:
        pool.renderers.append(RendererSlot(Renderer()))  # type: ignore[arg-type]
    return TrainClient(
        TrainClientConfig(base_url=f"{g.url}/v1", api_key_var="STEERSMAN_ADMIN_TOKEN")
    )


def sampling(**params: Any) -> SamplingConfig:
    return SamplingConfig.model_validate({"max_tokens": 60, "temperature": 1.0} | params)


async def test_a_turn_comes_back_token_for_token_with_the_key_that_prime_rl_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "data")
    monkeypatch.setenv("STEERSMAN_ADMIN_TOKEN", "admin")
    async with gateway(2) as g:
        client = train_client(g)
        answer = await client.get_response(ChatDialect(), BODY, sampling(), session_id="trace-1")
        await client.close()
        assert answer.tokens is not None
        ids = answer.tokens.completion_ids
        assert ids == reference(PROMPT, 60, stop_token_ids=[2])
        assert len(answer.tokens.completion_logprobs) == len(ids)
        assert answer.finish_reason in ("stop", "length")
        assert list(g.desk.arrivals._homes) == ["trace-1"]


async def test_turns_that_are_moved_come_back_whole() -> None:
    async with gateway(2, token_s=0.002) as g:
        client = train_client(g)
        long = sampling(max_tokens=200, ignore_eos=True, cache_salt="7")
        calls = [
            asyncio.create_task(
                client.get_response(ChatDialect(), BODY, long, session_id=f"trace-{number}")
            )
            for number in range(4)
        ]
        while len(g.running()) < 4 or not all(
            execution.attempt and execution.attempt.generated_tokens for execution in g.running()
        ):
            await asyncio.sleep(0.002)
        moved = g.running()
        assert all(g.move(execution) for execution in moved)
        for answer in await asyncio.gather(*calls):
            assert answer.tokens is not None
            assert answer.tokens.completion_ids == reference(PROMPT, 200, ignore_eos=True)
        assert [execution.moves for execution in moved] == [1] * 4
        assert all(body["cache_salt"] == "7" for fake in g.fakes for _, body in fake.asked)
        await client.close()


async def test_an_evaluation_is_a_chat() -> None:
    async with gateway(2) as g:
        client = EvalClient(EvalClientConfig(base_url=f"{g.url}/v1", api_key_var="NO_KEY"))
        body = BODY | {"max_tokens": 8, "temperature": 0.0}
        answer = await client.get_response(ChatDialect(), body, sampling(), session_id="trace-9")
        await client.close()
        assert answer.message.content
