"""Intervals hold what they promise, with five seeds; the shortcuts that one might take do not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from support.quality_study import SyntheticStudy

from steersman.controller.evaluate.costs import costs, ratios
from steersman.controller.evaluate.paired import (
    Interval,
    detectable,
    power,
    ratio,
    seeds_needed,
    student,
    worst_sd,
)
from steersman.controller.evaluate.resampling import expanded, redrawn_costs, resampled_means
from steersman.controller.evaluate.study import Study
from steersman.estimators.observation import Floats

TARGET = np.array([0.6])
TRUTH = math.log(0.7)
STUDIES = 300

Method = Callable[[Study], Interval]


def paired(study: Study) -> Interval:
    """Ours."""
    return ratios(study, "ours", "uniform", "tokens", TARGET)[0].log


def unpaired(study: Study) -> Interval:
    """The mutant that forgets which run belongs to which seed."""
    own, base = (logs_of(study, arm) for arm in ("ours", "uniform"))
    difference = student(own - np.roll(base, 1))
    return Interval(
        float(own.mean() - base.mean()), difference.low, difference.high, difference.sd, len(own)
    )


def logs_of(study: Study, arm: str) -> Floats:
    found = costs(study, arm, list(study.arm(arm)), "tokens", TARGET)[:, 0]
    return np.log(found)


def coverage(method: Method, design: SyntheticStudy, truth: float, studies: int) -> float:
    rng = np.random.default_rng(7)
    held = [method(design.study(rng)) for _ in range(studies)]
    return float(np.mean([found.low <= truth <= found.high for found in held]))


def seen(method: Method, design: SyntheticStudy, studies: int) -> float:
    """Share of the studies in which a gain is beyond doubt."""
    rng = np.random.default_rng(8)
    return float(np.mean([method(design.study(rng)).high < 0 for _ in range(studies)]))


def test_five_seeds_intervals_hold_the_truth_as_often_as_they_say() -> None:
    assert coverage(paired, SyntheticStudy(), TRUTH, STUDIES) >= 0.92


def test_they_do_so_where_runs_differ_much_and_evaluations_are_few() -> None:
    design = SyntheticStudy(run_sd=0.2, evaluated=100, evaluations=15, budget=2_000_000)
    assert coverage(paired, design, TRUTH, STUDIES) >= 0.92


def test_a_gain_that_pairing_sees_is_lost_without_it() -> None:
    design = SyntheticStudy(seed_sd=0.5, budget=3_000_000, evaluations=60)
    assert seen(paired, design, 60) >= 0.9
    assert seen(unpaired, design, 60) <= 0.5


# Runs that never get there


def dropped(own: Floats, base: Floats, limit: Floats) -> Interval:
    """The mutant that leaves out pairs in which a run did not get there."""
    both = (own <= limit) & (base <= limit)
    return student(np.log(own[both] / base[both]))


def test_leaving_out_runs_that_never_got_there_hides_a_loss() -> None:
    """An arm that is fast when lucky and else never arrives is no gain."""
    base = np.array([100.0, 110.0, 90.0, 105.0, 95.0, 100.0])
    own = np.array([80.0, 88.0, math.inf, math.inf, math.inf, 80.0])
    limit = np.full(6, 1000.0)
    found = ratio(own, base, limit, limit)
    assert dropped(own, base, limit).high < 0, "the mutant sees a certain gain"
    assert found.log.mean > 0.9
    assert (found.reached, found.base_reached, found.bound) == (3, 6, ">=")


def test_censored_runs_make_the_ratio_a_bound() -> None:
    whole, part = np.array([50.0, 50.0]), np.array([50.0, math.inf])
    limit = np.array([100.0, 100.0])
    assert ratio(whole, whole, limit, limit).bound == "="
    assert ratio(whole, part, limit, limit).bound == "<="
    assert ratio(part, whole, limit, limit).bound == ">="
    assert ratio(part, part, limit, limit).bound == "~"


def test_a_pair_is_compared_within_the_budget_that_both_had() -> None:
    """A run that was given more may not count what it did beyond the other's end."""
    found = ratio(np.array([300.0]), np.array([math.inf]), np.array([1000.0]), np.array([100.0]))
    assert found.log.mean == 0
    assert (found.reached, found.bound) == (0, "~")


def test_the_bound_is_on_the_right_side_of_the_truth() -> None:
    """The baseline's top is below the target in some seeds: its true cost is larger."""
    design = SyntheticStudy(budget=450_000)
    rng = np.random.default_rng(9)
    target = np.array([0.65])
    found = [ratios(design.study(rng), "ours", "uniform", "tokens", target)[0] for _ in range(100)]
    bounded = [r for r in found if r.bound == "<="]
    assert len(bounded) > 20
    assert np.mean([r.log.mean for r in bounded]) > TRUTH


# Bands


def test_the_bootstrap_over_seeds_and_evaluations_covers_enough() -> None:
    design, rng = SyntheticStudy(), np.random.default_rng(10)
    held = []
    for _ in range(40):
        study = design.study(rng)
        logs = [
            np.log(redrawn_costs(study.arm("ours")[seed], "tokens", TARGET, rng))
            - np.log(redrawn_costs(study.arm("uniform")[seed], "tokens", TARGET, rng))
            for seed in study.common_seeds("ours", "uniform")
        ]
        low, high = expanded(resampled_means(logs, rng), len(logs))
        held.append(low[0] <= TRUTH <= high[0])
    assert np.mean(held) >= 0.92


def test_percentiles_are_moved_outwards_to_where_students_interval_would_be() -> None:
    """Of 5 seeds: sqrt(5 / 4) of Student's 2.776 standard errors."""
    draws = np.random.default_rng(13).normal(0, 1, (400_000, 1))
    low, high = expanded(draws, 5)
    assert (low[0], high[0]) == pytest.approx((-3.104, 3.104), abs=0.1)
    low, high = expanded(draws, 1)
    assert (low[0], high[0]) == pytest.approx((-1.96, 1.96), abs=0.02)


# Power


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 10), (1.0, 5), (1.5, 6), (0.3, 60)])
def test_power_is_what_simulated_tests_have(effect: float, seeds: int) -> None:
    from scipy.special import stdtrit

    x = np.random.default_rng(11).normal(effect, 1.0, (20_000, seeds))
    t = x.mean(1) / (x.std(1, ddof=1) / math.sqrt(seeds))
    assert power(effect, seeds) == pytest.approx(
        float((t > stdtrit(seeds - 1, 0.975)).mean()), abs=0.015
    )


def test_the_detectable_difference_and_the_seeds_needed_are_inverse() -> None:
    for sd in (0.05, 0.2):
        for seeds in (4, 12, 50):
            least = detectable(sd, seeds)
            assert power(least / sd, seeds) == pytest.approx(0.8, abs=1e-6)
            assert seeds_needed(least * 1.001, sd) == seeds
            assert seeds_needed(least * 0.999, sd) == seeds + 1


def test_few_seeds_leave_a_larger_spread_plausible() -> None:
    assert worst_sd(0.1, 5) > worst_sd(0.1, 20) > 0.1
    rng = np.random.default_rng(12)
    held = [worst_sd(float(rng.normal(0, 0.1, 5).std(ddof=1)), 5) >= 0.1 for _ in range(2000)]
    assert np.mean(held) == pytest.approx(0.9, abs=0.03)


def test_one_seed_has_no_interval() -> None:
    found = student([0.3])
    assert found.mean == 0.3
    assert math.isnan(found.low)
    assert math.isnan(detectable(found.sd, 1))
