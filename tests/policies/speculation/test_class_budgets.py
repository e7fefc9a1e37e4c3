"""DAS's budgets: what they are, and that they beat drafting without bound in their own model."""

from dataclasses import replace

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.forecast import AcceptanceForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Ints
from steersman.policies.speculation.class_budgets import ClassBudgets, draft_budgets

FIXED_S, TOKEN_S, ACCEPTED = 0.012, 0.0004, 0.7
LENGTHS = np.array([[200.0, 1000.0, 6000.0]])
COUNTS = np.array([[30, 10, 3]])


def budgets(**change: np.ndarray) -> tuple[float, np.ndarray]:
    given = {
        "length": LENGTHS,
        "count": COUNTS,
        "accepted": np.array([ACCEPTED]),
        "pass_s": np.array([FIXED_S]),
        "token_s": np.array([TOKEN_S]),
    } | change
    passes, budget = draft_budgets(**given)
    return float(passes[0]), budget[0]


def takes_s(passes: float, budget: np.ndarray) -> float:
    written = np.minimum(LENGTHS[0], passes)
    return FIXED_S * passes + TOKEN_S * float(((budget + written) * COUNTS[0]).sum())


def test_short_ones_get_nothing_and_longer_ones_more() -> None:
    passes, budget = budgets()
    assert budget[0] == 0.0
    assert budget[0] <= budget[1] < budget[2]
    assert LENGTHS[0, 1] < passes < LENGTHS[0, 2]


def test_the_budget_saves_exactly_the_passes_that_it_must() -> None:
    """A(p) with k = accepted and a = 1, the model's own curve."""
    passes, budget = budgets()
    saved = ACCEPTED * LENGTHS[0] * (1 - np.exp(-budget / LENGTHS[0]))
    long = LENGTHS[0] > passes
    assert LENGTHS[0][long] - saved[long] == pytest.approx(passes)


def test_no_other_number_of_passes_is_faster() -> None:
    passes, budget = budgets()
    least = takes_s(passes, budget)
    for other in np.linspace(0.31 * 6000, 6000, 500):
        left = 1 - np.maximum(1 - other / LENGTHS[0], 0) / ACCEPTED
        assert takes_s(other, -LENGTHS[0] * np.log(left)) >= 0.999 * least


def test_an_unlimited_budget_is_slower() -> None:
    """The fewest passes that can be had, for all: here it is slower than not to draft at all."""
    passes, budget = budgets()
    fewest = 6000 * (1 - ACCEPTED * 63 / 64)
    unlimited = LENGTHS[0] * np.log(64.0)
    assert takes_s(fewest, unlimited) > 1.15 * takes_s(passes, budget)
    assert takes_s(passes, budget) < takes_s(6000.0, np.zeros(3)) < takes_s(fewest, unlimited)


def test_where_computing_is_dear_or_nothing_is_accepted_nobody_drafts() -> None:
    assert budgets(token_s=np.array([0.05]))[1].tolist() == [0.0, 0.0, 0.0]
    assert budgets(accepted=np.array([0.0]))[1].tolist() == [0.0, 0.0, 0.0]


def drafts(lengths: list[list[float]], most: int = 16, accepted: float = ACCEPTED) -> list[int]:
    """What replicas that run trajectories of these remaining lengths draft."""
    rows = [(r, left) for r, group in enumerate(lengths) for left in group]
    replica: Ints = np.array([r for r, _ in rows])
    n = len(lengths)
    table = trajectory_table([Phase.RUNNING] * len(rows), replica_row=replica)
    replicas = replica_table(n, max_draft_tokens=np.full(n, most), max_num_seqs=np.full(n, 256))
    seen = observation(table, replicas)
    f = forecast_of(seen, [left for _, left in rows], FIXED_S, TOKEN_S)
    known = AcceptanceForecast(np.full((n, 8), accepted), np.ones(n))
    after = dict.fromkeys(replicas.names, 0)
    for d in ClassBudgets().decide(seen, replace(f, acceptance=known), np.random.default_rng(0)):
        after[d.replica] = d.draft_tokens
    return list(after.values())


def test_a_replica_with_a_lone_long_one_drafts_more_than_one_full_of_short_ones() -> None:
    lone, few, full = drafts([[8000.0], [300.0] * 10 + [6000.0], [300.0] * 120])
    assert lone > few > full == 0


def test_the_engine_s_limit_holds() -> None:
    assert drafts([[8000.0]], most=2) == [2]


def test_a_better_drafter_gets_more_budget() -> None:
    by_share = [drafts([[8000.0] + [300.0] * 10], accepted=q)[0] for q in (0.1, 0.5, 0.9)]
    assert by_share[0] < by_share[1] <= by_share[2]


def test_borders_of_the_classes_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="medium_from < long_from"):
        ClassBudgets(medium_from=0.9, long_from=0.5)
