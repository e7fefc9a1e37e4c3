"""The `steersman` block of an answer: how each sample came about, for a trainer that corrects."""

from typing import Any

from steersman.controller.gateway.question import Question
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.mechanisms.execution import Execution


def info_of(question: Question, weight_version: int) -> dict[str, Any]:
    """One entry per choice, in the choices' order; `weight_version` is the trainer's."""
    samples = [sample_info(execution, weight_version) for execution in question.executions]
    worst = max((e.correctness for e in question.executions), default=CorrectnessClass.EXACT)
    return {
        "request_id": question.request_id,
        "weight_version": weight_version,
        "correctness": worst.name.lower(),
        "samples": samples,
    }


def sample_info(execution: Execution, weight_version: int) -> dict[str, Any]:
    """How one sample came about, for a trainer that corrects; `weight_version` is the trainer's."""
    oldest = execution.oldest_weight_version
    assert execution.disposition is not None
    return {
        "trajectory_id": execution.spec.trajectory_id,
        "group_id": execution.spec.group_id,
        "disposition": execution.disposition.value,
        "correctness": execution.correctness.name.lower(),
        "weight": execution.weight,
        "lag": 0 if oldest is None else max(weight_version - oldest, 0),
        "moves": execution.moves,
        "deferrals": execution.deferrals,
        "segments": [
            {
                "weight_version": segment.weight_version,
                "engine": segment.replica,
                "start": segment.start,
                "end": segment.end,
            }
            for segment in execution.segments
        ],
    }
