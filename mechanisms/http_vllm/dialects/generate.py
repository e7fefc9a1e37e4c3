"""`/inference/v1/generate`: token ids in, token ids out, with the weight version of each token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from steersman.mechanisms.http_vllm.ask import Abilities, Ask, Delta, Dialect, Upstream
from steersman.mechanisms.http_vllm.dialects import GENERATE_PATH
from steersman.mechanisms.http_vllm.dialects.events import delta_of, note_frame
from steersman.mechanisms.http_vllm.dialects.logprobs import with_texts
from steersman.mechanisms.http_vllm.dialects.seam import (
    Seam,
    bridging,
    resumable,
    seam_of,
    wants_texts,
)
from steersman.mechanisms.http_vllm.dialects.text import stop_strings
from steersman.mechanisms.http_vllm.dialects.upstream import PROGRESS_TOKENS, carried_on, request
from steersman.mechanisms.http_vllm.probe import as_version

SPANS = "weight_versions"
"""Key of `Delta.rest`: spans of an attempt's tokens and their weight versions, told at its end; and
of `Ask.frame`: those of all attempts.  Counted from the answer's first token."""


class _Generate:
    def ask(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        ask.seam = None
        ask.frame.pop(SPANS, None)
        return self._request(ask, attempt_id, ask.body, ask.body["sampling_params"], abilities)

    def resume(self, ask: Ask, attempt_id: str, abilities: Abilities) -> Upstream:
        sampling = ask.body["sampling_params"]
        seam = seam_of(ask, sampling)
        if ask.body.get("output_mode") != "text":
            seam = Seam("", "", len(ask.token_ids), clean=True, bridge=False)
        ask.seam = seam
        left = ask.max_tokens - seam.start
        rest = bridging(ask, carried_on(sampling, ask, seam.start) | {"max_tokens": left}, sampling)
        body = {**ask.body, "token_ids": ask.body["token_ids"] + ask.token_ids[: seam.start]}
        return self._request(ask, attempt_id, body, rest, abilities)

    def read(self, ask: Ask, event: dict[str, Any]) -> Delta | None:
        note_frame(ask, event)
        choices = event.get("choices")
        if not choices:
            return None
        choice, sampling = choices[0], ask.body["sampling_params"]
        delta = delta_of(ask, choice, choice.get("text") or "", choice.get("logprobs"), sampling)
        if choice.get(SPANS) is None:
            return delta
        start = 0 if ask.seam is None else ask.seam.start
        spans = [
            span | {"start": span["start"] + start, "end": span["end"] + start}
            for span in choice[SPANS]
        ]
        ask.frame[SPANS] = _joined(ask.frame.get(SPANS, ()), spans)
        if delta is None:
            return None
        version = as_version(spans[-1]["version"]) if spans else None
        return replace(delta, weight_version=version, rest={**delta.rest, SPANS: spans})

    def resumable(self, ask: Ask) -> bool:
        sampling = ask.body["sampling_params"]
        if ask.body.get("output_mode") == "text":
            return resumable(ask, sampling)
        return not stop_strings(sampling)  # they were looked for in a text that nobody tells

    def _request(
        self,
        ask: Ask,
        attempt_id: str,
        body: dict[str, Any],
        sampling: dict[str, Any],
        abilities: Abilities,
    ) -> Upstream:
        text = body.get("output_mode") == "text"
        if text and wants_texts(ask, ask.body["sampling_params"], abilities):
            sampling = with_texts(sampling)
        if not ask.streamed:
            sampling = {"stream_interval": PROGRESS_TOKENS} | sampling
        body = {**body, "sampling_params": sampling, "stream": True}
        return request(ask, GENERATE_PATH, body, attempt_id, f"generate-tokens-{attempt_id}")


def _joined(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Spans of one answer; tokens that came again are in both."""
    joined = list(before)
    for span in after:
        if joined and joined[-1]["end"] >= span["start"]:
            last = joined[-1]
            if last["version"] == span["version"]:
                joined[-1] = last | {"end": span["end"]}
                continue
            span = span | {"start": last["end"]}
        joined.append(span)
    return joined


GENERATE: Dialect = _Generate()
