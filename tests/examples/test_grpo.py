"""An update moves probability towards what was rewarded, and only as far as the ratio allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steersman.examples.signs.grpo import (
    GrpoConfig,
    GrpoTrainer,
    Sample,
    clipped_objective,
    evaluate,
    group_advantages,
)
from steersman.examples.signs.model import Shape, SignsModel, token_logprobs
from steersman.examples.signs.task import make_evaluation_pool, prompt_tokens

SMALL = Shape(hidden=32, intermediate=48, layers=2, heads=2, max_positions=1024)
PROBLEMS = make_evaluation_pool(4, seed=0)
PROMPT = prompt_tokens(PROBLEMS[0])
GOOD, BAD = [40, 41, 42, 5, 2], [50, 51, 5, 2]


def scored(model: SignsModel, prompt: list[int], response: list[int], reward: float) -> Sample:
    logprobs = token_logprobs(model, [prompt + response], [len(prompt)])[0]
    return Sample(prompt, response, logprobs, reward)


def parameters(model: SignsModel) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def unchanged(model: SignsModel, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parameters(model), before, strict=True))


def total_logprob(model: SignsModel, response: list[int]) -> float:
    return float(token_logprobs(model, [PROMPT + response], [len(PROMPT)])[0].sum())


def test_an_update_raises_what_was_rewarded_against_what_was_not() -> None:
    model = SignsModel(SMALL, seed=0)
    gap_before = total_logprob(model, GOOD) - total_logprob(model, BAD)
    trainer = GrpoTrainer(model, seed=0)
    group = [scored(model, PROMPT, GOOD, 1.0), scored(model, PROMPT, BAD, 0.0)]
    metrics = trainer.update([group])
    assert total_logprob(model, GOOD) - total_logprob(model, BAD) > gap_before
    assert trainer.weight_version == 1
    assert metrics["mean_reward"] == 0.5
    assert metrics["tokens"] == metrics["trained_tokens"] == 9
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip_fraction"] == 0


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_groups_with_equal_rewards_leave_the_weights_alone(reward: float) -> None:
    model = SignsModel(SMALL, seed=0)
    trainer = GrpoTrainer(model, seed=0)
    mixed = [scored(model, PROMPT, GOOD, 1.0), scored(model, PROMPT, BAD, 0.0)]
    trainer.update([mixed])  # leaves momentum, which must not act in the next update
    before = parameters(model)
    metrics = trainer.update([[scored(model, PROMPT, r, reward) for r in (GOOD, BAD)]] * 3)
    assert unchanged(model, before)
    assert metrics["degenerate_share"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert metrics["trained_tokens"] == 0


def test_advantages_are_rewards_less_the_groups_weighted_mean() -> None:
    group = [Sample([1], [2], np.zeros(1), r, w) for r, w in ((1.0, 3.0), (0.0, 1.0))]
    assert group_advantages(group) == [0.25, -0.75]


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.2, 1.0, 1.2, 1.2),  # inside the wider upper clip
        (1.5, 1.0, 1.28, 0.0),  # already more likely than when it was drawn: held
        (0.5, 1.0, 0.5, 0.5),  # less likely: pulled back at its importance weight
        (0.5, -1.0, -0.8, 0.0),
        (1.5, -1.0, -1.5, -1.5),
    ],
)
def test_each_token_counts_by_its_clipped_importance_ratio(
    ratio: float, advantage: float, objective: float, slope: float
) -> None:
    log_ratio = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    found = clipped_objective(log_ratio, torch.tensor([advantage]), GrpoConfig())
    torch.autograd.backward(found.sum())
    assert found.item() == pytest.approx(objective)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(slope)


def test_a_response_of_two_weight_versions_is_corrected_token_by_token() -> None:
    """The gradient sums ratio x advantage x grad log p over the tokens that are not clipped."""
    model = SignsModel(SMALL, seed=0)
    good, bad = (scored(model, PROMPT, r, reward) for r, reward in ((GOOD, 1.0), (BAD, 0.0)))
    ratios = np.array([1.0, 1.1, 0.7, 1.4, 1.25])  # as if other weights had written the good one
    stale = Sample(PROMPT, GOOD, good.behaviour_logprobs - np.log(ratios), 1.0)

    factors = torch.tensor([0.5 * r if r < 1.28 else 0.0 for r in ratios])
    all_tokens = len(GOOD) + len(BAD)
    good_logp, bad_logp = (_differentiable(model, response) for response in (GOOD, BAD))
    by_hand = -((factors * good_logp).sum() + (-0.5 * bad_logp).sum()) / all_tokens
    expected = torch.autograd.grad(by_hand, list(model.parameters()))

    trainer = GrpoTrainer(model, GrpoConfig(learning_rate=0.0, max_grad_norm=1e9), seed=0)
    metrics = trainer.update([[stale, bad]])
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-3)
    assert metrics["clip_fraction"] == pytest.approx(1 / all_tokens)
    assert metrics["kl"] > 0


def _differentiable(model: SignsModel, response: list[int]) -> torch.Tensor:
    tokens = torch.tensor([PROMPT + response])
    logprobs = model.logits(model.hidden_states(tokens))[0].log_softmax(-1)
    return torch.stack([logprobs[len(PROMPT) - 1 + i, t] for i, t in enumerate(response)])


def test_the_loss_is_a_mean_over_tokens_in_which_weights_count_as_repeats() -> None:
    def gradients(group: list[Sample]) -> list[torch.Tensor]:
        model = SignsModel(SMALL, seed=0)
        GrpoTrainer(model, GrpoConfig(learning_rate=0.0, max_grad_norm=1e9)).update([group])
        return [p.grad for p in model.parameters() if p.grad is not None]

    model = SignsModel(SMALL, seed=0)
    good, bad = scored(model, PROMPT, GOOD, 1.0), scored(model, PROMPT, BAD, 0.0)
    heavy = Sample(PROMPT, BAD, bad.behaviour_logprobs, 0.0, weight=3.0)
    weighted, repeated = gradients([good, heavy]), gradients([good, bad, bad, bad])
    assert len(weighted) == len(repeated) > 0
    for one, other in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_same_seed_gives_the_same_weights() -> None:
    def trained() -> list[torch.Tensor]:
        model = SignsModel(SMALL, seed=0)
        trainer = GrpoTrainer(model, seed=7)
        prompts = [prompt_tokens(problem) for problem in PROBLEMS]
        groups = [[scored(model, p, GOOD, 1.0), scored(model, p, BAD, 0.0)] for p in prompts]
        trainer.update(groups)
        trainer.update(groups)
        return parameters(model)

    assert all(torch.equal(a, b) for a, b in zip(trained(), trained(), strict=True))


def test_a_sample_without_a_logprob_per_token_is_refused() -> None:
    with pytest.raises(ValueError, match="3 log-probabilities for 2 tokens"):
        Sample([1], [4, 5], np.zeros(3), 0.0)
    with pytest.raises(ValueError, match="at least one token"):
        Sample([1], [], np.zeros(0), 0.0)


def test_an_untrained_model_solves_nothing() -> None:
    assert evaluate(SignsModel(SMALL, seed=0), PROBLEMS, seed=0, max_new_tokens=20) == 0.0
