"""Which step the trainer is in, and a clock that stands still."""

from steersman.controller.gateway.clock import PausableClock
from steersman.controller.gateway.pace import Pace
from steersman.estimators.observation import Normaliser, Objective


def pace() -> Pace:
    return Pace(Objective.BARRIER, max_lag=0)


def test_a_step_begins_with_the_first_request_and_with_each_that_finds_nothing_in_flight() -> None:
    steps = pace()
    assert steps.arrives(1.0, idle=True, told_step=None)
    assert not steps.arrives(1.1, idle=False, told_step=None)
    assert steps.arrives(9.0, idle=True, told_step=None)
    assert (steps.step, steps.started_s) == (1, 9.0)


def test_a_step_begins_with_the_first_request_after_new_weights() -> None:
    steps = pace()
    steps.arrives(1.0, idle=True, told_step=None)
    assert steps.weights_changed(None) == 1
    assert steps.arrives(2.0, idle=False, told_step=None)
    assert not steps.arrives(2.1, idle=False, told_step=None)


def test_once_a_client_tells_its_step_nothing_else_begins_one() -> None:
    steps = pace()
    assert steps.arrives(1.0, idle=True, told_step=40)
    assert not steps.arrives(2.0, idle=True, told_step=40)
    steps.weights_changed(41)
    assert not steps.arrives(3.0, idle=True, told_step=None)
    assert steps.arrives(4.0, idle=False, told_step=41)
    assert not steps.arrives(5.0, idle=False, told_step=40), "a late request of the step before"
    assert steps.step == 41


def test_policies_are_told_the_weight_version_and_that_nothing_may_be_put_off() -> None:
    steps = pace()
    steps.weights_changed(12)
    signal = steps.signal(Normaliser.STD)
    assert (signal.weight_version, signal.max_lag, signal.step) == (12, 0, 0)


def test_paused_time_does_not_pass() -> None:
    real = [100.0]
    clock = PausableClock(lambda: real[0])
    before = clock()
    clock.pause()
    real[0] += 50
    clock.pause()
    assert clock() == before
    clock.resume()
    real[0] += 1
    assert clock() == before + 1
    clock.resume()
    assert clock() == before + 1
