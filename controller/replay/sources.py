"""Workloads from files: a run table, a trace of this project, or a table of samples."""

import tempfile
from pathlib import Path

import numpy as np

from steersman.controller.calibration.steps import Plan, Step, made_up_steps
from steersman.controller.calibration.tables import samples_from_csv
from steersman.controller.replay.workload import Asked, Workload, workload_of
from steersman.controller.runs.importing import import_run
from steersman.controller.runs.table import read_run
from steersman.controller.trace import records
from steersman.controller.trace.reader import TraceReader
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import ReplicaStats

RUN_TABLES, TRACES, TABLES = (".parquet",), (".jsonl",), (".csv", ".csv.gz")
PROMPT_TOKENS = 256
"""Assumed of every prompt of a table of samples, which does not tell: a short problem."""


def load_workload(path: Path, plan: Plan) -> Workload:
    """The steps in a file; `plan` makes steps of a table of samples."""
    if not path.exists():
        raise InvalidInputError(f"{path}: no such file")
    if path.name.endswith(RUN_TABLES):
        return workload_of(read_run(path))
    if path.name.endswith(TRACES):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run.parquet"
            import_run("steersman", path, out, {})
            return workload_of(read_run(out))
    if path.name.endswith(TABLES):
        steps = made_up_steps(samples_from_csv(path), plan)
        assumed = (
            f"steps of {plan.prompts_per_step} prompts x {plan.group_size} samples, made up",
            f"every prompt has {PROMPT_TOKENS} tokens",
        )
        return Workload([_asked(number, step) for number, step in enumerate(steps)], assumed)
    valid = ", ".join((*RUN_TABLES, *TRACES, *TABLES))
    raise InvalidInputError(f"{path} cannot be replayed; valid: a file ending in {valid}")


def weight_times(path: Path) -> tuple[float, ...]:
    """When a trace's weight updates began, in seconds since its first request.

    Run tables do not tell.  A push before the first request is not one of the rollout's.
    """
    begun_s, pushed_s = None, list[float]()
    if path.name.endswith(TRACES):
        for record in TraceReader(path):
            if begun_s is None and isinstance(record, records.AttemptStarted):
                begun_s = record.t_s
            elif begun_s is not None and isinstance(record, records.WeightsPushed):
                pushed_s.append(max(record.t_s - record.seconds - begun_s, 0.0))
    if not pushed_s:
        raise InvalidInputError(
            f"{path} tells no weight updates; valid: a trace (.jsonl) that does, or weights.at_s "
            "as a list of seconds"
        )
    return tuple(pushed_s)


def accepted_by_position(path: Path) -> tuple[float, ...]:
    """Share of a trace's drafts that was accepted at each position, given those before it.

    From its last reports of every replica; of the drafts that reached a position, those count
    that were long enough to go on (`estimators.acceptance`).
    """
    last: dict[str, ReplicaStats] = {}
    if path.name.endswith(TRACES):
        for record in TraceReader(path):
            if isinstance(record, records.ReplicaReport):
                last[record.replica] = record.stats
    depth = max((len(stats.drafted_at) for stats in last.values()), default=0)
    counts = np.zeros((2, depth))
    for stats in last.values():
        counts[0, : len(stats.drafted_at)] += stats.drafted_at
        counts[1, : len(stats.accepted_at)] += stats.accepted_at
    drafted, accepted = counts
    if not drafted.any():
        raise InvalidInputError(
            f"{path} tells of no drafts; valid: a trace (.jsonl) that does, or "
            "speculation.acceptance as a list of probabilities"
        )
    tries = drafted.copy()
    tries[1:] = accepted[:-1] * drafted[1:] / np.maximum(drafted[:-1], 1.0)
    return tuple((accepted / np.maximum(tries, np.maximum(accepted, 1.0))).tolist())


def _asked(number: int, step: Step) -> Asked:
    return Asked.plain(
        step=number,
        prompt_key=step.prompt_key,
        group_row=step.group_row,
        prompt_tokens=PROMPT_TOKENS,
        length=step.length,
        max_new_tokens=step.max_new_tokens,
        reward=step.reward,
    )
