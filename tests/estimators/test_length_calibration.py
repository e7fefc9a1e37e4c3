"""Length forecasts on generated runs whose truth is known: calibrated, sharp, quick after a jump.

All four worlds drift, have heavy tails and siblings alike; "heavy" ones abort the longest 15 % of
every other step.  The oracle knows the generator: each trajectory's own distribution, given its
age.  Forecasts are scored at four moments of each step, from the fourth step on.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.length_world import World, make_world, oracle_quantiles

from steersman.controller.calibration.replay import TICKS, StepWorld
from steersman.controller.calibration.scores import LengthScores
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.forecast import LengthForecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.observation import EndedTable, Observation

STEPS, GROUPS, SCORED_FROM = 46, 128, 4
ASKED_AT = (2, 6, 12, 22)
"""Ticks of `TICKS`: most are alive at the first, the tail at the last."""
WORLDS = [("mix", False), ("mix", True), ("t", False), ("t", True)]


@dataclass
class CensorDropping:
    """The mistake to be found: whoever was cut off is left out, and so looks never asked."""

    inner: SurvivalLength

    def observe(self, observation: Observation) -> None:
        e = observation.ended
        kept = EndedTable(*(column[~e.censored] for column in vars(e).values()))
        t = observation.trajectories
        fresh = replace(t, generated_tokens=np.zeros_like(t.generated_tokens))
        self.inner.observe(replace(observation, ended=kept, trajectories=fresh))

    def forecast(self, observation: Observation) -> LengthForecast:
        return self.inner.forecast(observation)


@dataclass
class Result:
    scores: dict[str, float]
    oracle: dict[str, float]
    after_jump: dict[str, float]


def replayed(world: World, estimator: LengthEstimator | CensorDropping) -> Result:
    mine, oracle, after_jump = LengthScores(), LengthScores(), LengthScores()
    first_id = 0
    for number, step in enumerate(world.steps):
        seen_by = StepWorld(step, number, first_id)
        for tick in range(TICKS + 1):
            seen = seen_by.observe(tick)
            estimator.observe(seen)
            if number < SCORED_FROM or tick not in ASKED_AT:
                continue
            forecast, truth = estimator.forecast(seen), seen_by.remaining_tokens(seen)
            mine.add(forecast, truth)
            oracle.add(known(world, number, seen, first_id), truth)
            if world.jump_at <= number < world.jump_at + 2:
                after_jump.add(forecast, truth)
        first_id += len(step.length)
    return Result(mine.result(), oracle.result(), after_jump.result())


def known(world: World, number: int, seen: Observation, first_id: int) -> LengthForecast:
    t = seen.trajectories
    rows, age = t.trajectory_id - first_id, np.ones(len(world.steps[number].length))
    age[rows] = t.generated_tokens
    quantiles = oracle_quantiles(world.survival[number], age)[rows]
    return LengthForecast(quantiles, quantiles[:, 1], quantiles, np.zeros(len(seen.groups)))


@pytest.mark.parametrize(("noise", "heavy"), WORLDS)
def test_forecasts_are_calibrated_and_nearly_as_sharp_as_the_generators_own(
    noise: str, heavy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(noise, heavy, STEPS, seed=11, groups=GROUPS)
    estimator = SurvivalLength()
    result = replayed(world, estimator)
    own, loss = result.scores, result.scores["pinball"] / result.oracle["pinball"]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{noise}, {'heavy' if heavy else 'light'} censoring: q90 covers "
            f"{own['q90_coverage']:.3f} ({result.after_jump['q90_coverage']:.3f} after the jump), "
            f"pinball {loss:.3f} x the oracle's, Kendall tau {own['kendall_tau']:.2f}\n"
        )
    assert 0.88 <= own["q90_coverage"] <= 0.96
    assert loss <= 1.20
    assert own["kendall_tau"] >= 0.30
    assert result.after_jump["q90_coverage"] >= 0.85
    told = estimator.health()
    assert abs(told["q90_coverage"] - 0.9) < 0.05
    assert abs(told["q10_q90_coverage"] - 0.8) < 0.08


def test_whoever_drops_the_censored_is_found_out() -> None:
    world = make_world("mix", True, STEPS, seed=11, groups=GROUPS)
    scores = replayed(world, CensorDropping(SurvivalLength())).scores
    assert not 0.88 <= scores["q90_coverage"] <= 0.96
