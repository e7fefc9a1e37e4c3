"""One OpenTelemetry span per client request, by the conventions for generative AI.

The span says what was asked for (model, limits, temperature), how many tokens it took and why each
sample ended; its events say on which engine each trajectory ran, when it left, and why.  No text
of a prompt or an answer is in it.  A `traceparent` header makes the span a child of the client's.

Off unless asked for; then nothing of OpenTelemetry is imported and nothing is called.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from steersman.controller.trace import records
from steersman.controller.trace.records import Record
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import REPLACED, Phase
from steersman.mechanisms.fleet import EndReason

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, TracerProvider

    from steersman.controller.gateway.question import Question

SERVICE = "steersman-gateway"
"""Name of the service, unless OTEL_SERVICE_NAME says another."""
OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/inference/v1/generate": "text_completion",
}
"""Paths that generate, and what the conventions call it; other requests have no span."""
ASKED = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}
"""Numbers that a client may ask with, and their names in the conventions.  Nothing else of a
request is copied."""
GONE = "client_gone"
"""`error.type` of a request whose client did not wait for the answer."""
_REPLACED = frozenset(disposition.value for disposition in REPLACED)
_UNUSUAL = frozenset({EndReason.LOST.value, EndReason.ERROR.value, EndReason.REFUSED.value})


def configured_spans(
    on: bool, host: str, port: int, exporter: "SpanExporter | None" = None
) -> "RequestSpans | None":
    """Spans that go where the standard OTEL_* variables say, or to `exporter`; None: `on` is false.

    Raises `InvalidInputError` if OpenTelemetry is not installed.
    """
    if not on:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
    except ImportError as error:
        raise InvalidInputError(
            f"spans need OpenTelemetry ({error.name} is not installed); valid: "
            "pip install 'steersman[otel]', or tracing off"
        ) from None
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RequestSpans(provider, host, port)


class RequestSpans:
    """Spans of the requests that are open: begun and ended by the desk, told by its trace."""

    def __init__(self, provider: "TracerProvider", host: str, port: int) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        self._provider = provider
        self._extract, self._kind = extract, SpanKind.SERVER
        self._tracer = provider.get_tracer("steersman")
        self._address: dict[str, str | int] = {"server.address": host, "server.port": port}
        self._spans: dict[int, Span] = {}
        """By the desk's number of the request."""
        self._span_of: dict[int, Span] = {}
        """By unfinished trajectory."""
        self._takers: dict[type, Callable[[Any, Span], None]] = {
            records.AttemptStarted: self._started,
            records.AttemptEnded: self._attempt_ended,
            records.PhaseChanged: self._phase_changed,
            records.TrajectoryEnded: self._ended,
        }
        self._replaced: dict[int, Span] = {}
        """By a trajectory in whose stead a fresh one is about to be queued."""

    def begin(self, question: "Question") -> None:
        """The desk has taken it in; what was placed at once is under way already."""
        operation = OPERATIONS.get(question.path)
        if operation is None:
            return
        body = question.body if isinstance(question.body, dict) else {}
        model = body.get("model") if isinstance(body.get("model"), str) else ""
        span = self._tracer.start_span(
            f"{operation} {model}".rstrip(),
            context=self._extract(question.asks[0].headers),
            kind=self._kind,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "vllm",
                "gen_ai.response.id": question.public_id,
                "http.route": question.path,
                **self._address,
                **_asked(body),
            },
        )
        if model:
            span.set_attribute("gen_ai.request.model", model)
        if question.n > 1:
            span.set_attribute("gen_ai.request.choice.count", question.n)
        if question.told.session:
            span.set_attribute("gen_ai.conversation.id", question.told.session)
        self._spans[question.number] = span
        for execution in question.executions:
            if execution.phase is not Phase.ENDED:
                self._span_of[execution.spec.trajectory_id] = span
            if execution.replica is not None:
                _placed(span, execution.spec.trajectory_id, execution.replica, 0)

    def end(self, question: "Question") -> None:
        """Its last sample has ended; its answer is still here."""
        span = self._spans.pop(question.number, None)
        if span is None:
            return
        reasons = [
            next((d.finish_reason for d in reversed(ask.deltas) if d.finish_reason), None)
            for ask in question.asks
        ]
        if any(reasons):
            known = [reason or "error" for reason in reasons]
            span.set_attribute("gen_ai.response.finish_reasons", known)
        if all(ask.dialect is not None for ask in question.asks):
            pairs = zip(question.group_of, question.asks, strict=True)
            prompts = {of: ask.prompt_tokens for of, ask in pairs}
            span.set_attribute("gen_ai.usage.input_tokens", sum(prompts.values()))
            written = sum(len(ask.token_ids) for ask in question.asks)
            span.set_attribute("gen_ai.usage.output_tokens", written)
        model = question.asks[0].frame.get("model")
        if isinstance(model, str):
            span.set_attribute("gen_ai.response.model", model)
        self._say_failure(span, question)
        span.end()

    def take(self, record: Record) -> None:
        """One record of the desk's trace."""
        if isinstance(record, records.TrajectoryQueued):
            span = self._replaced.pop(record.replaces, None)
            if span is not None:
                self._span_of[record.trajectory_id] = span
            return
        taker = self._takers.get(type(record))
        if taker is not None and self._span_of:
            span = self._span_of.get(record.trajectory_id)  # type: ignore[union-attr]
            if span is not None:
                taker(record, span)

    def close(self) -> None:
        """End what is open and send what waits to be sent."""
        for span in self._spans.values():
            span.end()
        self._spans.clear()
        self._span_of.clear()
        shutdown = getattr(self._provider, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _say_failure(self, span: "Span", question: "Question") -> None:
        from opentelemetry.trace import StatusCode

        if question.failure is not None:
            status = question.failure.status
            span.set_attribute("error.type", str(status))
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
        elif question.abandoned:
            span.set_attribute("error.type", GONE)

    def _started(self, record: records.AttemptStarted, span: "Span") -> None:
        _placed(span, record.trajectory_id, record.replica, record.prefix_tokens)

    def _attempt_ended(self, record: records.AttemptEnded, span: "Span") -> None:
        if record.reason in _UNUSUAL:
            attributes = {"steersman.reason": record.reason, "steersman.detail": record.detail}
            _event(span, "lost", record.trajectory_id, record.replica, attributes)

    def _phase_changed(self, record: records.PhaseChanged, span: "Span") -> None:
        if record.new in (Phase.LEAVING.name, Phase.PARKED.name):
            attributes = {
                "steersman.reason": record.why,
                "steersman.tokens": record.generated_tokens,
            }
            _event(span, record.new.lower(), record.trajectory_id, record.replica, attributes)

    def _ended(self, record: records.TrajectoryEnded, span: "Span") -> None:
        del self._span_of[record.trajectory_id]
        if record.disposition in _REPLACED:
            self._replaced[record.trajectory_id] = span
        attributes = {
            "steersman.disposition": record.disposition,
            "steersman.correctness": record.correctness,
            "steersman.tokens": record.generated_tokens,
            "steersman.moves": record.moves,
        }
        _event(span, "ended", record.trajectory_id, "", attributes)


def _placed(span: "Span", trajectory_id: int, replica: str, prefix_tokens: int) -> None:
    attributes = {"steersman.prefix_tokens": prefix_tokens}
    _event(span, "placed", trajectory_id, replica, attributes)


def _event(
    span: "Span", name: str, trajectory_id: int, replica: str, more: Mapping[str, Any]
) -> None:
    where = {"steersman.replica": replica} if replica else {}
    attributes = {"steersman.trajectory_id": trajectory_id, **where, **more}
    span.add_event(f"steersman.{name}", attributes)


def _asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a request; `/inference/v1/generate` has them one level down."""
    inner = body.get("sampling_params")
    source = inner if isinstance(inner, dict) else body
    numbers = {
        name: source[field]
        for field, name in ASKED.items()
        if isinstance(source.get(field), int | float) and not isinstance(source[field], bool)
    }
    return {**numbers, "gen_ai.request.stream": True} if body.get("stream") is True else numbers
