import json
import subprocess
import sys

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.drift import LONGEST, AdaptiveWindows
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Observation, TrainerSignal

GROUPS, REPLICATIONS = 3000, 60
"""Length of a run without change, and how many of them."""
BEFORE = 1000
"""Groups before a shift, give or take 32, so that it falls anywhere between two looks."""


def pushed(version: int = 0, kl: float | None = None) -> Observation:
    trainer = TrainerSignal(weight_version=version, policy_kl=kl)
    return observation(trajectory_table([]), replica_table(1), trainer=trainer)


def surprises(rng: np.random.Generator, count: int) -> np.ndarray:
    """t4, standardised: heavier tails than a group's mean has."""
    return rng.standard_t(4, count) / np.sqrt(2)


def alike(rng: np.random.Generator, count: int, correlation: float = 0.2) -> np.ndarray:
    """Neighbouring groups share something; deviation 1."""
    x = surprises(rng, count)
    for i in range(1, count):
        x[i] = correlation * x[i - 1] + np.sqrt(1 - correlation**2) * x[i]
    return x


def kept(stream: np.ndarray) -> np.ndarray:
    """What is worth keeping after every group."""
    estimator, nothing, values = AdaptiveWindows(), pushed(), []
    for surprise in stream:
        estimator.feed("length", np.array([surprise]))
        values.append(estimator.forecast(nothing).keep["length"])
    return np.array(values)


def false_alarms(scale: float = 1.0, correlation: float = 0.0) -> tuple[float, float]:
    """Mean alarms and doubts per run without change."""
    alarms, doubts = 0, 0
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(seed)
        draw = alike(rng, GROUPS, correlation) if correlation else surprises(rng, GROUPS)
        values = kept(scale * draw)
        alarms += int((values == 0.2).sum())
        doubts += int((values == 0.5).sum())
    return alarms / REPLICATIONS, doubts / REPLICATIONS


def delays(shift: float, before: int = BEFORE) -> tuple[float, float]:
    """Mean groups from a shift to the alarm, and to the first doubt."""
    to_alarm, to_doubt, longest = [], [], 600
    for seed in range(REPLICATIONS):
        rng = np.random.default_rng(10_000 + seed)
        start = before + int(rng.integers(0, 32))
        stream = surprises(rng, start + longest)
        stream[start:] += shift
        after = np.append(kept(stream)[start:], 0.2)  # unnoticed counts as the whole stretch
        to_alarm.append(np.argmax(after == 0.2) + 1)
        to_doubt.append(np.argmax(after < 1.0) + 1)
    return float(np.mean(to_alarm)), float(np.mean(to_doubt))


def test_without_change_there_are_few_false_alarms() -> None:
    alarms, doubts = false_alarms()
    assert alarms <= 0.2
    assert doubts <= 0.5


def test_surprises_of_a_slightly_wrong_scale_that_are_alike_do_not_explode() -> None:
    alarms, doubts = false_alarms(scale=1.2, correlation=0.2)
    assert alarms <= 0.5
    assert doubts <= 5.0


@pytest.mark.parametrize(("shift", "bound"), [(0.5, 150), (-0.5, 150), (1.0, 50)])
def test_a_shift_is_noticed_in_time_and_doubted_before_the_alarm(
    shift: float, bound: float
) -> None:
    to_alarm, to_doubt = delays(shift)
    assert to_alarm <= bound
    assert to_doubt < 0.75 * to_alarm


def test_a_shift_after_a_short_history_is_noticed_in_time_too() -> None:
    assert delays(0.5, before=200)[0] <= 150


def test_an_alarm_is_reported_once_and_counted_for_good() -> None:
    estimator = AdaptiveWindows()
    rng = np.random.default_rng(1)
    estimator.feed("length", surprises(rng, 500))
    estimator.feed("success", surprises(rng, 500))
    estimator.forecast(pushed())
    estimator.feed("length", surprises(rng, 40) + 2.0)
    first, second = estimator.forecast(pushed()), estimator.forecast(pushed())
    assert first.keep == {"kl": 1.0, "length": 0.2, "success": 1.0}
    assert second.keep == {"kl": 1.0, "length": 1.0, "success": 1.0}
    assert first.alarms == second.alarms == {"kl": 0, "length": 1, "success": 0}


def test_surprises_that_are_not_numbers_are_ignored() -> None:
    rng = np.random.default_rng(2)
    stream = surprises(rng, 800) + np.repeat([0.0, 1.0], 400)
    holes = np.insert(stream, np.arange(0, 800, 3), np.nan)
    holes = np.insert(holes, [5, 600], [np.inf, -np.inf])
    whole, holed = AdaptiveWindows(), AdaptiveWindows()
    whole.feed("length", stream)
    holed.feed("length", holes)
    assert whole.state_dict() == holed.state_dict()
    assert holed.forecast(pushed()).keep["length"] == 0.2


def test_a_leap_of_the_policy_puts_every_source_in_doubt_once() -> None:
    estimator, rng = AdaptiveWindows(), np.random.default_rng(3)
    estimator.feed("length", surprises(rng, 10))
    for version in range(30):
        estimator.observe(pushed(version, 0.01 * float(np.exp(rng.normal(0.0, 0.3)))))
        assert estimator.forecast(pushed()).keep == {"kl": 1.0, "length": 1.0}
    estimator.observe(pushed(30, 0.1))
    estimator.observe(pushed(30, 0.1))
    leap = estimator.forecast(pushed())
    assert leap.keep == {"kl": 0.5, "length": 0.5}
    assert leap.alarms == {"kl": 1, "length": 0}
    assert estimator.forecast(pushed()).keep == {"kl": 1.0, "length": 1.0}


def test_a_kl_that_is_unknown_or_without_new_weights_or_meaningless_says_nothing() -> None:
    estimator = AdaptiveWindows()
    for version in range(20):
        estimator.observe(pushed(version, 0.01))
    before = estimator.state_dict()
    for version, kl in ((19, 5.0), (20, None), (21, 0.0), (22, float("nan")), (23, -1.0)):
        estimator.observe(pushed(version, kl))
    assert {**estimator.state_dict(), "version": 19} == before
    assert estimator.forecast(pushed()).keep == {"kl": 1.0}


def test_a_state_that_went_through_json_goes_on_exactly_as_the_live_one() -> None:
    rng = np.random.default_rng(4)
    stream = surprises(rng, 2 * LONGEST) + 0.8 * (np.arange(2 * LONGEST) >= 3000)
    live, alarms = AdaptiveWindows(), 0
    loaded: list[AdaptiveWindows] = []
    for version, part in enumerate(np.split(stream, 80)):
        kl = 0.01 * float(np.exp(rng.normal()))
        for one in (live, *loaded):
            one.observe(pushed(version, kl))
            one.feed("length", part)
        if version % 8 == 7:  # some before a window is renewed, some before and after the alarm
            copy = AdaptiveWindows()
            copy.load_state_dict(json.loads(json.dumps(live.state_dict(), allow_nan=False)))
            loaded.append(copy)
        forecast = live.forecast(pushed())
        alarms = forecast.alarms["length"]
        for one in loaded:
            assert one.forecast(pushed()) == forecast
            assert one.state_dict() == live.state_dict()
    assert alarms >= 1


def test_what_is_remembered_is_bounded_and_health_is_the_mean_surprise() -> None:
    estimator = AdaptiveWindows()
    assert estimator.health() == {}
    estimator.feed("success", np.random.default_rng(5).normal(0.1, 0.5, 5 * LONGEST))
    assert len(estimator.state_dict()["watches"]["success"]["shown"]) <= LONGEST
    assert estimator.health()["success_surprise_mean"] == pytest.approx(0.1, abs=0.05)


def test_impossible_options_and_sources_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="doubt_keep"):
        AdaptiveWindows(alarm_keep=0.6)
    with pytest.raises(InvalidInputError, match="kl"):
        AdaptiveWindows().feed("kl", np.zeros(1))


def test_river_is_not_imported_before_an_estimator_is_built() -> None:
    code = "import sys, steersman.estimators.drift; sys.exit('river' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
