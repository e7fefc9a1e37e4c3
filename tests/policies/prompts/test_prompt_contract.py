"""What every prompt policy promises, checked for each file of the folder."""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prompt_world import FIRST_KEY, PromptWorld, candidates, finished, request

from steersman.controller.plugins import load, names
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Normaliser
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import Candidates, FinishedGroups, PromptRequest

POLICIES = names("policies.prompts")
every_policy = pytest.mark.parametrize("name", POLICIES)
MOST_EXTENSIONS = 500


def build(name: str) -> PromptPolicy:
    policy: PromptPolicy = load("policies.prompts", name)()
    return policy


def random_groups(rng: np.random.Generator, count: int, keys: int = 80) -> FinishedGroups:
    """Anything a trainer can report: sizes from 1, equal and fractional rewards, keys twice."""
    rewards = []
    for _ in range(count):
        n = int(rng.integers(1, 13))
        kind = rng.integers(4)
        rewards.append(
            (np.ones(n), np.zeros(n), rng.random(n), rng.integers(-1, 3, n))[kind].tolist()
        )
    n = sum(map(len, rewards))
    known = rng.random() < 0.5
    return finished(
        rewards,
        group_id=rng.permutation(10 * count)[:count],
        prompt_key=FIRST_KEY + rng.integers(0, keys, count),
        weight_version=rng.integers(0, 5, count),
        tokens=rng.integers(0, 2000, n),
        truncated=rng.random(n) < 0.2,
        step=int(rng.integers(0, 9)),
        weight_version_now=5,
        mean_logprob=-rng.random(n) if known else np.zeros(0),
    )


@st.composite
def requests(draw: st.DrawFn) -> PromptRequest:
    """Few candidates or many, known or not, first round or a later one, any weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(0, 80))
    offered = candidates(
        count,
        prompt_key=FIRST_KEY + rng.permutation(100)[:count],
        logit_mean=rng.choice([-40.0, -20.0, -0.8, 0.0, 40.0], count),
        logit_variance=rng.choice([0.0, 1e-6, 0.3, 4.0, 49.0], count),
        mean_tokens=np.where(rng.random(count) < 0.5, np.nan, rng.random(count) * 2000),
        waited=rng.integers(0, 300, count) if rng.random() < 0.5 else np.zeros(0, dtype=np.int64),
    )
    return request(
        offered,
        wanted=draw(st.sampled_from([0, 1, 3, 16, 70, 200])),
        group_size=draw(st.sampled_from([1, 2, 8, 17])),
        max_new_tokens=draw(st.sampled_from([1, 20, 4096])),
        step=draw(st.integers(0, 12)),
        weight_version=draw(st.integers(0, 12)),
        normaliser=draw(st.sampled_from(list(Normaliser))),
        refill=draw(st.sampled_from([0, 0, 1, 7])),
        policy_kl=draw(st.sampled_from([None, 0.0, 0.01])),
    )


def taught(name: str, seed: int, rounds: int = 3) -> PromptPolicy:
    """A policy that has been through some steps with odd groups."""
    policy, rng = build(name), np.random.default_rng(seed)
    for step in range(rounds):
        policy.choose(request(candidates(60), wanted=8, step=step, weight_version=step), rng)
        groups = random_groups(rng, int(rng.integers(0, 20)))
        policy.learn(groups)
        policy.select(groups, rng)
    return policy


def answers(policy: PromptPolicy, asked: PromptRequest, seed: int) -> list[Any]:
    """All it says to a request and to groups, as plain values."""
    rng = np.random.default_rng(seed)
    choice = policy.choose(asked, rng)
    groups = random_groups(np.random.default_rng(1), 12)
    policy.learn(groups)
    more, selection = policy.extend(groups, rng), policy.select(groups, rng)
    columns = (choice.row, choice.size, choice.max_new_tokens, choice.inclusion_probability)
    arrays = (*columns, more, selection.accepted, selection.train, selection.replayed)
    return [a.tolist() for a in arrays]


@every_policy
@given(asked=requests(), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_a_choice_is_legal(name: str, asked: PromptRequest, seed: int) -> None:
    """Rows of the candidates, each once, sizes and caps within bounds, a probability, a reason."""
    choice = taught(name, seed).choose(asked, np.random.default_rng(seed))
    offered = len(asked.candidates)
    assert len(choice) <= offered
    assert ((choice.row >= 0) & (choice.row < offered)).all()
    assert len(np.unique(choice.row)) == len(choice)
    assert (choice.size >= 1).all()
    assert (choice.max_new_tokens >= 1).all()
    assert (choice.max_new_tokens <= asked.max_new_tokens).all()
    assert ((choice.inclusion_probability > 0) & (choice.inclusion_probability <= 1)).all()
    assert choice.reason


@every_policy
def test_a_first_round_chooses_something(name: str) -> None:
    for wanted in (1, 5, 40, 100):
        asked = request(candidates(40), wanted, step=9)
        assert len(taught(name, 3).choose(asked, np.random.default_rng(wanted)))


@every_policy
@given(asked=requests(), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=8)
def test_the_same_history_and_seed_give_the_same_answers(
    name: str, asked: PromptRequest, seed: int
) -> None:
    assert answers(taught(name, seed), asked, seed) == answers(taught(name, seed), asked, seed)


@every_policy
@given(asked=requests(), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=8)
def test_its_state_survives_being_written_as_json(
    name: str, asked: PromptRequest, seed: int
) -> None:
    policy, other = taught(name, seed), build(name)
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert answers(other, asked, seed) == answers(policy, asked, seed)
    assert other.state_dict() == policy.state_dict()


@every_policy
@pytest.mark.parametrize("unknown", [1, 4])
def test_rewards_that_are_not_known_leave_no_trace_in_later_choices(
    name: str, unknown: int
) -> None:
    """Also where none of a group's is known: what it remembers stays finite, all can be chosen."""
    policy, rng = build(name), np.random.default_rng(0)
    asked = request(candidates(20), wanted=8, group_size=4)
    policy.choose(asked, rng)
    groups = finished([[np.nan] * unknown + [1.0, 0.0, 1.0, 0.0][unknown:]] * 20)
    policy.learn(groups)
    policy.extend(groups, rng)
    policy.select(groups, rng)
    json.dumps(policy.state_dict(), allow_nan=False)
    later = replace(asked, step=1, weight_version=1)
    chosen = {int(row) for _ in range(60) for row in policy.choose(later, rng).row}
    assert chosen >= set(range(8))


@every_policy
def test_extension_comes_to_an_end(name: str) -> None:
    """Also where every sample fails, or passes."""
    rng = np.random.default_rng(0)
    for reward in (0.0, 1.0, 0.5):
        policy = build(name)
        choice = policy.choose(request(candidates(20), wanted=10), rng)
        groups = finished([[reward] * int(n) for n in choice.size])
        for _ in range(MOST_EXTENSIONS):
            more = policy.extend(groups, rng)
            assert more.shape == (len(groups),)
            assert (more >= 0).all()
            if not more.any():
                break
            groups = finished([[reward] * int(n) for n in groups.size + more])
        else:
            pytest.fail(f"still extends after {MOST_EXTENSIONS} rounds")


@every_policy
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 30))
@settings(deadline=None, max_examples=12)
def test_samples_of_groups_that_do_not_count_are_never_trained_on(
    name: str, seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    policy, groups = taught(name, seed % 1000), random_groups(rng, count)
    policy.choose(request(candidates(60), wanted=8, step=3), rng)
    policy.learn(groups)
    selection = policy.select(groups, rng)
    assert selection.accepted.shape == (len(groups),)
    assert selection.train.shape == (len(groups.group_row),)
    assert not selection.train[~selection.accepted[groups.group_row]].any()
    assert selection.correctness in CorrectnessClass
    # a group that counts is trained on, at least in part
    assert set(np.flatnonzero(selection.accepted)) == set(groups.group_row[selection.train])


def shuffled(offered: Candidates, order: np.ndarray) -> Candidates:
    columns = ("prompt_key", "logit_mean", "logit_variance", "mean_tokens")
    return replace(offered, **{name: getattr(offered, name)[order] for name in columns})


@every_policy
def test_the_inverse_inclusion_probability_is_an_unbiased_weight(name: str) -> None:
    """Over many seeds each candidate's mean of 1{chosen} / probability is 1 (z-test), the data
    loader's order being random.  Candidates that can never be chosen are not claimed to."""
    runs, offered = 1000, candidates(14, mean_tokens=np.full(14, 300.0))
    policy = build(name)
    policy.choose(request(offered, wanted=5), np.random.default_rng(0))
    policy.learn(finished([[0.0] * 8, [0.0] * 7 + [1.0], [0.0, 1.0] * 4, [1.0] * 8, [1.0] * 8]))
    policy.learn(finished([[0.0] * 8, [0.0] * 5 + [1.0] * 3, [0.0, 1.0] * 4, [1.0] * 7 + [0.0]]))
    weight = np.zeros((runs, len(offered)))
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(offered))
        asked = request(shuffled(offered, order), wanted=5, step=1, weight_version=1)
        choice = policy.choose(asked, rng)
        weight[seed, order[choice.row]] = 1.0 / choice.inclusion_probability
    often = (weight > 0).sum(axis=0) >= 20
    error = weight[:, often].std(axis=0) / np.sqrt(runs)
    assert often.any()
    assert (np.abs(weight[:, often].mean(axis=0) - 1.0) <= 4.5 * error + 1e-9).all()


@every_policy
def test_a_thousand_of_a_hundred_thousand_candidates_are_chosen_in_50_ms(name: str) -> None:
    policy, rng = build(name), np.random.default_rng(0)
    offered = candidates(100_000, prompt_key=rng.permutation(10**12 + np.arange(100_000)))
    policy.choose(request(offered, wanted=1024), rng)
    known = rng.permutation(100_000)[:50_000]
    rewards = np.where(rng.random(50_000) < 0.5, 0.0, 1.0)
    groups = finished(np.stack((rewards, np.ones(50_000)), axis=1).tolist())
    policy.learn(replace(groups, prompt_key=offered.prompt_key[known]))
    asked = request(offered, wanted=1024, step=1, weight_version=1)
    taken_ms = []
    for _ in range(5):
        start = time.process_time()  # what else runs on the machine does not count
        policy.choose(asked, rng)
        taken_ms.append(1000 * (time.process_time() - start))
    assert min(taken_ms) < 50.0


@every_policy
def test_it_fills_batches_of_a_world_that_learns(name: str) -> None:
    world = PromptWorld(seed=1, prompts=200, spread=1.5)
    for step in world.run(build(name), steps=4, wanted=16):
        assert step.accepted >= 8
        assert step.samples >= 16
