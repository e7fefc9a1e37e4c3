from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.adaptive.putting_off import PuttingOff, putting_off

Q, R, L, E, P = Phase.QUEUED, Phase.RUNNING, Phase.LEAVING, Phase.ENDED, Phase.PARKED


def tail(phase: list[int], **columns: Any) -> Observation:
    """Groups of two on one replica."""
    n = len(phase)
    columns.setdefault("generated_tokens", [1000] * n)
    columns.setdefault("oldest_weight_version", [0] * n)
    trainer = columns.pop("trainer", TrainerSignal())
    on = np.where(np.isin(phase, (R, L)), 0, -1)
    table = trajectory_table(phase, 2, replica_row=on, **columns)
    return observation(table, replica_table(1), trainer=trainer)


def asked(
    seen: Observation, left: float = 1000, groups: int = 10, share: float = 0.25, alone: int = 1
) -> PuttingOff | None:
    """`alone`: replicas over which the next step spreads the work."""
    forecast = forecast_of(seen, [left] * len(seen.trajectories))
    outlook = Outlook.of(seen, forecast, Contexts())
    return putting_off(seen, forecast, outlook, groups, share, 0.05)


def test_the_last_groups_go_whole_when_that_pays() -> None:
    """Two of ten: 10 s + 4 s now; 4 s of tokens and .44 s of prefills later."""
    found = asked(tail([R, R, R, R]))
    assert found is not None
    assert (found.rows.tolist(), found.groups) == ([0, 1, 2, 3], 2)
    assert found.gain_s == pytest.approx(14.0)
    assert found.cost_s == pytest.approx(4.44)


def test_what_has_ended_of_a_group_stays() -> None:
    found = asked(tail([R, E, R, R]))
    assert found is not None
    assert found.rows.tolist() == [0, 2, 3]


def test_nothing_goes_that_costs_half_of_what_it_gains() -> None:
    """Eight at once: 10 s + 16 s, against 16 s + prefills."""
    assert asked(tail([R] * 16), share=1.0) is None


def test_all_that_is_open_goes_or_nothing() -> None:
    assert asked(tail([R, R, R, R]), share=0.2) is not None
    assert asked(tail([R, R, R, R]), share=0.19) is None
    assert asked(tail([R, R, R, R, P, P]), share=0.2) is None
    assert asked(tail([R, R, R, R, P, P]), share=0.3) is not None
    assert asked(tail([R, R]), share=0.0) is None


@pytest.mark.parametrize("phase", [[R, Q], [R, L]], ids=["waits", "is on its way"])
def test_a_group_of_which_one_does_not_run_stays(phase: list[int]) -> None:
    assert asked(tail(phase)) is None


def test_nothing_is_put_off_when_all_has_ended_or_is_parked() -> None:
    assert asked(tail([E, E])) is None
    assert asked(tail([P, P])) is None


@pytest.mark.parametrize(
    ("columns", "goes"),
    [
        ({"trainer": TrainerSignal(weight_version=4, max_lag=1), "oldest_weight_version": [4, 3]},
         False),
        ({"trainer": TrainerSignal(weight_version=4, max_lag=2), "oldest_weight_version": [4, 3]},
         True),
        ({"trainer": TrainerSignal(max_lag=0)}, False),
        ({"deferred": [0, 1]}, False),
    ],
    ids=["beyond the lag bound", "within the lag bound", "no lag allowed", "put off before"],
)  # fmt: skip
def test_a_group_goes_once_and_within_the_lag_bound(columns: dict[str, Any], goes: bool) -> None:
    assert (asked(tail([R, R], **columns)) is not None) is goes


def test_the_next_step_spreads_the_work_over_all_replicas() -> None:
    seen = tail([R, R])
    wide = replace(seen, replicas=replica_table(4))
    one, four = asked(seen), asked(wide)
    assert one is not None
    assert four is not None
    assert four.cost_s == pytest.approx(one.cost_s / 4)
