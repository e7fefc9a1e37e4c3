"""Replicas on Ray, as engines of a gateway: tokens in, tokens out.

They have no tokenizer and speak no HTTP, so of the engines' APIs there is `/inference/v1/generate`
alone, with the sampling that survives a migration; a client that streams gets all that an attempt
wrote at its end.  Weights and pauses go over Ray, from the trainer itself; it may tell the gateway
its version with `/update_weight_version`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from steersman.estimators.errors import FleetError, UnknownNameError
from steersman.mechanisms.execution import attempt_sampling
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    Fleet,
    LogprobProbe,
    NamedTensors,
    ReplicaInfo,
    ReplicaStats,
    Sampling,
)
from steersman.mechanisms.http_vllm.ask import Abilities, Answer, Ask, Delta
from steersman.mechanisms.http_vllm.dialects import GENERATE_PATH
from steersman.mechanisms.http_vllm.dialects.generate import GENERATE, SPANS

if TYPE_CHECKING:
    from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

MODEL = "ray"
"""Name of the model where clients name one."""
IGNORED = frozenset({"max_tokens", "logprobs", "detokenize", "stream_interval"})
"""Fields of `sampling_params` that are seen to here, or change nothing where there is no text."""
FINISH = {EndReason.STOP: "stop", EndReason.LENGTH: "length"}


@dataclass(slots=True)
class RayEngine:
    """One replica, as a gateway looks at engines."""

    name: str
    url: str
    abilities: Abilities
    paused: bool = False
    weight_version: int = 0
    gauges: dict[str, float] = field(default_factory=dict)
    alive: bool = True
    stale: bool = False


class ServedRayFleet:
    """The surface of `HttpFleet` over another fleet, which it closes."""

    def __init__(self, fleet: "RayVllmFleet | Fleet", address: str) -> None:
        self._fleet, self.changed = fleet, fleet.changed
        self._engines = {
            info.name: RayEngine(
                info.name,
                f"ray://{address}/{info.name}",
                Abilities(generate=True, model=MODEL, max_model_len=info.max_model_len),
            )
            for info in fleet.replicas
        }

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        """All that were attached to."""
        return self._fleet.replicas

    def is_alive(self, replica: str) -> bool:
        """Whether attempts may be started there."""
        return self._fleet.is_alive(replica)

    def stats(self, replica: str) -> ReplicaStats:
        """The last report."""
        return self._fleet.stats(replica)

    def engine(self, name: str) -> RayEngine:
        """The replica of that name."""
        if (engine := self._engines.get(name)) is None:
            raise UnknownNameError("engine", name, self._engines)
        engine.alive = self._fleet.is_alive(name)
        return engine

    def set_paused(self, name: str, paused: bool) -> None:
        """The trainer has paused it, or lets it go on."""
        self.engine(name).paused = paused

    def set_weight_version(self, name: str, weight_version: int) -> None:
        """The trainer has loaded new weights there."""
        self.engine(name).weight_version = weight_version

    def expect_weights(self, weight_version: int) -> None:
        """The trainer has loaded new weights everywhere."""
        for engine in self._engines.values():
            engine.weight_version = weight_version

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        """Begin an attempt with the tokens of its ask."""
        ask = request.payload
        assert isinstance(ask, Ask)
        sampling = _sampling(ask)
        if isinstance(sampling, str):
            ask.answer = _refusal(400, sampling)
            return _ended(request, replica, EndReason.REFUSED, sampling)
        if ask.token_ids and _stops(ask.token_ids[-1], sampling):
            ask.take(Delta([], finish_reason="stop"))  # its replica died before it could say so
            return _ended(request, replica, EndReason.STOP, "")
        asked = replace(
            request,
            token_ids=[*ask.body["token_ids"], *ask.token_ids],
            sampling=attempt_sampling(sampling, len(ask.deltas)),
            payload=None,
        )
        attempt = self._fleet.start(replica, asked)
        attempt.on_end(lambda ended: _take(ask, ended))
        return attempt

    def abort(self, attempt: Attempt) -> None:
        """Ask for the attempt's end."""
        self._fleet.abort(attempt)

    def draft(self, replica: str, draft_tokens: int) -> None:
        """Draft so many tokens there."""
        self._fleet.draft(replica, draft_tokens)

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        """Draft so many tokens for this attempt."""
        self._fleet.speculate(attempt, draft_tokens)

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        """The trainer does that itself."""
        raise FleetError("engines on Ray get their weights from the trainer itself")

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        """The replica's log-probabilities of a sequence."""
        return await self._fleet.score(replica, token_ids)

    async def request(
        self,
        name: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """What of the control plane can be answered here."""
        if path in ("/health", "/ping"):
            return Answer(200 if self.is_alive(name) else 503, b"")
        if path == "/v1/models":
            card = {
                "id": MODEL,
                "object": "model",
                "created": 0,
                "owned_by": "steersman",
                "max_model_len": self.engine(name).abilities.max_model_len,
            }
            return Answer(200, json.dumps({"object": "list", "data": [card]}).encode())
        if path == "/update_weight_version":
            return Answer(200, json.dumps({"success": True}).encode())
        return _refusal(501, f"engines on Ray are controlled over Ray; {path} is not served")

    async def close(self) -> None:
        """Leave the replicas as they are."""
        await self._fleet.close()


def _sampling(ask: Ask) -> Sampling | str:
    """How to sample; or why that is not possible here."""
    if ask.dialect is not GENERATE:
        return (
            f"engines on Ray have no tokenizer: only {GENERATE_PATH} is served, with token ids and "
            f"sampling_params of {', '.join(Sampling.__struct_fields__)}, max_tokens, logprobs (0)"
        )
    told = {
        key: value
        for key, value in ask.body["sampling_params"].items()
        if key not in IGNORED and value is not None
    }
    if ask.body.get("output_mode") == "text":
        return "output_mode: engines on Ray write token ids only"
    if ask.body["sampling_params"].get("logprobs"):
        return "logprobs: engines on Ray tell those of the tokens written (0), not of others"
    if told.get("top_k") == -1:
        told["top_k"] = 0
    try:
        return msgspec.convert(told, Sampling, strict=False)
    except msgspec.ValidationError as error:
        fields = ", ".join(Sampling.__struct_fields__)
        return f"sampling_params: {error}; on Ray: {fields}, max_tokens, logprobs"


def _take(ask: Ask, attempt: Attempt) -> None:
    """What an attempt wrote is the ask's, before anybody hears of the end."""
    end = attempt.end
    assert end is not None
    finish = FINISH.get(end.reason)
    if not end.tokens and finish is None:
        return
    _note_spans(ask, end)
    ask.take(
        Delta(
            end.tokens,
            logprobs=_logprobs(ask, end),
            finish_reason=finish,
            stop_reason=_stop_reason(ask, end),
            weight_version=end.spans[-1].weight_version if end.spans else None,
        )
    )


def _note_spans(ask: Ask, end: AttemptEnd) -> None:
    """Add those of the attempt to the ask's, before it takes the tokens."""
    start, joined = len(ask.token_ids), ask.frame.setdefault(SPANS, [])
    if not start:
        joined.clear()
    for span in end.spans:
        version = str(span.weight_version)
        if joined and joined[-1]["version"] == version:
            joined[-1]["end"] = start + span.end
        else:
            joined.append(
                {"version": version, "start": start + span.start, "end": start + span.end}
            )


def _logprobs(ask: Ask, end: AttemptEnd) -> dict[str, Any] | None:
    if ask.body["sampling_params"].get("logprobs") is None:
        return None
    pairs = zip(end.tokens, end.logprobs, strict=True)
    return {
        "content": [
            {"token_id": token, "logprob": value, "rank": None, "top_logprobs": []}
            for token, value in pairs
        ]
    }


def _stop_reason(ask: Ask, end: AttemptEnd) -> int | None:
    stops = ask.body["sampling_params"].get("stop_token_ids") or ()
    ended = end.reason is EndReason.STOP and end.tokens and end.tokens[-1] in stops
    return end.tokens[-1] if ended else None


def _stops(token: int, sampling: Sampling) -> bool:
    return token in sampling.stop_token_ids and not sampling.ignore_eos


def _ended(request: AttemptRequest, replica: str, reason: EndReason, detail: str) -> Attempt:
    attempt = Attempt(request, replica)
    attempt.finish(AttemptEnd(reason, [], [], [], detail))
    return attempt


def _refusal(status: int, why: str) -> Answer:
    kind = {400: "BadRequestError", 501: "Not Implemented"}[status]
    error = {"message": why, "type": kind, "param": None, "code": status}
    return Answer(status, json.dumps({"error": error}).encode())
