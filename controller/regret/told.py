"""What a study of regret tells of the reporting checklist."""

from collections.abc import Mapping, Sequence

from steersman.controller.checklist import Checklist, each
from steersman.controller.regret.long_runs import LongRun, long_run
from steersman.controller.regret.study import DEFAULT, Finding
from steersman.controller.replay.told import PHASE, hardware_of, lengths_of

LENGTH_STEPS = 20
"""Steps of the first seed from which lengths are told."""


def checklist_of(findings: Sequence[Finding], told: Mapping[str, str] | None = None) -> Checklist:
    """Of one judged entry on some workloads."""
    runs: dict[str, LongRun] = {one.workload: long_run(one.workload) for one in findings}
    judged, steps = findings[0].judged, findings[0].steps
    seeds = len(findings[0].seeds)
    fixed = dict.fromkeys(line.entry for one in findings for line in one.lines[1:])
    made = Checklist(
        baseline=f"the best fixed entry in hindsight, and the default, {DEFAULT}",
        phase=PHASE,
        unit="seconds of rollout more than the baseline's, summed over steps",
        statistic=f"mean over {seeds} seed{'s' * (seeds != 1)} of {steps} steps each, on the same "
        "trajectories; no interval",
        hardware=each({name: hardware_of(run.plan) for name, run in runs.items()}),
        workload="; ".join(f"{name}: {run.summary}" for name, run in runs.items()),
        lever=f"{judged}, against {', '.join(fixed)}",
        quality="none: a simulation trains nothing; answers, their lengths kept over asked and "
        "what was put off are in the table of all entries",
        response_lengths=each(
            {
                name: lengths_of([run.make(0, min(steps, LENGTH_STEPS))])
                for name, run in runs.items()
            }
        ),
    )
    return made.told(told or {})
