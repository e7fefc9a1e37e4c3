"""The scores of `steersman calibrate` on real samples, against everything simpler.

Steps of 32 prompts x 8 samples, 32 at once, three passes, as the command makes them up by default.
"""

from typing import Any

import pytest
from support.real_data import real_data

from steersman.controller.calibration.steps import Plan
from steersman.controller.calibration.summary import calibrate, steps_of
from steersman.estimators.length import SurvivalLength


def scores(name: str, **plan: int) -> dict[str, Any]:
    return calibrate(steps_of(real_data(name), Plan(**plan)), SurvivalLength())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_long_chains_of_thought_are_forecast_better_than_from_any_single_source(seed: int) -> None:
    length = scores("multisample_math500_long_cot.csv.gz", seed=seed)["length"]
    assert 0.85 <= length["q90_coverage"] <= 0.96
    assert length["tail_recall"] >= 0.45
    for name, other in length["baselines"].items():
        assert length["pinball"] < other["pinball"], name


@pytest.mark.parametrize("concurrency", [32, 256])
def test_where_siblings_are_hardly_alike_nothing_is_lost(concurrency: int) -> None:
    """All the variance is between siblings: nothing helps much, and no harm is done."""
    name = "multisample_rg_llama3b_rl_aime24_amc23_n50.csv.gz"
    length = scores(name, concurrency=concurrency)["length"]
    assert length["q90_coverage"] >= 0.85
    assert length["pinball"] <= 1.02 * length["baselines"]["global"]["pinball"]


def test_pass_rates_of_real_prompts_are_calibrated_and_rank_degenerate_groups() -> None:
    name = "multisample_rg_llama3b_rl_aime24_amc23_n50.csv.gz"
    success = scores(name, passes=6)["success"]
    for other in ("moving_average", "discounted_beta"):
        baseline = success["baselines"][other]
        assert success["brier"] < baseline["brier"]
        assert success["degenerate_auc"] > baseline["degenerate_auc"]
        assert success["ece"] < baseline["ece"]
