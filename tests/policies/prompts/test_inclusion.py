"""The probabilities that come with a draw are those of the draw."""

from collections.abc import Callable
from itertools import product
from typing import cast

import numpy as np
import pytest

from steersman.policies.prompts import _inclusion
from steersman.policies.prompts._inclusion import best, kept, smallest, weighted

RUNS = 3000
Draw = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


def inverse_weights(draw: Draw, offered: int, size: int) -> np.ndarray:
    """(RUNS, offered) 1 / probability where drawn, else 0; every draw has the size."""
    weight = np.zeros((RUNS, offered))
    for seed in range(RUNS):
        row, probability = draw(np.random.default_rng(seed))
        assert len(row) == len(np.unique(row)) == size
        weight[seed, row] = 1.0 / probability
    return weight


def assert_unbiased(weight: np.ndarray) -> None:
    error = weight.std(axis=0) / np.sqrt(RUNS)
    assert (np.abs(weight.mean(axis=0) - 1.0) <= 5.0 * error + 1e-9).all()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("spread", [0.3, 2.5])
def test_a_weighted_draw_has_probabilities_in_proportion_up_to_one(
    spread: float, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as many rows are shuffled, which takes less time."""
    if many:
        monkeypatch.setattr(_inclusion, "SHUFFLED", 10)
        monkeypatch.setattr(_inclusion, "FEWEST_ROWS", 2)
    weights = np.exp(np.random.default_rng(1).normal(0.0, spread, 15))
    drawn = inverse_weights(lambda rng: weighted(weights, 6, rng), 15, 6)
    assert_unbiased(drawn)
    probability = 1.0 / drawn.max(axis=0)  # the same in every draw
    assert probability.sum() == pytest.approx(6.0)
    below = probability < 1.0
    ratio = probability[below] / weights[below]
    assert ratio == pytest.approx(np.full(len(ratio), ratio[0]))
    assert below.all() == (spread == 0.3)


@pytest.mark.parametrize("uniform_share", [0.1, 0.5, 1.0])
def test_the_best_and_a_uniform_share_of_the_others(uniform_share: float) -> None:
    """Among them ties at the cut, which are broken by lot."""
    score = np.array([9.0, 8.0, 5.0, 5.0, 5.0, 5.0, 1.0, 0.0, 0.0])
    assert_unbiased(inverse_weights(lambda rng: best(score, 4, uniform_share, rng), 9, 4))


def test_without_a_uniform_share_only_the_best_are_drawn() -> None:
    row, probability = best(np.array([1.0, 4.0, 2.0, 3.0]), 2, 0.0, np.random.default_rng(0))
    assert sorted(row.tolist()) == [1, 3]
    assert probability.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("uniform_share", [0.0, 0.3, 1.0])
def test_the_smallest_of_independent_draws(uniform_share: float) -> None:
    """Exponential draws of different rates."""
    rate = np.array([0.2, 0.5, 1.0, 1.0, 2.0, 3.0, 5.0])

    def below(row: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 - np.exp(-rate[row] * x))

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return smallest(rng.exponential(1.0 / rate), below, 3, uniform_share, rng)

    assert_unbiased(inverse_weights(draw, 7, 3))


def test_a_weighted_draw_leaves_every_company_possible() -> None:
    """Also of neighbours, which a systematic sample in a fixed order never draws together."""
    draws = [weighted(np.ones(6), 3, np.random.default_rng(seed))[0] for seed in range(400)]
    assert len({tuple(sorted(row.tolist())) for row in draws}) == 20


@pytest.mark.parametrize(
    ("keep", "count"),
    [
        ([0.05, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01], 4),
        ([0.4, 0.4, 0.4, 0.3, 0.2, 0.1, 0.05], 4),
        ([1.0, 1.0, 1.0, 0.8, 0.5, 0.2, 0.1], 4),
        ([0.3, 0.3, 0.5], 1),
    ],
)
def test_the_first_that_pass_a_coin_in_a_random_order(keep: list[float], count: int) -> None:
    """With low odds the order is gone through several times before enough have passed."""
    odds = np.array(keep)

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        order = rng.permutation(len(odds))
        row, probability = kept(odds[order], count, rng)
        return order[row], probability

    assert_unbiased(inverse_weights(draw, len(odds), count))


class Passes:
    """Coins known beforehand."""

    def __init__(self, passes: tuple[int, ...]) -> None:
        self.passes = passes

    def geometric(self, keep: np.ndarray) -> np.ndarray:
        return np.array(self.passes)


def test_the_weight_of_the_first_to_pass_is_unbiased_to_the_last_digit() -> None:
    """Summed over all outcomes of the coins of two prompts, in both orders."""
    odds, total = np.array([0.3, 0.6]), np.zeros(2)
    for order in ([0, 1], [1, 0]):
        keep = odds[order]
        for passes in product(range(1, 60), repeat=2):
            chance = 0.5 * np.prod(keep * (1.0 - keep) ** (np.array(passes) - 1))
            row, probability = kept(keep, 1, cast("np.random.Generator", Passes(passes)))
            total[order[row[0]]] += chance / probability[0]
    assert total == pytest.approx(np.ones(2), abs=1e-6)
