"""Each diagnostic says of a study what is true of it, and what is missing where it cannot tell."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from support.quality_study import SyntheticStudy

from steersman.controller.evaluate.ablation import ablation
from steersman.controller.evaluate.answer import bar
from steersman.controller.evaluate.compose import compose
from steersman.controller.evaluate.control import control, work_ratio
from steersman.controller.evaluate.curves import curves
from steersman.controller.evaluate.matched import matched
from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.controller.evaluate.staleness import staleness
from steersman.controller.evaluate.study import Study, study_of
from steersman.estimators.errors import InvalidInputError, UnknownNameError

FINE = {"evaluated": 2000, "run_sd": 0.02, "budget": 2_000_000.0, "evaluations": 40}
"""A study in which 5 seeds tell much."""


def drawn(seed: int = 0, **design: object) -> Study:
    return SyntheticStudy(**design).study(np.random.default_rng(seed))  # type: ignore[arg-type]


def fine(arms: dict[str, float], **design: object) -> Study:
    return drawn(arms=arms, **{**FINE, **design})


# Curves


def test_the_ratio_of_costs_is_told_with_how_many_got_there() -> None:
    study = fine({"uniform": 1.0, "ours": 0.7})
    found = curves(study, targets=[0.6])
    assert [table.title for table in found.tables] == [
        "tokens to quality", "replica-seconds to quality", "wall-clock seconds to quality",
    ]  # fmt: skip
    (row,) = [r for r in found.figures["axes"]["tokens"] if r["arm"] == "ours"]
    low, high = row["against_baseline"]["ci95"]
    assert low < 0.7 < high < 0.8
    assert (row["reached"], row["runs"], row["against_baseline"]["pairs"]) == (5, 5, 5)
    assert "5 of 5 runs of ours and 5 of 5 runs of uniform got there" in found.verdict


def test_cheaper_tokens_can_cost_more_seconds() -> None:
    """Three costs, three answers."""
    study = fine({"uniform": 1.0, "ours": 0.7}, replica_s_per_token={"ours": 2e-3})
    axes = curves(study, targets=[0.6]).figures["axes"]
    ratio = {a: rows[-1]["against_baseline"]["ratio"] for a, rows in axes.items()}
    assert ratio["tokens"] == pytest.approx(0.7, abs=0.05)
    assert ratio["replica_s"] == pytest.approx(1.4, abs=0.1)


def test_a_run_that_never_gets_there_is_told_and_makes_a_bound() -> None:
    study = fine({"uniform": 1.0, "ours": 0.7}, tops={"uniform": 0.6})
    found = curves(study, targets=[0.7])
    uniform, ours = found.figures["axes"]["tokens"]
    assert (uniform["reached"], uniform["cost_is_lower_bound"]) == (0, True)
    assert ours["against_baseline"]["bound"] == "<="
    assert found.tables[0].rows[0][3].startswith(">= ")


def test_more_seeds_are_asked_for_where_the_effect_is_small() -> None:
    study = drawn(budget=2_000_000.0)
    notes = [curves(study, effect=effect).notes[0] for effect in (0.7, 0.95)]
    needs = [int(note.split(" needs ")[1].split()[0].replace(",", "")) for note in notes]
    assert needs[0] < needs[1]


def test_a_target_that_nobody_reaches_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"no run reaches quality 0.99; the best curve"):
        curves(drawn(), targets=[0.99])


def test_an_unknown_arm_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown arm 'unifrom'; did you mean 'uniform'"):
        curves(drawn(), "unifrom")


def test_one_seed_has_ratios_without_intervals() -> None:
    found = curves(drawn(seeds=1))
    assert "[no interval]" in found.tables[0].rows[1][4]
    assert any("two seeds or more" in note for note in found.notes)


def test_arms_without_a_common_seed_are_an_error() -> None:
    points = SyntheticStudy(seeds=1).points(np.random.default_rng(0))
    moved = [p if p.arm == "uniform" else _with(p, seed=7) for p in points]
    with pytest.raises(InvalidInputError, match=r"no seed in common \(seeds 7 and seeds 0\)"):
        curves(_study(moved))


def test_one_arm_is_described_and_compared_with_nothing() -> None:
    assert "nothing to compare it with" in curves(drawn(arms={"ours": 1.0})).verdict


def test_a_run_that_fell_is_named() -> None:
    points = SyntheticStudy(seeds=2).points(np.random.default_rng(0))
    last = max(p.step for p in points)
    fallen = [
        _with(p, quality=0.2) if (p.arm, p.seed) == ("ours", 1) and p.step > last - 8 else p
        for p in points
    ]
    assert any("ours seed 1" in note and "worse again" in note for note in
               curves(_study(fallen)).notes)  # fmt: skip


# Matched cost


def test_quality_at_equal_cost_is_better_for_the_cheaper_arm() -> None:
    study = fine({"uniform": 1.0, "ours": 0.7})
    found = matched(study, at=[400_000], axes=["tokens"])
    (row,) = found.figures["axes"]["tokens"]
    # dq/dlog(scale) at c/scale about 1.1: .6 * 1.14 * exp(-1.14) * .36
    assert row["difference"]["ci95"][0] > 0.03
    assert "better than uniform" in found.verdict


def test_a_cost_that_not_every_run_spent_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="up to the 1,000,000 that every run spent"):
        matched(drawn(), at=[2e6], axes=["tokens"])


# Control


def test_a_gain_that_is_only_less_work_is_not_credited_to_the_criterion() -> None:
    study = fine({"uniform": 1.0, "random": 0.7, "chosen": 0.7})
    found = control(study, "chosen", "random", "uniform")
    criterion, work, both = (pair["cost"]["ratio"] for pair in found.figures["pairs"])
    assert found.verdict.startswith("Cannot tell the criterion from choosing at random")
    assert criterion == pytest.approx(1.0, abs=0.05)
    assert work == pytest.approx(both, abs=0.05) == pytest.approx(0.7, abs=0.05)


def test_a_criterion_that_gains_at_equal_work_is_credited() -> None:
    found = control(fine({"random": 1.0, "chosen": 0.7}), "chosen", "random")
    assert found.verdict.startswith("The criterion gains")
    assert any("equal work" in note for note in found.notes)


def test_a_control_that_worked_less_is_not_equal_work() -> None:
    study = _study(
        [
            _with(p, tokens=p.tokens // 2) if p.arm == "uniform" else p
            for p in SyntheticStudy().points(np.random.default_rng(0))
        ]
    )
    assert math.exp(work_ratio(study, "ours", "uniform").mean) == pytest.approx(2.0, abs=0.01)
    found = control(study, "ours", "uniform")
    assert found.verdict.endswith("though work per step was not equal.")


# Ablation


def test_each_lever_is_judged_against_what_came_before_it() -> None:
    study = fine({"base": 1.0, "a": 0.7, "ab": 0.7, "abc": 0.9})
    found = ablation(study)
    assert found.verdict.endswith("helps: a; hurts: abc; cannot tell: ab.")
    assert [step["added_to"] for step in found.figures["steps"]] == ["base", "a", "ab"]


def test_an_ablation_of_one_arm_or_of_a_doubled_one_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="needs two arms or more; there is ours alone"):
        ablation(drawn(arms={"ours": 1.0}))
    with pytest.raises(InvalidInputError, match="an arm is named twice"):
        ablation(drawn(), ["ours", "ours"])


# Composability


@pytest.mark.parametrize(
    ("both", "verdict"), [(0.56, "compose"), (0.5, "compose"), (0.75, "conflict")]
)
def test_levers_compose_if_both_keep_the_product(both: float, verdict: str) -> None:
    study = fine({"base": 1.0, "a": 0.7, "b": 0.8, "both": both})
    found = compose(study, "base", "a", "b", "both")
    assert found.figures["verdict_class"] == verdict, found.verdict


def test_what_too_few_seeds_cannot_tell_is_said_with_how_many_could() -> None:
    study = drawn(arms={"base": 1.0, "a": 0.7, "b": 0.8, "both": 0.56}, run_sd=0.2)
    found = compose(study, "base", "a", "b", "both", target=0.6)
    assert found.verdict.startswith("Cannot tell whether a and b compose")
    assert found.figures["seeds_needed"] > 5


def test_the_verdict_is_seldom_wrong() -> None:
    """Of levers that compose exactly, no more than the interval allows are called a conflict."""
    rng = np.random.default_rng(5)
    design = SyntheticStudy(arms={"base": 1.0, "a": 0.7, "b": 0.8, "both": 0.56},
                            budget=2_000_000)  # fmt: skip
    found = [
        compose(design.study(rng), "base", "a", "b", "both", target=0.6).figures["verdict_class"]
        for _ in range(60)
    ]
    assert found.count("conflict") <= 4


def test_the_four_settings_must_differ() -> None:
    with pytest.raises(InvalidInputError, match="not different: uniform, ours, ours, uniform"):
        compose(drawn(), "uniform", "ours", "ours", "uniform")


# Staleness


LAGS = {"lag0": 0, "lag1": 1, "lag8": 8}


def test_the_loosest_bound_without_harm_is_named() -> None:
    speed = {"lag0": 1e-3, "lag1": 0.7e-3, "lag8": 0.6e-3}
    study = fine({"lag0": 1.0, "lag1": 1.0, "lag8": 2.5}, replica_s_per_token=speed)
    found = staleness(study, LAGS, margin=0.01)
    assert found.verdict.startswith("The loosest bound that is not worse than 0 by more than 0.01")
    assert "is 1 (lag1" in found.verdict
    assert found.verdict.endswith("worse beyond doubt: 8.")


def test_a_bound_is_not_called_safe_because_nothing_can_be_seen() -> None:
    """The means are equal within the margin; what these seeds leave possible is not."""
    unseen = 0
    for seed in range(8):
        study = drawn(seed, arms={"lag0": 1.0, "lag1": 1.0}, run_sd=0.3, budget=400_000.0)
        found = staleness(study, {"lag0": 0, "lag1": 1}, margin=0.03, target=0.4)
        (row,) = found.figures["arms"]
        if row["quality"]["mean"] > -0.03 > row["quality"]["ci95"][0]:
            unseen += 1
            assert found.verdict.startswith("No bound above 0 is certainly within 0.03")
    assert unseen >= 3


def test_a_lag_that_is_not_known_is_an_error_that_names_the_arm() -> None:
    with pytest.raises(InvalidInputError, match="lag bound of arm 'ours' is not known; give it"):
        staleness(drawn(), {"uniform": 0})


def test_one_bound_is_no_sweep() -> None:
    with pytest.raises(InvalidInputError, match="two lag bounds or more; there is uniform 1"):
        staleness(drawn(), {"uniform": 1, "ours": 1})


def test_an_axis_that_is_not_known_is_an_error() -> None:
    points = SyntheticStudy().points(np.random.default_rng(0))
    study = _study([_with(p, replica_s=math.nan) for p in points])
    with pytest.raises(InvalidInputError, match="replica-seconds of arm 'uniform', seed 0 are not"):
        staleness(study, {"uniform": 0, "ours": 1})


# Text


def test_an_interval_is_drawn_where_it_is() -> None:
    assert bar(0.5, 0.7, 0.9, (0.0, 1.0), 1.0) == "··········----o----·|"
    assert bar(math.nan, 0.0, math.nan, (0.0, 1.0), 1.0).startswith("o·")


def _with(point: QualityPoint, **changes: object) -> QualityPoint:
    from dataclasses import replace

    return replace(point, **changes)  # type: ignore[arg-type]


def _study(points: Sequence[QualityPoint]) -> Study:
    return study_of([("made up", p) for p in points], {})
