"""Prompt value: which prompts, how many samples of each, and weights that keep sums honest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prompt_drift import TIME_TO_FIND, play
from support.prompt_world import candidates, finished, request

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Normaliser
from steersman.policies.prompting import Candidates
from steersman.policies.prompts.prompt_value import PromptValue

SURE = 0.01
"""Variance of a logit that is well known."""


def known(
    logits: Sequence[float] | np.ndarray, variance: float = SURE, **more: object
) -> Candidates:
    """Prompts of these logits."""
    mean = np.asarray(logits, dtype=np.float64)
    columns = {"logit_mean": mean, "logit_variance": np.full(len(mean), variance), **more}
    return candidates(len(mean), **columns)


def test_in_a_drifting_world_few_groups_teach_nothing_and_no_prompt_is_forgotten() -> None:
    """The figures the policy stands for, at 128 of 3,000 prompts and groups of 16."""
    games = [play(PromptValue(), seed) for seed in range(3)]
    for game in games:
        assert game.yield_ >= 0.92
        assert game.stale_share <= 0.06
    assert np.mean([game.yield_ for game in games]) >= 0.93
    found_after = [each for game in games for each in game.found_after]
    assert len(found_after) >= 10
    assert np.median(found_after) <= TIME_TO_FIND


def test_groups_of_eight_teach_more_often_than_of_any_prompts_and_few_are_forgotten() -> None:
    game = play(PromptValue(batch="full"), seed=0, group_size=8)
    assert game.yield_ >= 0.88
    assert game.stale_share <= 0.1


@pytest.mark.parametrize(("seed", "batch"), [(0, "full"), (1, "as_uniform")])
def test_no_prompt_starves_in_the_drifting_world(seed: int, batch: str) -> None:
    """Of 600 prompts and 64 groups a step, 20 epochs are 188 steps."""
    game = play(PromptValue(batch=batch), seed, prompts=600, wanted=64)  # type: ignore[arg-type]
    bound = 20 * 600 / 64
    assert game.longest_wait <= bound + 2
    never = play(
        PromptValue(batch=batch, starve_epochs=0, probe_share=0.0),  # type: ignore[arg-type]
        seed, prompts=600, wanted=64,
    )  # fmt: skip
    assert never.longest_wait > bound + 2


@given(
    offered=st.integers(1, 60),
    wanted=st.integers(1, 12),
    epochs=st.floats(2.0, 30.0),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=20)
def test_every_prompt_is_visited_within_the_bound_whatever_is_believed(
    offered: int, wanted: int, epochs: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    policy = PromptValue(starve_epochs=epochs, probe_share=0.0)
    mean = rng.choice([0.0, 15.0, -15.0], offered, p=[0.2, 0.4, 0.4])
    last, bound = np.zeros(offered, dtype=np.int64), epochs * offered / min(wanted, offered) + 2
    for step in range(int(2.2 * bound) + 2):
        asked = request(known(mean, waited=step - last), wanted, step=step, selects=False)
        last[policy.choose(asked, rng).row] = step
        assert (step - last).max() <= bound


@dataclass
class Tabular:
    """A policy that answers prompt i rightly with probability p_i; its logits are parameters.

    The derivative of a group's loss by its own logit is the mean over samples of advantage times
    (reward - p), all others are 0: s^2 without, s with division by the deviation s of its rewards.
    """

    rate: np.ndarray
    group_size: int
    normaliser: Normaliser

    def gradient(self) -> np.ndarray:
        """(prompts,) the exact expectation, over the number k of samples that pass."""
        n = self.group_size
        k = np.arange(n + 1)
        log_choose = [sum(np.log((n - j) / (j + 1)) for j in range(each)) for each in k]
        p = self.rate[:, None]
        chance = np.exp(np.array(log_choose) + k * np.log(p) + (n - k) * np.log1p(-p))
        return np.asarray(chance @ self.of_passes(k))

    def of_passes(self, k: np.ndarray) -> np.ndarray:
        variance = k / self.group_size * (1.0 - k / self.group_size)
        return np.sqrt(variance) if self.normaliser is Normaliser.STD else variance


def estimates(
    toy: Tabular, draws: int, seed: int, inclusion: bool = True, coins: bool = True
) -> np.ndarray:
    """(draws, prompts) what one step's groups say of the gradient, with the weights or without."""
    rng, prompts = np.random.default_rng(seed), len(toy.rate)
    policy, found = PromptValue(batch="full"), np.zeros((draws, prompts))
    logit = np.log(toy.rate / (1.0 - toy.rate))
    for draw in range(draws):
        # beliefs are wrong, and some prompts are due
        believed = known(
            logit + rng.normal(0.0, 0.7, prompts), variance=0.5,
            waited=rng.integers(1, 12 * prompts // 50, prompts),
        )  # fmt: skip
        asked = request(believed, 50, toy.group_size, step=draw, normaliser=toy.normaliser)
        choice = policy.choose(asked, rng)
        rewards = [(rng.random(n) < toy.rate[row]).astype(float)
                   for row, n in zip(choice.row, choice.size, strict=True)]  # fmt: skip
        key = believed.prompt_key[choice.row]
        groups = finished([own.tolist() for own in rewards], prompt_key=key)
        while (more := policy.extend(groups, rng)).any():
            rewards = [np.append(own, rng.random(n) < toy.rate[row])
                       for row, own, n in zip(choice.row, rewards, more, strict=True)]  # fmt: skip
            groups = finished([own.tolist() for own in rewards], prompt_key=key)
        selection = policy.select(groups, rng)
        weight = 1.0 / choice.inclusion_probability if inclusion else prompts / len(choice)
        weight = weight * (selection.weight if coins else selection.accepted)
        passes = np.array([own.sum() for own in rewards])
        found[draw, choice.row] = weight * np.where(selection.accepted, toy.of_passes(passes), 0.0)
    return found


def deviations(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """z of the sum over prompts and of 20 random directions."""
    ways = np.random.default_rng(1).normal(size=(len(truth), 20))
    projected = found @ np.column_stack((np.ones(len(truth)), ways))
    error = projected.std(axis=0) / np.sqrt(len(found))
    return np.asarray(
        (projected.mean(axis=0) - truth @ np.column_stack((np.ones(len(truth)), ways))) / error
    )


@pytest.mark.parametrize("normaliser", list(Normaliser))
def test_selection_and_weights_leave_a_policy_gradient_unbiased(normaliser: Normaliser) -> None:
    """100,000 groups; without either weight the same test fails."""
    rate = 1.0 / (1.0 + np.exp(-np.random.default_rng(0).normal(-0.8, 2.2, 200)))
    toy = Tabular(rate, 8, normaliser)
    truth = toy.gradient()
    right = deviations(estimates(toy, 1400, seed=1), truth)
    assert np.abs(right).max() < 4.0
    assert abs(right[0]) < 3.0
    unweighted = deviations(estimates(toy, 300, seed=1, inclusion=False), truth)
    assert abs(unweighted[0]) > 6.0
    without_coins = deviations(estimates(toy, 1400, seed=1, coins=False), truth)
    assert abs(without_coins[0]) > 4.0


def test_a_share_of_every_draw_falls_on_all_alike() -> None:
    logits = np.concatenate((np.zeros(30), np.full(170, -12.0)))
    choice = PromptValue(probe_share=0.1).choose(
        request(known(logits), 20), np.random.default_rng(0)
    )
    assert choice.inclusion_probability.min() >= 0.1 * 20 / 200 * 0.99


def test_prompts_are_drawn_by_the_chance_that_they_are_worth_it_and_by_their_wait() -> None:
    logits = np.tile([0.0, 2.0, -5.0, 0.0], 50)
    waited = np.tile([4, 4, 4, 1], 50)
    counts = np.zeros(4)
    for seed in range(200):
        asked = request(known(logits, 0.3, waited=waited), 20, selects=False)
        row = PromptValue().choose(asked, np.random.default_rng(seed)).row
        counts += np.bincount(row % 4, minlength=4)
    best, easy, hopeless, fresh = counts
    assert best > 3.0 * fresh
    assert fresh > 2.0 * easy
    assert easy >= 0.8 * hopeless > 0


def test_ucb_looks_at_uncertain_prompts_sooner() -> None:
    offered = known(np.concatenate((np.zeros(50), np.full(50, 2.5))), 1.5)
    drawn = {}
    for explore in ("thompson", "ucb"):
        rows = [
            PromptValue(explore=explore).choose(  # type: ignore[arg-type]
                request(offered, 20, selects=False), np.random.default_rng(seed)
            ).row
            for seed in range(50)
        ]  # fmt: skip
        drawn[explore] = np.mean(np.concatenate(rows) >= 50)
    assert drawn["ucb"] > 2.0 * drawn["thompson"]


def test_only_a_group_that_is_not_likely_to_teach_begins_with_a_few_samples() -> None:
    offered = known([0.0, -4.0], waited=np.ones(2, dtype=np.int64))
    choice = PromptValue().choose(request(offered, 2), np.random.default_rng(0))
    assert dict(zip(choice.row.tolist(), choice.size.tolist(), strict=True)) == {0: 8, 1: 4}
    plain = PromptValue(probe_samples=0).choose(request(offered, 2), np.random.default_rng(0))
    assert plain.size.tolist() == [8, 8]


def probed(
    rewards: list[list[float]], mean: float, runs: int, trusted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(runs, groups) how often each was extended, and the weights of those that were."""
    went_on, weight = np.zeros((runs, len(rewards))), np.zeros((runs, len(rewards)))
    for run in range(runs):
        policy, rng = PromptValue(batch="full"), np.random.default_rng(run)
        if trusted:
            policy.load_state_dict(policy.state_dict() | {"record": [50.0, 50.0]})
        # beside prompts whose groups would teach: what the samples would bring elsewhere
        mean_of_all = np.concatenate((np.full(len(rewards), mean), np.zeros(20)))
        policy.choose(request(known(mean_of_all, 0.3), len(mean_of_all)), rng)
        groups = finished(rewards)
        more = policy.extend(groups, rng)
        went_on[run] = more > 0
        whole = finished([own + [1.0] * int(n) for own, n in zip(rewards, more, strict=True)])
        assert not policy.extend(whole, rng).any()
        weight[run] = policy.select(whole, rng).weight
    return went_on, weight


def test_a_probe_that_differs_goes_on_and_of_those_that_do_not_a_coin_spares_some() -> None:
    went_on, weight = probed([[0.0, 1.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4], mean=-4.0, runs=400)
    assert went_on[:, 0].all()
    assert (weight[:, 0] == 1.0).all()
    share = went_on[:, 1:].mean()
    assert 0.1 - 0.04 < share < 0.5
    # inverse of the probability, so that the weights of the spared make up for the others
    assert weight[:, 1:].mean() == pytest.approx(1.0, abs=0.2)
    assert (weight[:, 1:][went_on[:, 1:] == 0] == 0.0).all()


def test_a_probe_without_any_pass_goes_on_where_the_belief_says_so() -> None:
    """Once coins have shown that the belief can be trusted; before that, rarely."""
    assert probed([[0.0] * 4], mean=-1.6, runs=100)[0].mean() < 0.3
    assert probed([[0.0] * 4], mean=-1.6, runs=40, trusted=True)[0].mean() == 1.0
    assert probed([[0.0] * 4], mean=-6.0, runs=200, trusted=True)[0].mean() < 0.2


def test_a_batch_as_uniform_is_full_with_what_uniform_sampling_would_have_brought() -> None:
    offered = known(np.concatenate((np.zeros(100), np.full(100, -12.0))))
    policy, rng = PromptValue(), np.random.default_rng(0)
    assert len(policy.choose(request(offered, 40), rng)) < 30
    assert not len(policy.choose(request(offered, 40 - 20, refill=1), rng))
    assert len(policy.choose(request(offered, 40 - 15, refill=1), rng)) >= 5
    full = PromptValue(batch="full")
    assert len(full.choose(request(offered, 40), rng)) >= 40
    assert len(full.choose(request(offered, 40 - 20, refill=1), rng)) >= 20


def test_a_trainer_that_does_not_select_gets_whole_groups_as_many_as_it_wants() -> None:
    offered = known(np.full(40, -5.0))
    choice = PromptValue().choose(request(offered, 12, selects=False), np.random.default_rng(0))
    assert len(choice) == 12
    assert (choice.size == 8).all()


def test_groups_that_may_be_extended_survive_being_written_down() -> None:
    policy, rng = PromptValue(), np.random.default_rng(0)
    policy.choose(request(known(np.full(6, -1.6), 0.3), 6), rng)
    other = PromptValue()
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    groups = finished([[0.0] * 4] * 6)
    some = [each.extend(groups, np.random.default_rng(1)).tolist() for each in (policy, other)]
    assert some[0] == some[1]
    assert other.state_dict() == policy.state_dict()


def test_rewards_are_failed_and_passed_on_the_trainers_scale() -> None:
    """A prompt that should pass is not given up for failing; one that should fail is, for both."""
    chance = {}
    for low in (0.0, -1.0):
        policy, rng = PromptValue(reward_low=low), np.random.default_rng(0)
        policy.choose(request(known([3.0], 1.0), 1), rng)
        policy.extend(finished([[low] * 4]), rng)
        chance[low] = policy.state_dict()["kept"][0][2]
    assert chance[0.0] == pytest.approx(chance[-1.0])
    assert chance[0.0] > 0.8


def test_allotted_samples_go_where_rewards_vary_and_tokens_are_few() -> None:
    """In proportion to sigma / sqrt(cost), as many on average as the trainer's groups have."""
    tokens = np.array([100.0, 400.0, 100.0, np.nan])
    offered = known([0.0, 0.0, 1.735, 0.0], 1e-6, mean_tokens=tokens)
    policy = PromptValue(sizes="allotted", probe_samples=0, batch="full")
    choice = policy.choose(request(offered, 4, group_size=16), np.random.default_rng(0))
    size = dict(zip(choice.row.tolist(), choice.size.tolist(), strict=True))
    assert sum(size.values()) == pytest.approx(64, abs=2)
    assert size[0] == pytest.approx(2 * size[1], abs=1)
    assert size[2] == pytest.approx(0.714 * size[0], abs=1)  # sigma of p = 0.85 over that of 0.5
    assert size[1] < size[3] < size[0]


def test_caps_hold_back_long_answers_of_prompts_that_bring_little_and_say_so() -> None:
    tokens = np.array([100.0, 100.0, np.nan])
    offered = known([0.0, 4.0, 0.0], 1e-6, mean_tokens=tokens)
    asked = request(offered, 3, max_new_tokens=1000)
    choice = PromptValue(cap_factor=3.0, batch="full").choose(asked, np.random.default_rng(0))
    cap = dict(zip(choice.row.tolist(), choice.max_new_tokens.tolist(), strict=True))
    assert cap[1] < 300 < cap[0] < cap[2] == 1000
    plain = PromptValue(batch="full").choose(asked, np.random.default_rng(0))
    assert (plain.max_new_tokens == 1000).all()
    assert PromptValue.correctness_with({"cap_factor": 3.0}) is CorrectnessClass.EMPIRICAL
    assert PromptValue.correctness_with({}) is CorrectnessClass.MODIFIED


@pytest.mark.parametrize(
    "options",
    [
        {"sharpness": 0.0}, {"probe_share": 1.5}, {"starve_epochs": 1.0}, {"probe_samples": 1},
        {"commit_from": 2.0}, {"least_keep": 0.0}, {"max_rounds": -1}, {"cap_factor": 0.5},
        {"reward_low": 1.0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(
        InvalidInputError, match=next(iter(options)).replace("probe_share", "share")
    ):
        PromptValue(**options)
