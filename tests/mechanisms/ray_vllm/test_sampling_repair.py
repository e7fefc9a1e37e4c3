"""The checks of a verifier, on one written out here and on ways in which it could be wrong."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from steersman.mechanisms.ray_vllm.sampling_repair import (  # noqa: E402
    fault_of,
    repaired,
    skip_idle_verifier,
    spread,
)

CPU = torch.device("cpu")


class Sound:
    """Rejection sampling of certain drafts, as vLLM's module offers it."""

    def __init__(self) -> None:
        self.expand_batch_to_tokens: Any = spread

    def apply_sampling_constraints(self, logits: Any, cumulated: Any, sampling: Any) -> Any:
        n = len(logits)
        temperature = self.expand_batch_to_tokens(sampling.temperature, cumulated, n, 0, 1)
        top_k = self.expand_batch_to_tokens(sampling.top_k, cumulated, n)
        ranks = logits.argsort(-1, descending=True).argsort(-1)
        logits = logits.masked_fill(ranks >= top_k[:, None], float("-inf"))
        return logits / self.divisor(temperature)[:, None]

    def divisor(self, temperature: Any) -> Any:
        return temperature

    def chance(self, probability: Any) -> Any:
        """Of a draft to be accepted."""
        return probability

    def left(self, probabilities: Any, draft: Any) -> Any:
        """What a token is drawn from where the draft is refused."""
        return probabilities.scatter(1, draft[:, None].long(), 0.0)

    def rejection_sample(
        self,
        drafts: Any,
        counts: Any,
        longest: int,
        cumulated: Any,
        draft_probabilities: None,
        logits: Any,
        bonus: Any,
        sampling: Any,
    ) -> Any:
        n = len(counts)
        out = torch.full((n, longest + 1), -1, dtype=torch.int32)
        alive = torch.ones(n, dtype=torch.bool)
        for place in range(longest):
            draft, logit = drafts.view(n, -1)[:, place], logits.view(n, longest, -1)[:, place]
            p = logit.softmax(-1)
            greedy = sampling.temperature == 0
            p[greedy] = torch.nn.functional.one_hot(logit[greedy].argmax(-1), 4).float()
            chance = self.chance(p.gather(1, draft[:, None].long())[:, 0])
            accepted = torch.rand(n) < chance
            other = torch.multinomial(self.left(p, draft) + 1e-12, 1)[:, 0].int()
            out[:, place] = torch.where(alive, torch.where(accepted, draft, other), -1)
            alive = alive & accepted
        out[:, longest] = torch.where(alive, bonus[:, 0], -1)
        return out


class IgnoresTemperature(Sound):
    def divisor(self, temperature: Any) -> Any:
        return torch.ones_like(temperature)


class WarmerThanAsked(Sound):
    def divisor(self, temperature: Any) -> Any:
        return temperature * 1.4


class AcceptsTooOften(Sound):
    def chance(self, probability: Any) -> Any:
        return probability * 1.2


class RefusesTooOften(Sound):
    def chance(self, probability: Any) -> Any:
        return probability * 0.8


class DrawsTheRefusedDraftAgain(Sound):
    def left(self, probabilities: Any, draft: Any) -> Any:
        return probabilities


class GoesOnAfterARefusal(Sound):
    def rejection_sample(self, *arguments: Any) -> Any:
        out = super().rejection_sample(*arguments)
        return torch.where(out == -1, 0, out)


class LosesTheLastToken(Sound):
    def rejection_sample(self, *arguments: Any) -> Any:
        out = super().rejection_sample(*arguments)
        out[:, -1] = -1
        return out


class IgnoresTopK(Sound):
    def apply_sampling_constraints(self, logits: Any, cumulated: Any, sampling: Any) -> Any:
        everything = torch.full_like(sampling.top_k, 4)
        told = SimpleNamespace(**{**vars(sampling), "top_k": everything})
        return super().apply_sampling_constraints(logits, cumulated, told)


def test_a_sound_verifier_passes() -> None:
    assert fault_of(Sound(), CPU) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        IgnoresTemperature,
        WarmerThanAsked,
        AcceptsTooOften,
        RefusesTooOften,
        DrawsTheRefusedDraftAgain,
        GoesOnAfterARefusal,
        LosesTheLastToken,
        IgnoresTopK,
    ],
)
def test_a_wrong_verifier_is_found_and_not_called_repaired(wrong: type[Sound]) -> None:
    verifier = wrong()
    assert fault_of(verifier, CPU) != ""
    assert repaired(verifier, CPU) != ""


def writes_nothing(x: Any, cumulated: Any, tokens: int, *replace: int) -> Any:
    return x.new_empty(tokens)


def through_integers(x: Any, cumulated: Any, tokens: int, *replace: int) -> Any:
    return spread(x.long(), cumulated, tokens, *replace).to(x.dtype)


def replaces_nothing(x: Any, cumulated: Any, tokens: int, *replace: int) -> Any:
    return spread(x, cumulated, tokens, -7, -7)


def takes_the_next_sequences(x: Any, cumulated: Any, tokens: int, *replace: int) -> Any:
    return spread(x.roll(-1), cumulated, tokens, *replace)


@pytest.mark.parametrize(
    "wrong", [writes_nothing, through_integers, replaces_nothing, takes_the_next_sequences]
)
def test_a_wrong_spreading_is_found_and_repaired(wrong: Any) -> None:
    verifier = Sound()
    verifier.expand_batch_to_tokens = wrong
    assert "reach draft positions as" in fault_of(verifier, CPU)
    assert repaired(verifier, CPU) == ""
    assert verifier.expand_batch_to_tokens is spread
    assert fault_of(verifier, CPU) == ""


def test_what_cannot_be_checked_is_a_fault() -> None:
    assert "checking it failed: AttributeError" in fault_of(SimpleNamespace(), CPU)


def test_a_verifier_that_cannot_be_repaired_is_left_as_it_was() -> None:
    verifier = IgnoresTemperature()
    verifier.expand_batch_to_tokens = writes_nothing
    assert repaired(verifier, CPU) != ""
    assert verifier.expand_batch_to_tokens is writes_nothing


def test_checking_leaves_the_stream_of_random_numbers_where_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    fault_of(Sound(), CPU)
    assert torch.equal(torch.rand(4), expected)


def test_a_batch_without_drafts_is_sampled_as_without_speculation() -> None:
    runner: Any = SimpleNamespace(
        device=CPU,
        _calc_spec_decode_metadata=lambda drafts, ends: SimpleNamespace(drafts=drafts.tolist()),
        _sample=lambda logits, drafts: (logits, drafts),
    )
    skip_idle_verifier(runner)
    ends = np.array([1, 5, 9], np.int32)
    none = runner._calc_spec_decode_metadata(np.zeros(3, np.int32), ends)
    some = runner._calc_spec_decode_metadata(np.array([0, 2, 0], np.int32), ends)
    assert none.logits_indices.tolist() == [0, 4, 8]  # the last token of each request
    assert runner._sample("logits", none) == ("logits", None)
    assert some.drafts == [0, 2, 0]
    assert runner._sample("logits", some) == ("logits", some)
    assert runner._sample("logits", None) == ("logits", None)


def test_a_model_runner_that_is_built_otherwise_is_left_alone() -> None:
    runner: Any = SimpleNamespace(device=CPU, _sample=None)
    with pytest.raises(AttributeError):
        skip_idle_verifier(runner)
    assert runner._sample is None
