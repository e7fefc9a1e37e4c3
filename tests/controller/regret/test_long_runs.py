"""Long runs: as long as wanted, the same for all entries, and regimes that do not mix."""

import numpy as np
import pytest

from steersman.controller.regret.long_runs import REGIME_STEPS, long_run, long_runs
from steersman.estimators.errors import UnknownNameError


def test_a_run_changes_its_regime_every_hundred_steps_and_begins_again() -> None:
    names = long_run("changing").regimes
    assert long_run("changing").starts(350) == [
        (0, names[0]), (100, names[1]), (200, names[2]), (300, names[0]),
    ]  # fmt: skip


def test_a_short_run_shares_its_steps_among_the_regimes() -> None:
    assert [first for first, _ in long_run("changing").starts(6)] == [0, 2, 4]
    assert [first for first, _ in long_run("steady_tail").starts(6)] == [0]


def test_all_long_runs_are_on_one_fleet() -> None:
    assert len({run.plan for run in long_runs().values()}) == 1


@pytest.mark.parametrize("name", list(long_runs()))
def test_a_run_has_its_steps_and_depends_on_the_seed_alone(name: str) -> None:
    one, again, other = (long_run(name).make(seed, 7) for seed in (0, 0, 1))
    assert [step.step for step in one.steps] == list(range(7))
    for a, b in zip(one.steps, again.steps, strict=True):
        assert (a.length == b.length).all()
        assert (a.turns.extra_tokens == b.turns.extra_tokens).all()
    assert any(
        (a.turns.extra_tokens != b.turns.extra_tokens).any() or (a.length != b.length).any()
        for a, b in zip(one.steps, other.steps, strict=True)
    )


def test_regimes_share_no_prompts_and_go_on_where_they_stopped() -> None:
    steps = 3 * REGIME_STEPS + 2
    made = long_run("changing").make(0, steps).steps
    alone = long_run("steady_tail").make(0, steps).steps
    assert (made[3 * REGIME_STEPS].length == alone[REGIME_STEPS].length).all()
    tail, waves = (np.concatenate([s.prompt_key for s in made[i : i + 100]]) for i in (0, 100))
    assert not np.intersect1d(tail, waves).size


def test_a_workload_of_the_tournament_can_be_run_long() -> None:
    run = long_run("few_groups")
    assert run.starts(8) == [(0, "few_groups")]
    assert len(run.make(0, 8).steps) == 8


@pytest.mark.parametrize("name", ["steady_tale", "async_lag", "drifting_prompts", "wandering"])
def test_what_has_no_steps_of_its_own_is_not_a_long_run(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown workload '{name}'"):
        long_run(name)
