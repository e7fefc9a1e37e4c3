"""Spans of requests: by the conventions, without a word of prompt or answer, and free when off."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.gateway import Gateway, gateway

from steersman.controller.gateway.tracing import GONE, RequestSpans, configured_spans
from steersman.estimators.errors import InvalidInputError

SECRET = "the password is swordfish"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def traced(*args: Any, **knobs: Any) -> AsyncIterator[tuple[Gateway, InMemorySpanExporter]]:
    """A gateway whose spans are kept in memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RequestSpans(provider, "127.0.0.1", 8100)
    async with gateway(*args, spans=spans, **knobs) as gate:
        yield gate, exporter
    spans.close()


def events(span: ReadableSpan, name: str) -> list[dict[str, Any]]:
    return [dict(e.attributes or {}) for e in span.events if e.name == f"steersman.{name}"]


async def test_a_request_has_one_span_by_the_conventions() -> None:
    async with traced() as (gate, exporter):
        body = {
            "model": gate.fakes[0].model,
            "prompt": SECRET,
            "max_tokens": 24,
            "temperature": 0.5,
            "seed": 7,
            "n": 2,
        }
        status, answer = await gate.post(
            "/v1/completions", body, X_Session_ID="chat-1", traceparent=PARENT
        )
    assert status == 200
    (span,) = exporter.get_finished_spans()
    told = dict(span.attributes or {})
    assert span.name == f"text_completion {body['model']}"
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.request.model"] == body["model"]
    assert told["gen_ai.request.max_tokens"] == 24
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.seed"] == 7
    assert told["gen_ai.request.choice.count"] == 2
    assert told["gen_ai.conversation.id"] == "chat-1"
    assert told["gen_ai.response.id"] == answer["id"]
    assert told["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    reasons = [choice["finish_reason"] for choice in answer["choices"]]
    assert list(told["gen_ai.response.finish_reasons"]) == reasons
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", 8100)
    assert "error.type" not in told
    assert span.status.status_code is StatusCode.UNSET


async def test_events_tell_where_each_trajectory_ran_and_how_it_ended() -> None:
    async with traced(token_s=0.004) as (gate, exporter):
        body = {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 200, "ignore_eos": True}
        task = asyncio.create_task(gate.post("/v1/completions", body))
        async with asyncio.timeout(20):
            while not gate.running():
                await asyncio.sleep(0.005)
            (execution,) = gate.running()
            source = execution.replica
            while execution.generated_tokens < 20:
                await asyncio.sleep(0.005)
            assert gate.move(execution)
            status, _ = await task
    assert status == 200
    (span,) = exporter.get_finished_spans()
    first, second = events(span, "placed")
    (left,) = events(span, "leaving")
    (ended,) = events(span, "ended")
    assert first["steersman.replica"] == left["steersman.replica"] == source
    assert left["steersman.reason"] == "the test moves it"
    assert second["steersman.replica"] != source
    assert second["steersman.prefix_tokens"] >= 20
    assert ended["steersman.disposition"] == "truncated"
    assert (ended["steersman.moves"], ended["steersman.tokens"]) == (1, 200)


async def test_no_word_of_prompt_or_answer_is_in_a_span() -> None:
    async with traced() as (gate, exporter):
        model = gate.fakes[0].model
        chat = [{"role": "user", "content": SECRET}]
        asked = [
            ("/v1/completions", {"prompt": SECRET, "stop": ["swordfish"], "suffix": SECRET}),
            ("/v1/completions", {"prompt": SECRET, "guided_regex": SECRET}),
            ("/v1/chat/completions", {"messages": chat, "user": SECRET}),
        ]
        answers = [await gate.post(path, {**body, "model": model}) for path, body in asked]
    spans = exporter.get_finished_spans()
    assert len(spans) == len(asked)
    told = "".join(span.to_json() for span in spans)
    assert "swordfish" not in told
    for _, answer in answers:
        for choice in answer.get("choices", []):
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert not text or len(text) < 4 or text not in told


async def test_a_refusal_has_its_status_as_error_type() -> None:
    async with traced() as (gate, exporter):
        body = {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 10**9}
        status, _ = await gate.post("/v1/completions", body)
    assert status == 400
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {})["error.type"] == "400"
    assert span.status.status_code is StatusCode.UNSET  # the client's mistake, not the server's


async def test_a_client_that_goes_away_is_told() -> None:
    async with traced(token_s=0.05) as (gate, exporter):
        body = {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 500, "ignore_eos": True}
        task = asyncio.create_task(gate.post("/v1/completions", body))
        async with asyncio.timeout(20):
            while not gate.running():
                await asyncio.sleep(0.005)
            task.cancel()
            while not exporter.get_finished_spans():
                await asyncio.sleep(0.005)
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {})["error.type"] == GONE
    assert [e["steersman.disposition"] for e in events(span, "ended")] == ["abandoned"]


async def test_requests_that_generate_nothing_have_no_span() -> None:
    async with traced() as (gate, exporter), gate.client.get(f"{gate.url}/v1/models") as answer:
        assert answer.status == 200
    assert exporter.get_finished_spans() == ()


async def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RequestSpans(provider, "127.0.0.1", 8100)
    async with gateway(spans=spans) as gate:
        for _ in range(5):
            await gate.post(
                "/v1/completions",
                {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 8, "n": 3},
            )
        assert (spans._spans, spans._span_of, spans._replaced) == ({}, {}, {})
    assert len(exporter.get_finished_spans()) == 5


def test_off_there_are_no_spans_and_nothing_is_imported() -> None:
    code = (
        "import sys\n"
        "from steersman.controller.gateway.tracing import configured_spans\n"
        "assert configured_spans(False, 'h', 1) is None\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_opentelemetry_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'steersman\[otel\]'"):
        configured_spans(True, "h", 1)


def test_the_service_is_named_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in (("", "steersman-gateway"), ("rollouts", "rollouts")):
        if name:
            monkeypatch.setenv("OTEL_SERVICE_NAME", name)
        spans = configured_spans(True, "h", 1, InMemorySpanExporter())
        assert spans is not None
        assert spans._provider.resource.attributes["service.name"] == expected  # type: ignore[attr-defined]
        spans.close()
