"""The chooser: pools that change, rewards of all kinds, turns that are neither lost nor doubled."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.controller.plugins import load, names
from steersman.controller.prompts.chooser import PromptChooser, key_of
from steersman.controller.results import Prompt
from steersman.estimators.errors import InvalidInputError
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest
from steersman.policies.prompts.prompt_value import PromptValue
from steersman.policies.prompts.uniform import Uniform


def chooser(
    policy: PromptPolicy | None = None, ids: Sequence[str | int] = (), **options: object
) -> PromptChooser:
    built = PromptChooser(
        policy or PromptValue(), group_size=4, max_new_tokens=50, **options  # type: ignore[arg-type]
    )  # fmt: skip
    built.set_pool(ids or [f"p{i}" for i in range(12)])
    return built


def answered(keys: np.ndarray, rewards: Sequence[Sequence[float]], version: int) -> FinishedGroups:
    sizes = [len(own) for own in rewards]
    m, n = len(sizes), sum(sizes)
    return FinishedGroups(
        group_id=100 * version + np.arange(m),
        prompt_key=keys,
        weight_version=np.full(m, version),
        group_row=np.repeat(np.arange(m), sizes),
        trajectory_id=np.arange(n),
        reward=np.array([r for own in rewards for r in own], dtype=np.float64),
        tokens=np.full(n, 10),
        truncated=np.zeros(n, dtype=np.bool_),
        step=version,
        weight_version_now=version,
    )


def run_step(each: PromptChooser, step: int, wanted: int = 3) -> list[str | int]:
    """A step whose rewards depend on prompt and step alone; returns who was rolled out."""
    done: list[str | int] = []
    accepted = 0
    for refill in range(4):
        chosen = each.choose(wanted - accepted, step, step, refill)
        if not len(chosen):
            break
        done += chosen.prompt_id
        rewards = [
            list(np.random.default_rng((key % 1000, step)).integers(0, 2, n).astype(float))
            for key, n in zip(chosen.prompt_key.tolist(), chosen.size.tolist(), strict=True)
        ]
        groups = answered(chosen.prompt_key, rewards, step)
        more = each.extend(groups)
        rewards = [own + [1.0] * int(n) for own, n in zip(rewards, more, strict=True)]
        accepted += int(each.finished(answered(chosen.prompt_key, rewards, step)).accepted.sum())
        if accepted >= wanted:
            break
    return done


def test_the_key_of_a_name_is_the_sessions_and_an_integer_is_its_own() -> None:
    assert key_of("a") == Prompt("a", [1]).key
    assert key_of(17) == key_of(np.int64(17)) == 17
    with pytest.raises(InvalidInputError, match=r"1\.5"):
        key_of(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Uniform, PromptValue])
def test_chosen_prompts_come_with_size_cap_probability_and_a_weight_of_one_on_average(
    policy: type[PromptPolicy],
) -> None:
    chosen = chooser(policy(), selects=False).choose(5, 0, 0)
    assert len(set(chosen.prompt_id)) == len(chosen) == 5
    assert [key_of(each) for each in chosen.prompt_id] == chosen.prompt_key.tolist()
    assert (chosen.size == 4).all()
    assert (chosen.max_new_tokens == 50).all()
    assert chosen.weight.mean() == pytest.approx(1.0)
    product = chosen.weight * chosen.inclusion_probability
    assert product == pytest.approx(np.full(5, product[0]))


def test_a_prompt_that_stands_twice_in_the_pool_is_named() -> None:
    with pytest.raises(InvalidInputError, match="'b' stands twice in the pool, at 1 and 3"):
        chooser(ids=["a", "b", "c", "b"])
    with pytest.raises(InvalidInputError, match="7 stands twice"):
        chooser(ids=[7, 8, 7])


def test_a_prompt_that_is_not_in_the_pool_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown prompt 'nobody'.*12"):
        chooser().observe("nobody", [1.0], 0)
    with pytest.raises(InvalidInputError, match="unknown prompt 99"):
        chooser(ids=[1, 2]).observe(99, [1.0], 0)


def test_bad_outcomes_are_refused_with_the_prompts_name() -> None:
    with pytest.raises(InvalidInputError, match=r"'p1'.*infinite"):
        chooser().observe("p1", [1.0, float("inf")], 0)
    with pytest.raises(InvalidInputError, match="'p1': 1 lengths for 2 rewards"):
        chooser().observe("p1", [1.0, 0.0], 0, tokens=[5])


class Watching(Uniform):
    """Remembers what it was offered, by key."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[float, float, float, int]] = {}

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        c = request.candidates
        columns = (c.logit_mean, c.pass_deviation, c.mean_tokens, c.waited)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.seen = dict(zip(c.prompt_key.tolist(), rows, strict=True))
        return super().choose(request, rng)


def test_unknown_rewards_are_counted_and_leave_no_trace() -> None:
    nan, outcomes = float("nan"), {}
    for rewards in ([1.0, 1.0], [1.0, nan, 1.0, nan], [nan, nan]):
        policy = Watching()
        each = chooser(policy)
        told = each.observe("p3", rewards, 0)
        assert told == sum(np.isnan(rewards))
        each.choose(2, 1, 1)
        outcomes[len(rewards) - told] = policy.seen
    assert repr(outcomes[2]) != repr(outcomes[0])
    both = [np.array(list(seen.values())) for seen in (outcomes[2], outcomes[0])]
    assert all(np.isfinite(table[:, 0]).all() for table in both)
    policy = Watching()
    each = chooser(policy)
    each.observe("p3", [1.0, 1.0, nan], 0)
    each.choose(2, 1, 1)
    assert repr(policy.seen) == repr(outcomes[2])


def test_fractional_rewards_count_in_part() -> None:
    means = []
    for rewards in ([0.0] * 4, [0.25] * 4, [0.75] * 4, [1.0] * 4):
        policy = Watching()
        each = chooser(policy)
        each.observe("p0", rewards, 0)
        each.choose(2, 1, 1)
        means.append(policy.seen[key_of("p0")][0])
    assert means == sorted(means)
    assert len(set(means)) == 4


def test_lengths_are_averaged_and_waits_are_counted_from_the_last_choice() -> None:
    policy = Watching()
    each = chooser(policy, ids=["a", "b", "c", "d"])
    first = each.choose(2, 3, 3).prompt_id
    each.observe("a", [1.0, 0.0], 3, tokens=[10, 30])
    each.choose(1, 7, 7)
    assert policy.seen[key_of("a")][2] == 20.0
    assert np.isnan(policy.seen[key_of("b")][2])
    waited = {name: policy.seen[key_of(name)][3] for name in "abcd"}
    assert waited == {name: 4 if name in first else 7 for name in "abcd"}


def test_what_is_known_of_prompts_that_remain_in_a_changed_pool_is_kept() -> None:
    policy = Watching()
    each = chooser(policy, ids=["a", "b", "c"])
    each.observe("b", [1.0] * 4, 0, tokens=[9] * 4)
    each.choose(3, 1, 1)
    each.withhold(["c"])
    each.set_pool(["d", "b", "c", "e"])
    assert each.pool_size == 4
    assert each.available == 3
    each.choose(2, 5, 5)
    seen = policy.seen
    assert key_of("c") not in seen
    assert seen[key_of("b")][0] > seen[key_of("d")][0]
    assert seen[key_of("b")][2:] == (9.0, 4)
    assert seen[key_of("d")][3] == 4
    with pytest.raises(InvalidInputError, match="'a'"):
        each.observe("a", [1.0], 5)
    each.set_pool([f"p{i}" for i in range(3)])
    assert set(each.choose(5, 6, 6).prompt_id) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("policy", [Uniform, PromptValue])
def test_no_prompt_is_chosen_twice_in_a_step_nor_while_it_is_withheld(
    policy: type[PromptPolicy],
) -> None:
    each = chooser(policy(), selects=False)
    each.withhold(["p0", "p1", "not there"])
    ids = [name for refill in range(4) for name in each.choose(3, 0, 0, refill).prompt_id]
    assert sorted(ids) == sorted(f"p{i}" for i in range(2, 12))
    each.release(["p0"])
    assert each.choose(3, 0, 0, 4).prompt_id == ["p0"]
    each.release()
    assert each.available == 12
    assert len(each.choose(12, 1, 1)) == 12


@given(
    prompts=st.integers(1, 20),
    wanted=st.lists(st.integers(1, 7), min_size=1, max_size=30),
    seed=st.integers(0, 50),
    shuffle=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_every_prompt_has_one_turn_per_epoch_whatever_the_batches(
    prompts: int, wanted: list[int], seed: int, shuffle: bool
) -> None:
    each = chooser(Uniform(), list(range(prompts)), seed=seed, shuffle=shuffle)
    turns: list[str | int] = []
    for step, count in enumerate(wanted):
        turns += each.choose(count, step, step).prompt_id
        had = np.bincount(np.array(turns, dtype=np.int64), minlength=prompts)
        assert had.max() - had.min() <= 1
    if not shuffle:
        assert turns[:prompts] == list(range(min(prompts, len(turns))))


def test_epochs_differ_in_their_order_and_a_pools_own_order_is_kept_if_asked() -> None:
    each = chooser(Uniform(), list(range(30)))
    first, second = each.choose(30, 0, 0).prompt_id, each.choose(30, 1, 1).prompt_id
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    plain = chooser(Uniform(), list(range(30)), shuffle=False)
    assert plain.choose(30, 0, 0).prompt_id == list(range(30))


def test_those_before_the_last_one_taken_had_their_turn_and_the_others_come_again() -> None:
    class Skipping(Uniform):
        def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
            offers.append(request.candidates.prompt_key.tolist())
            return PromptChoice.of(request, np.array([3, 1]), np.ones(2), "two of four")

    offers: list[list[int]] = []
    each = chooser(Skipping(), list(range(10)), offered=6)
    each.choose(2, 0, 0)
    each.choose(2, 1, 1)
    assert len(offers[0]) == 6
    assert offers[1][:2] == offers[0][4:]
    assert sorted([*offers[0][:4], *offers[1]]) == list(range(10))


@pytest.mark.parametrize("name", names("policies.prompts"))
@pytest.mark.parametrize("stop", [2, 3])
def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_been_interrupted(
    name: str, stop: int
) -> None:
    """Amid an epoch, with groups that were observed and not learned yet."""
    ids = [f"p{i}" for i in range(12)]
    whole, half = (chooser(load("policies.prompts", name)(), ids, seed=5) for _ in range(2))
    for step in range(stop):
        for each in (whole, half):
            run_step(each, step)
            each.observe(ids[step], [1.0, 0.0, float("nan")], step, tokens=[4, 5, 6])
    state = half.state_dict()
    resumed = chooser(load("policies.prompts", name)(), ids, seed=5)
    resumed.load_state_dict(state)
    for step in range(stop, stop + 4):
        assert run_step(resumed, step) == run_step(whole, step)


def test_a_state_can_be_written_as_json_and_be_taken_over_by_another_data_set() -> None:
    each = chooser(ids=["a", "b", "c", "d"])
    each.observe("b", [1.0] * 4, 0, tokens=[7] * 4)
    each.choose(2, 1, 1)
    each.withhold(["c"])
    state = json.loads(json.dumps(each.state_dict(), default=lambda array: array.tolist()))
    other = chooser(ids=["x", "c", "b"])
    other.load_state_dict(state)
    assert other.available == 2
    again = chooser(ids=["a", "b", "c", "d"])
    again.load_state_dict(state)
    assert again.choose(2, 2, 2).prompt_id == each.choose(2, 2, 2).prompt_id


def test_an_empty_pool_gives_nothing() -> None:
    each = chooser()
    each.set_pool([])
    for step in range(2):
        assert not len(each.choose(3, step, step))


@pytest.mark.parametrize("option", ["group_size", "max_new_tokens", "offered"])
def test_sizes_below_one_are_refused(option: str) -> None:
    options = {"group_size": 4, "max_new_tokens": 8, option: 0}
    with pytest.raises(InvalidInputError, match=option):
        PromptChooser(Uniform(), **options)  # type: ignore[arg-type]
