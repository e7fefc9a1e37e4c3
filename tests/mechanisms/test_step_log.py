"""A profile's overhead out of a log of steps, where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated.profile import load_profile
from steersman.mechanisms.simulated.step_log import (
    StepSummary,
    fit_overhead,
    rollout_s,
    typical_spread,
)

TRUE = replace(load_profile("qwen3-8b-h100-tp1"), overhead_s=2e-3, overhead_sequence_s=40e-6)
STEPS = [
    StepSummary(sequences, 8, mean, longest, 150.0, 8192, replicas)
    for sequences, mean, longest, replicas in (
        (128, 1700.0, 5000, 2),
        (64, 1200.0, 6000, 2),
        (256, 2500.0, 7000, 2),
        (32, 900.0, 3000, 1),
    )
]


def test_the_overheads_are_found_from_steps_of_different_batches() -> None:
    measured = [rollout_s(TRUE, step, 0.6) for step in STEPS]
    fitted = fit_overhead(load_profile("qwen3-8b-h100-tp1"), STEPS, measured, 0.6)
    assert fitted.overhead_s == pytest.approx(TRUE.overhead_s, rel=0.02)
    assert fitted.overhead_sequence_s == pytest.approx(TRUE.overhead_sequence_s, rel=0.05)
    assert fitted.overhead_source == "fitted to 4 measured rollouts"


def test_no_overhead_is_negative_where_the_rollouts_were_faster_than_the_profile() -> None:
    measured = [0.5 * rollout_s(TRUE, step, 0.6) for step in STEPS]
    fitted = fit_overhead(TRUE, STEPS, measured, 0.6)
    assert fitted.overhead_s >= 0
    assert fitted.overhead_sequence_s >= 0


def test_a_prediction_hardly_depends_on_the_draws() -> None:
    step = replace(STEPS[0], longest_tokens=8192)
    predicted = [rollout_s(TRUE, step, 0.6, seed) for seed in range(8)]
    assert np.std(predicted) / np.mean(predicted) < 0.01


def test_what_a_log_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="every step reaches its cap"):
        typical_spread([replace(STEPS[0], longest_tokens=8192)])
    with pytest.raises(InvalidInputError, match="128 sequences on 3 replicas: uneven"):
        rollout_s(TRUE, replace(STEPS[0], replicas=3), 0.6)
    with pytest.raises(InvalidInputError, match="mean length 6000 with a longest of 5000"):
        rollout_s(TRUE, replace(STEPS[0], mean_tokens=6000.0), 0.6)
