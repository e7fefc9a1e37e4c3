"""The table: paired by seed, per useful work, with honest intervals."""

import math

import pytest
from support.cells import cell

from steersman.controller.tournament.standing import rows

DEFAULT = "sticky_least_inflight"


def test_the_ratio_is_paired_by_seed_not_taken_of_the_sums() -> None:
    cells = [cell(DEFAULT, 0, 10.0), cell(DEFAULT, 1, 1000.0)]
    cells += [cell("other", 0, 5.0), cell("other", 1, 2000.0)]
    default, other = rows(cells)
    assert default.makespan_ratio == 1.0
    assert default.ci95 == (1.0, 1.0)
    assert other.makespan_ratio == pytest.approx(1.0)  # geometric mean of 0.5 and 2
    assert other.ci95[0] < 0.01
    assert other.ci95[1] > 100


def test_half_the_useful_work_in_half_the_time_gains_nothing() -> None:
    cells = [cell(DEFAULT, 0, 10.0), cell("cutter", 0, 5.0, useful=500.0)]
    assert rows(cells)[1].makespan_ratio == 1.0


def test_one_seed_has_no_interval_and_a_seed_without_its_default_does_not_count() -> None:
    (_, other) = rows([cell(DEFAULT, 0, 10.0), cell("other", 0, 5.0), cell("other", 1, 1.0)])
    assert (other.seeds, other.makespan_ratio) == (1, 0.5)
    assert math.isnan(other.ci95[0])


def test_efficiency_is_the_mean_of_the_seeds_and_unknown_if_any_reference_is() -> None:
    cells = [cell(DEFAULT, 0, 10.0), cell(DEFAULT, 1, 20.0)]
    assert rows(cells)[0].efficiency == pytest.approx((0.5 + 0.25) / 2)
    assert rows(cells)[0].efficiency_vs_clairvoyant == pytest.approx((0.8 + 0.4) / 2)
    cells[1] = cell(DEFAULT, 1, 20.0, clairvoyant_s=None)
    assert rows(cells)[0].efficiency_vs_clairvoyant is None


def test_a_policy_that_could_mix_weight_versions_but_never_did_is_exact_as_played() -> None:
    default = [cell(DEFAULT, 0, 10.0)]
    calm = cell("planner", 0, 9.0, correctness="corrected")
    assert rows([*default, calm])[1].correctness == "exact"
    assert rows([*default, calm], streams=["strong_tail"])[1].correctness == "corrected"
    busy = cell("planner", 0, 9.0, correctness="corrected", deferred=1)
    assert rows([*default, busy])[1].correctness == "corrected"
    stopping = cell("planner,stopping.name=other", 0, 9.0, correctness="corrected", stopped=1)
    assert rows([*default, stopping])[1].correctness == "corrected"
    cutting = cell("cutter", 0, 9.0, correctness="empirical")
    assert rows([*default, cutting])[1].correctness == "empirical"
