"""ESPO in a closed loop: a toy fleet in which doomed trajectories have the higher regret."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.observations import (
    ended_table,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.policies.decision import Action, Decision
from steersman.policies.stopping.espo import Espo

TRAJECTORIES, TICKS, WROTE = 64, 20, 12
DOOMED = 0.4
"""Share of the trajectories that will fail."""
MORE_REGRET = 0.25
"""Of a doomed one's tokens, on average; a token's standard deviation is about .5."""


@dataclass
class Toy:
    """Steps of `TRAJECTORIES` trajectories that run `TICKS` ticks unless they are stopped."""

    policy: Espo
    more_regret: float = MORE_REGRET
    too_late: bool = False
    """Everyone ends by itself before the stop arrives."""
    seed: int = 0
    step: int = 0
    doomed: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def observe(self, tick: int, stopped: np.ndarray, last: bool = False) -> Observation:
        n = TRAJECTORIES
        mean = 0.25 + self.more_regret * self.doomed
        regret = self.rng.gamma(0.25 * WROTE, 1.0 / (0.25 * WROTE), n) * mean
        table = trajectory_table(
            np.where(stopped | last, int(Phase.ENDED), int(Phase.RUNNING)).tolist(),
            trajectory_id=np.arange(n) + self.step * n,
            replica_row=np.zeros(n, dtype=np.int64),
            generated_tokens=np.full(n, tick * WROTE),
            regret=np.where(stopped | (tick == 0), np.nan, regret),
        )
        return observation(
            table,
            replica_table(1),
            tick=self.step * TICKS + tick,
            trainer=TrainerSignal(step=self.step),
            groups=group_table(n),
        )

    def run_step(self) -> tuple[np.ndarray, list[Decision]]:
        """Play a step; who was stopped, and all decisions."""
        n, stopped = TRAJECTORIES, np.zeros(TRAJECTORIES, dtype=np.bool_)
        self.doomed = self.rng.random(n) < DOOMED
        said: list[Decision] = []
        for tick in range(TICKS + 1):
            seen = self.observe(tick, stopped)
            decisions = self.ask(seen)
            stopped[[d.row for d in decisions if d.action is Action.STOP]] = True
            said += decisions
        seen = self.observe(TICKS, stopped, last=True)
        ended = ended_table(
            [TICKS] * n,
            trajectory_id=seen.trajectories.trajectory_id,
            censored=stopped & (not self.too_late),
        )
        self.ask(replace(seen, ended=ended))
        self.step += 1
        return stopped, said

    def ask(self, seen: Observation) -> list[Decision]:
        forecast = Forecast.unknown(seen)
        chance = np.full(len(seen.groups), 0.5)
        forecast = replace(forecast, success=replace(forecast.success, pass_probability=chance))
        return self.policy.decide(seen, forecast, self.rng)

    def rates(self, steps: int) -> tuple[float, float]:
        """Share stopped, and share of the stopped that would have been right, over `steps`."""
        count = right = 0
        for _ in range(steps):
            stopped, _ = self.run_step()
            count += int(stopped.sum())
            right += int((stopped & ~self.doomed).sum())
        return count / (steps * TRAJECTORIES), right / max(count, 1)


QUICK: dict[str, Any] = {"warmup_steps": 2, "beta_gain": 2.0}
"""The paper's gain takes hundreds of steps to move beta by as much."""


def test_the_share_stopped_settles_at_the_target_from_a_threshold_far_too_high() -> None:
    toy = Toy(Espo(**QUICK))
    toy.rates(35)
    share, _ = toy.rates(30)
    assert share == pytest.approx(0.25, abs=0.03)


def test_it_comes_back_from_a_threshold_far_too_low() -> None:
    toy = Toy(Espo(beta=0.11, **QUICK))
    toy.rates(2)
    assert toy.rates(1)[0] > 0.6
    toy.rates(15)
    assert toy.rates(30)[0] == pytest.approx(0.25, abs=0.03)


def test_it_stops_far_fewer_right_ones_than_stopping_at_random_as_often() -> None:
    """The control: where regret says nothing, as many are stopped, and as many of them are right
    as of all."""
    told, blind = Toy(Espo(**QUICK)), Toy(Espo(**QUICK), more_regret=0.0)
    told.rates(30), blind.rates(30)
    share, right = told.rates(25)
    blind_share, blind_right = blind.rates(25)
    assert blind_share == pytest.approx(share, abs=0.05)
    assert blind_right == pytest.approx(1 - DOOMED, abs=0.06)
    assert right < 0.5 * blind_right


def test_nothing_is_stopped_during_the_warm_up() -> None:
    toy = Toy(Espo(beta=0.1, warmup_steps=3, beta_gain=1.0))
    assert [bool(toy.run_step()[0].any()) for _ in range(5)] == [False, False, False, True, True]


def test_only_what_was_really_cut_off_counts_as_stopped() -> None:
    betas = []
    for too_late in (False, True):
        toy = Toy(Espo(beta=0.5, warmup_steps=1), too_late=too_late)
        toy.rates(4)
        betas.append(toy.policy.state_dict()["beta"])
    assert betas[0] > 0.5 > betas[1]


def test_both_sides_of_the_coin_are_told_once_and_say_how_likely_they_were() -> None:
    toy = Toy(Espo(beta=0.1, warmup_steps=1, beta_gain=1e-9, keep_probability=0.3))
    toy.run_step()
    over = [toy.run_step() for _ in range(30)]
    share = np.mean([stopped.mean() for stopped, _ in over])
    said = [d for _, decisions in over for d in decisions]
    assert len({d.trajectory_id for d in said}) == len(said)
    assert {(d.action, d.propensity) for d in said} == {(Action.STOP, 0.7), (Action.CONTINUE, 0.3)}
    assert share == pytest.approx(0.7, abs=0.05)  # all cross so low a threshold sooner or later


def test_the_value_of_the_prompt_raises_the_threshold() -> None:
    """With V from the forecast (.5) beta settles lower than with the floor (.2), by their ratio."""
    high, low = Toy(Espo(**QUICK)), Toy(Espo(use_value=False, value=0.2, **QUICK))
    high.rates(40), low.rates(40)
    beta_high, beta_low = high.policy.state_dict()["beta"], low.policy.state_dict()["beta"]
    assert beta_low / beta_high == pytest.approx(0.5 / 0.2, rel=0.15)


def test_m_tokens_of_one_regret_move_z_as_m_single_ones() -> None:
    whole, single = Espo(warmup_steps=1), Espo(warmup_steps=1)
    for policy in (whole, single):
        toy = Toy(policy)
        toy.run_step()

    def z_after(policy: Espo, tokens: list[int]) -> float:
        for count in tokens:
            table = trajectory_table(
                [Phase.RUNNING], trajectory_id=[10**6], generated_tokens=[count], regret=[0.9]
            )
            seen = observation(table, replica_table(1), trainer=TrainerSignal(step=1))
            policy.decide(seen, Forecast.unknown(seen), np.random.default_rng(0))
        return float(policy.state_dict()["memory"]["columns"]["z"][0])

    assert z_after(whole, [0, 7]) == pytest.approx(z_after(single, list(range(8))))


def test_options_that_cannot_be_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"keep_probability": 1.0},
        {"keep_probability": 0.04},
        {"warmup_steps": 0},
        {"beta": 60.0},
        {"clip": 0.0},
    )
    for wrong in wrongs:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Espo(**wrong)
