import json

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.policies.adaptive._counters import LEAST_ITERATIONS
from steersman.policies.adaptive.pace import KEEP, RIGHT, WRONG, Pace

NOTHING = trajectory_table([])


class Engines:
    """Three, whose iterations take `factor` times what is forecast: M = 10 ms, c = 1 ms."""

    def __init__(self) -> None:
        self.counters = np.zeros((5, 3))

    def run(
        self,
        pace: Pace,
        factor: float,
        ticks: int = 1,
        iterations: int = 100,
        batch: int = 10,
        prompt: int = 0,
        drafted: int = 0,
        measured: bool = True,
        alive: bool = True,
    ) -> bool:
        trusted = True
        for _ in range(ticks):
            seconds = iterations * factor * (0.01 + 0.001 * batch)
            grown = iterations, seconds, iterations * batch, prompt, drafted
            self.counters += np.array(grown)[:, None]
            n, busy_s, sequences, prefills, drafts = self.counters
            table = replica_table(
                3,
                iterations=n.astype(np.int64),
                busy_s=busy_s.copy(),
                sequences_run=sequences.copy(),
                prefill_tokens=prefills.astype(np.int64),
                drafted_at=drafts[:, None].astype(np.int64) // [1, 2],
                alive=[alive] * 3,
            )
            seen = observation(NOTHING, table)
            forecast = forecast_of(seen, [])
            if not measured:
                forecast.throughput.samples[:] = 0
            trusted = pace.follow(seen, forecast)
        return trusted


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_replicas_about_as_fast_as_forecast_are_trusted(factor: float) -> None:
    pace, engines = Pace(), Engines()
    assert all(engines.run(pace, factor) for _ in range(100))
    assert pace.error == pytest.approx(abs(np.log(factor)), abs=0.01)


@pytest.mark.parametrize("factor", [0.5, 2.0, 20.0])
def test_replicas_at_another_speed_are_not(factor: float) -> None:
    pace, engines = Pace(), Engines()
    assert engines.run(pace, factor)
    assert not engines.run(pace, factor, ticks=30)


def test_trust_comes_back_later_than_it_goes() -> None:
    """Between the two bounds it is as it was."""
    between = float(np.exp((WRONG + RIGHT) / 2))
    pace, engines = Pace(), Engines()
    assert engines.run(pace, between, ticks=100)
    assert not engines.run(pace, 2.0, ticks=30)
    assert not engines.run(pace, between, ticks=100)
    assert engines.run(pace, 1.0, ticks=100)


@pytest.mark.parametrize(
    "how",
    [
        {"iterations": LEAST_ITERATIONS - 1},
        {"prompt": 5},
        {"drafted": 7},
        {"measured": False},
        {"alive": False},
    ],
    ids=["too few iterations", "prefills", "drafts", "nothing learned yet", "dead"],
)
def test_what_cannot_be_compared_is_not(how: dict[str, int]) -> None:
    pace, engines = Pace(), Engines()
    engines.run(pace, 1.0)
    engines.run(pace, 5.0, **how)  # type: ignore[arg-type]
    assert pace.error == 0.0


def test_few_iterations_a_tick_are_compared_when_enough_have_come_together() -> None:
    pace, engines = Pace(), Engines()
    engines.run(pace, 2.0, ticks=9, iterations=2)
    assert pace.error == pytest.approx((1 - KEEP) * np.log(2))


def test_an_engine_that_starts_anew_is_followed_from_there() -> None:
    pace, engines = Pace(), Engines()
    engines.run(pace, 1.0, ticks=3)
    engines.counters[:] = 0
    engines.run(pace, 1.0, ticks=3, iterations=50)
    assert pace.error == pytest.approx(0.0, abs=1e-9)


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    pace, engines = Pace(), Engines()
    engines.run(pace, 1.5, ticks=5)
    again = Pace.from_state(json.loads(json.dumps(pace.state_dict(), allow_nan=False)))
    saved = engines.counters.copy()
    engines.run(pace, 1.5)
    engines.counters = saved
    engines.run(again, 1.5)
    assert again.state_dict() == pace.state_dict()
