"""All scores of one file: the estimators and, under the same observations, what they must beat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from steersman.controller.calibration.baselines import length_baselines
from steersman.controller.calibration.replay import replay_lengths
from steersman.controller.calibration.steps import Plan, Step, made_up_steps
from steersman.controller.calibration.success import calibration
from steersman.controller.calibration.tables import samples_from_csv
from steersman.controller.calibration.traces import steps_from_trace
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.errors import InvalidInputError

TABLES, TRACES = (".csv", ".csv.gz"), (".jsonl",)


def steps_of(path: Path, plan: Plan) -> list[Step]:
    """The steps of a trace, or made up from a table of samples as `plan` says."""
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file")
    if path.name.endswith(TRACES):
        return steps_from_trace(path)
    if path.name.endswith(TABLES):
        return made_up_steps(samples_from_csv(path), plan)
    raise InvalidInputError(
        f"{path} is neither a trace ({', '.join(TRACES)}) nor a table ({', '.join(TABLES)})"
    )


def calibrate(
    steps: list[Step], length: LengthEstimator, after_step: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """`{"length": {scores, "baselines": {...}}, "success": {...}, "work": {...}}`; NaN as None.

    `success` is None where no group's rewards are known.
    """
    scores = replay_lengths(steps, {"": length, **length_baselines()}, after_step)
    results = {name: score.result() for name, score in scores.items()}
    groups = [known for step in steps if (known := step.rewards_by_group()) is not None]
    return {
        "length": _without_nan({**results.pop(""), "baselines": results}),
        "success": _without_nan(calibration(groups)) if groups else None,
        "work": {
            "steps": len(steps),
            "trajectories": sum(len(step.length) for step in steps),
            "forecasts_scored": scores[""].count,
            "groups_rewarded": sum(len(keys) for keys, _ in groups),
        },
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and value != value else value
