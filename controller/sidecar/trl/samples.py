"""From scored answers to the rows that `AsyncGRPOTrainer` trains on.

Advantages are TRL's: reward minus the group's mean, divided by its (population) standard deviation
where the normaliser says so; 0 where the reward is not known.  What a row's statistics need beyond
that is in its `metrics`, which TRL averages and logs: lag, segments, moves, whether it is exact,
the weight.  A sample's own weight (the inverse of the probability with which a stopping rule
spared it) multiplies its advantage, since the loss is linear in it; one that a rule left out
(weight 0, or not selected) makes no row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steersman.controller.sidecar.prompts.supply import Plan, Verdict
from steersman.estimators.errors import FleetError
from steersman.estimators.observation import Floats, Ints, Normaliser

EPSILON = 1e-8
"""Added to the deviation, as in TRL."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample, as it came back."""

    token_ids: list[int]
    logprobs: list[float]
    truncated: bool
    asked_version: int
    """Of the weights when it was asked for."""
    steered: Mapping[str, Any] | None = None
    """The gateway's account of it: segments, weight, class; None: an engine answered directly."""

    @property
    def segments(self) -> Sequence[Mapping[str, Any]]:
        """What wrote it; one piece if nobody knows better."""
        return (self.steered or {}).get("segments") or [{"weight_version": self.asked_version}]

    @property
    def oldest_version(self) -> int:
        """Of the weights that wrote it; never older than when it was asked for, whatever a gateway
        that was restarted believes."""
        told = min(int(segment["weight_version"]) for segment in self.segments)
        return max(told, self.asked_version)

    @property
    def weight(self) -> float:
        """Inverse of the probability with which it was spared; 0: it was not."""
        return float((self.steered or {}).get("weight", 1.0))

    @property
    def exact(self) -> bool:
        """Whether it is a plain sample of the policy."""
        return bool((self.steered or {}).get("correctness", "exact") == "exact")

    @property
    def mean_logprob(self) -> float:
        """Per token."""
        return sum(self.logprobs) / max(len(self.logprobs), 1)


@dataclass(slots=True)
class RolloutSample:
    """What `AsyncGRPOTrainer` takes: the fields of TRL's own class, which importing would load all
    of TRL."""

    prompt: Any
    completion: Any
    input_ids: Ints
    completion_mask: Ints
    old_log_probs: np.ndarray[Any, np.dtype[np.float32]]
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None


def answers_of(body: Any, asked_version: int, at: str) -> list[Answer]:
    """The samples of an answer to `/v1/completions`."""
    try:
        block = body.get("steersman") or {}
        steered = block.get("samples") or [None] * len(body["choices"])
        answers = []
        for choice, told in zip(body["choices"], steered, strict=True):
            tokens = [int(token) for token in choice["token_ids"]]
            logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            if len(logprobs) != len(tokens) or not tokens:
                raise FleetError(
                    f"{at} answered {len(tokens)} tokens with {len(logprobs)} log-probabilities"
                )
            truncated = choice["finish_reason"] == "length"
            answers.append(Answer(tokens, logprobs, truncated, asked_version, told))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FleetError(
            f"{at} answered without token ids or log-probabilities ({error!r}); valid: vLLM from "
            "0.22 on"
        ) from None
    return answers


def was_aborted(body: Any) -> bool:
    """Whether a pause ended some of the samples before they were whole."""
    choices = body.get("choices") if isinstance(body, dict) else None
    return any(choice.get("finish_reason") == "abort" for choice in choices or ())


def advantages(rewards: Floats, normaliser: Normaliser) -> Floats:
    """(n,) of one group; 0 where the reward is NaN."""
    known = np.isfinite(rewards)
    told = np.zeros(len(rewards))
    if known.any():
        told[known] = rewards[known] - rewards[known].mean()
        if normaliser is Normaliser.STD:
            told[known] /= rewards[known].std() + EPSILON
    return told


def rows(
    plan: Plan,
    answers: Sequence[Answer],
    scores: Mapping[str, Floats],
    rewards: Floats,
    verdict: Verdict,
    *,
    prompt: Any,
    prompt_tokens: Sequence[int],
    completions: Sequence[Any],
    normaliser: Normaliser,
    weight_version: int,
    weigh_groups: bool,
) -> list[RolloutSample]:
    """The rows of an accepted group."""
    version = min(answer.oldest_version for answer in answers)
    known = rewards[np.isfinite(rewards)]
    deviation = float(known.std()) if len(known) else math.nan
    told = []
    for place, advantage in enumerate(advantages(rewards, normaliser).tolist()):
        answer = answers[place]
        if not verdict.train[place] or answer.weight == 0.0:
            continue
        weight = answer.weight * (verdict.weight if weigh_groups else 1.0)
        metrics = {
            "reward": float(rewards[place]),
            "reward_std": deviation,
            **{f"rewards/{name}": float(column[place]) for name, column in scores.items()},
            "steersman/lag": float(weight_version - answer.oldest_version),
            "steersman/segments": float(len(answer.segments)),
            "steersman/moves": float((answer.steered or {}).get("moves", 0)),
            "steersman/steered": float(answer.steered is not None),
            "steersman/exact": float(answer.exact),
            "steersman/sample_weight": answer.weight,
            "steersman/group_weight": verdict.weight,
            "steersman/inclusion_probability": plan.inclusion_probability,
        }
        ids = [*prompt_tokens, *answer.token_ids]
        start = len(prompt_tokens)
        mask = np.zeros(len(ids), dtype=np.int64)
        mask[start:] = 1
        logprobs = np.zeros(len(ids), dtype=np.float32)
        logprobs[start:] = answer.logprobs
        told.append(
            RolloutSample(
                prompt=prompt,
                completion=completions[place],
                input_ids=np.asarray(ids, dtype=np.int64),
                completion_mask=mask,
                old_log_probs=logprobs,
                advantage=advantage * weight,
                model_version=version,
                group_id=plan.number,
                metrics=metrics,
            )
        )
    return told
