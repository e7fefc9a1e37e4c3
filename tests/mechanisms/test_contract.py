"""Every mechanism says which action it carries out, of which class, and what it costs."""

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.plugins import build, names
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.mechanisms.contract import Mechanism
from steersman.policies.decision import Action

TRAJECTORIES = trajectory_table(
    [Phase.RUNNING] * 2,
    replica_row=[0, 0],
    prompt_tokens=[100, 100],
    generated_tokens=[0, 900],
)
SEEN = observation(TRAJECTORIES, replica_table(2))
FORECAST = forecast_of(SEEN, [50.0, 50.0])


@pytest.fixture(params=names("mechanisms"))
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    built: Mechanism = build("mechanisms", request.param, {})
    name = request.param.removesuffix("_")  # `continue` is no name for a Python module
    assert built.action.value == name, "a mechanism's file has its action's name"
    return built


def test_costs_are_seconds_and_never_fall_with_the_tokens_at_stake(mechanism: Mechanism) -> None:
    short, long = (mechanism.cost_s(SEEN, FORECAST, row) for row in (0, 1))
    assert np.isfinite([short, long]).all()
    assert 0 <= short <= long


def test_only_what_keeps_the_distribution_is_called_exact(mechanism: Mechanism) -> None:
    exact = {Action.PLACE, Action.MIGRATE, Action.ISOLATE, Action.SPECULATE}
    assert (mechanism.correctness is CorrectnessClass.EXACT) == (mechanism.action in exact)


def test_a_migration_costs_the_hand_over_and_a_prefill_of_everything_it_holds() -> None:
    model = FORECAST.throughput
    expected_s = model.handover_s.mean() + 1000 * model.prefill_token_s.mean()
    cost_s = build("mechanisms", "migrate", {}).cost_s(SEEN, FORECAST, 1)
    assert cost_s == pytest.approx(expected_s)
