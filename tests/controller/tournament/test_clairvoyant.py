"""The clairvoyant reference: optimal where that can be checked, and comparable to a replay."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from steersman.controller.config import load_config
from steersman.controller.replay.bounds import bounds
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament import clairvoyant
from steersman.controller.tournament.clairvoyant import (
    Work,
    clairvoyant_makespan,
    isolation,
    longest_first,
    optimum_s,
    relaxed_s,
)
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated.profile import load_profile

FLEET = FleetPlan(load_profile("qwen3-8b-h100-tp1"), 8)
STRONG = Lengths(steps=1)
WEAK = Lengths(steps=1, p90_over_p50=1.5, median_tokens=3000)


def random_work(rng: np.random.Generator, count: int) -> Work:
    """The paper's lengths: median about 1,100, the longest ten times that."""
    length = np.sort(np.minimum(np.exp(rng.normal(7.0, 1.0, count)), 16384.0))[::-1]
    return Work.free(0.0067, length, 2e-4 * length)


def end_s(work: Work, replica: np.ndarray, replicas: int) -> float:
    return float(work.end_s(replica, np.ones(replicas)).max())


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_that_of_all_assignments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    work = replace(random_work(rng, 8), fixed_s=0.0067 * rng.random())
    every = [end_s(work, np.array(a), 3) for a in product(range(3), repeat=8)]
    assert optimum_s(work, 3) == pytest.approx(min(every))


def test_isolation_is_within_4_percent_of_the_optimum_in_100_of_100_groups() -> None:
    """As TailSieve reports of its own; here against what no assignment can be below."""
    rng = np.random.default_rng(0)
    over = []
    for case in range(100):
        replicas, work = 2 + case % 3, random_work(rng, 10 + case % 31)
        plan = isolation(work, np.ones(replicas))
        over.append(end_s(work, plan, replicas) / relaxed_s(work, replicas))
    assert min(over) >= 1 - 1e-9
    assert max(over) <= 1.04
    assert np.mean(np.array(over) <= 1.01) >= 0.72


@pytest.mark.parametrize("seed", range(10))
def test_the_relaxation_is_below_the_optimum_and_the_plans_above(seed: int) -> None:
    rng = np.random.default_rng(seed)
    work, replicas = random_work(rng, 12), 2 + seed % 2
    least, best = relaxed_s(work, replicas), optimum_s(work, replicas)
    assert least <= best * (1 + 1e-9)
    for planned in (isolation, longest_first):
        assert best <= end_s(work, planned(work, np.ones(replicas)), replicas) * (1 + 1e-9)


def test_too_many_trajectories_to_be_exact_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clairvoyant, "MOST_STATES", 1000)
    length = 1000.0 + np.sort(np.random.default_rng(1).random(60))[::-1]
    with pytest.raises(InvalidInputError, match="60 trajectories"):
        optimum_s(Work.free(1e-9, length, length), 4)


def test_isolation_gives_long_trajectories_small_batches() -> None:
    work, _ = Work.of(made_up(WEAK, 0).steps[0], FLEET)
    count = np.bincount(isolation(work, np.ones(8)), minlength=8)
    assert count.sum() == len(work.length)
    assert (np.diff(count) >= 0).all()
    assert count[0] < count[-1] / 4


def test_the_fastest_replica_gets_the_longest() -> None:
    work, _ = Work.of(made_up(WEAK, 0).steps[0], FLEET)
    assert isolation(work, np.array([0.5, 0.5, 1.0, 0.5]))[0] == 2


@pytest.mark.parametrize(
    ("lengths", "plan"),
    [
        (STRONG, FLEET),
        (WEAK, FLEET),
        (STRONG, replace(FLEET, speeds=(1.0,) * 6 + (0.5,) * 2)),
        (
            replace(STRONG, groups=32),
            replace(FLEET, profile=replace(FLEET.profile, max_num_seqs=8)),
        ),
        (
            replace(STRONG, groups=48, median_tokens=2500, p90_over_p50=3.0),
            FleetPlan(replace(FLEET.profile, kv_capacity_tokens=100_000), 4),
        ),
    ],
    ids=["strong tail", "weak tail", "mixed hardware", "few slots", "little memory"],
)
def test_it_is_not_slower_than_the_default_rule_and_not_faster_than_the_bounds(
    lengths: Lengths, plan: FleetPlan
) -> None:
    (step,) = made_up(lengths, 3).steps
    best = clairvoyant_makespan(step, plan)
    config = load_config(None, ["tick_s=2.0"], environ={})
    default = replay(Workload([step]), plan, config).steps[0].makespan_s
    assert bounds(step.length, step.prompt_tokens, plan).best_s <= best.makespan_s
    assert best.makespan_s <= 1.01 * default
    assert best.makespan_s == best.all_s[best.schedule] == min(best.all_s.values())


def test_a_weak_tail_could_be_a_quarter_faster_than_the_default_rule() -> None:
    """Where lengths are alike the replicas' M is paid once per length: sorting them saves most."""
    best = clairvoyant_makespan(made_up(WEAK, 0).steps[0], FLEET)
    assert best.schedule == "isolation"
    assert best.makespan_s < 0.8 * best.all_s["longest first, fewest in flight"]


def test_a_replay_latency_is_part_of_it_and_nothing_takes_no_more() -> None:
    (step,) = made_up(replace(WEAK, groups=2), 0).steps
    with_it, without = (clairvoyant_makespan(step, FLEET, s).makespan_s for s in (0.5, 0.0))
    assert with_it == pytest.approx(without + 0.5)
