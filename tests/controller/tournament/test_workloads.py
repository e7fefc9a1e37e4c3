"""The workloads are what their names say, and the same for every policy."""

import dataclasses

import numpy as np
import pytest

from steersman.controller.tournament.arena import Arena
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.controller.tournament.workloads import arenas
from steersman.estimators.errors import InvalidInputError

MADE = [arena for arena in arenas().values() if isinstance(arena, Arena)]


def share_between_prompts(lengths: Lengths, seed: int = 0) -> float:
    """Part of the variance of log-lengths that lies between groups."""
    logs = [
        np.log(step.length).reshape(-1, lengths.group_size) for step in made_up(lengths, seed).steps
    ]
    groups = np.concatenate(logs)
    within = groups.var(axis=1, ddof=1).mean()
    return float(1 - within / groups.var())


@pytest.mark.parametrize("arena", MADE, ids=lambda arena: arena.name)
def test_the_same_seed_gives_the_same_workload_and_another_seed_another(arena: Arena) -> None:
    first, again, other = (arena.make(seed, 2) for seed in (3, 3, 4))
    for a, b in zip(first.steps, again.steps, strict=True):
        for column in dataclasses.fields(a):
            if column.name != "turns":
                assert np.array_equal(
                    getattr(a, column.name), getattr(b, column.name), equal_nan=column.name in
                    ("reward", "regret")
                )  # fmt: skip
        assert np.array_equal(a.turns.wait_s, b.turns.wait_s)
    assert any(
        not np.array_equal(a.length, b.length) or not np.array_equal(a.turns.wait_s, b.turns.wait_s)
        for a, b in zip(first.steps, other.steps, strict=True)
    )


@pytest.mark.parametrize("arena", MADE, ids=lambda arena: arena.name)
def test_lengths_are_within_their_caps_and_turns_add_up_to_them(arena: Arena) -> None:
    for step in arena.make(0, arena.steps).steps:
        assert (step.length >= 1).all()
        assert (step.length <= step.max_new_tokens).all()
        row = np.repeat(np.arange(len(step)), step.turns.count)
        assert np.bincount(row, weights=step.turns.tokens) == pytest.approx(step.length)
        assert (np.diff(step.group_row) >= 0).all()
        assert len(np.unique(step.prompt_key)) == len(step.prompt_key)


def test_the_tail_is_as_heavy_as_asked_for() -> None:
    for ratio in (1.5, 6.0):
        lengths = Lengths(steps=8, groups=256, p90_over_p50=ratio, max_new_tokens=1 << 20)
        length = np.concatenate([step.length for step in made_up(lengths, 0).steps])
        assert np.quantile(length, 0.9) / np.median(length) == pytest.approx(ratio, rel=0.12)


def test_the_prompt_explains_as_much_of_the_variance_as_asked_for() -> None:
    for share in (0.1, 0.65, 0.9):
        lengths = Lengths(steps=8, groups=256, prompt_share=share, max_new_tokens=1 << 20)
        assert share_between_prompts(lengths) == pytest.approx(share, abs=0.06)


def test_a_prompt_comes_again_every_other_step_unless_the_pool_is_larger() -> None:
    steps = made_up(Lengths(steps=4), 0).steps
    seen = [set(step.prompt_key.tolist()) for step in steps]
    assert seen[0] | seen[1] == seen[2] | seen[3]
    assert not seen[0] & seen[1]
    fresh = made_up(Lengths(steps=4, pool=1 << 12), 0).steps
    keys = np.concatenate([step.prompt_key for step in fresh])
    assert len(np.unique(keys)) == len(keys)


def test_lengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="groups is 0"):
        Lengths(groups=0)
    with pytest.raises(InvalidInputError, match="p90_over_p50 above 1"):
        Lengths(p90_over_p50=1.0)
