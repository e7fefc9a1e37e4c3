"""The evaluations of one live run, with what it had cost until then, from its trace.

Tokens: all that replicas wrote, those of answers that were thrown away included.  Replica-seconds:
seconds of rollout times the replicas that were alive, step by step.  Between two steps the fleet
waits for the trainer, and while weights are pushed it is paused: neither is rollout, neither is
counted.  Wall-clock: everything since the run began, less what the evaluations took where the
trainer tells it, for measuring is no part of training.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.controller.report.reading import summarize
from steersman.controller.report.summary import RunSummary
from steersman.controller.report.told import (
    PHASE,
    hardware_of,
    lengths_of,
    lever_of,
    quality_of,
    workload_of,
)
from steersman.controller.trace.reader import read
from steersman.controller.trace.records import (
    AttemptEnded,
    GroupAdmitted,
    GroupEnded,
    QualityMeasured,
    Record,
    ReplicaReport,
    RunStarted,
    StepEnded,
    StepStarted,
    TrajectoryEnded,
    WeightsPushed,
)
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import Disposition


def trace_points(path: Path, arm: str) -> tuple[dict[str, Any], list[QualityPoint]]:
    """Header and evaluations; `arm` "": named by what decided."""
    books = Books()
    summary = summarize(_watched(read(path), books))
    if not books.measured:
        raise InvalidInputError(
            f"{path} holds no evaluation; the trainer tells them by session.quality(...)"
        )
    name = arm or books.arm
    metrics = list(dict.fromkeys(metric for metric, _, _ in summary.qualities))
    if len(metrics) > 1:
        raise InvalidInputError(f"{path} measures several qualities: {', '.join(metrics)}")
    header = {**_told(summary, name), "metric": metrics[0], "arms": {name: books.of_arm()}}
    return header, [books.point(name, i) for i in range(len(books.measured))]


def _watched(records: Iterable[Record], books: "Books") -> Iterator[Record]:
    for record in records:
        books.take(record)
        yield record


def _told(run: RunSummary, arm: str) -> dict[str, str]:
    return {
        "phase": f"tokens and replica-seconds: {PHASE}; wall-clock: the whole run",
        "hardware": hardware_of(run),
        "workload": workload_of(run),
        "lever": f"{arm}: {lever_of(run)}",
        "quality": f"{arm}: {quality_of(run)}",
        "response_lengths": f"{arm}: {lengths_of(run)}",
    }


@dataclass
class Measured:
    """One evaluation, and the sums at its time."""

    record: QualityMeasured
    step: int
    tokens: int
    replica_s: float
    evaluation_s: float
    extras: dict[str, float]


@dataclass
class Books:
    """Sums over a trace; `take` each record."""

    measured: list[Measured] = field(default_factory=list)
    seed: int = 0
    max_lag: int = 0
    _placement: str = "?"
    _prompts: str = ""
    _step: int = 0
    _tokens: int = 0
    _replica_s: float = 0.0
    _evaluation_s: float = 0.0
    _since_s: float = math.nan
    """Until when rollout is counted, in the open step; NaN: none is open."""
    _alive: dict[str, bool] = field(default_factory=dict)
    _version: int = 0
    _answers: dict[int, tuple[int, bool, int]] = field(default_factory=dict)
    """Tokens, at the cap, oldest version; of trajectories that ended."""
    _recent: list[tuple[int, bool, int]] = field(default_factory=list)
    """Tokens, at the cap, lag; delivered since the last evaluation."""

    @property
    def arm(self) -> str:
        """What decided."""
        return "+".join(filter(None, (self._placement, self._prompts)))

    def of_arm(self) -> dict[str, Any]:
        """For the header."""
        return {"max_lag": self.max_lag}

    def point(self, arm: str, number: int) -> QualityPoint:
        """An evaluation as a quality log holds it."""
        found = self.measured[number]
        return QualityPoint(
            arm=arm,
            seed=self.seed,
            step=found.step,
            tokens=found.tokens,
            replica_s=found.replica_s,
            wall_s=found.record.t_s - found.evaluation_s,
            quality=found.record.quality,
            evaluated=found.record.evaluated,
            extras=found.extras,
        )

    @singledispatchmethod
    def take(self, record: Record) -> None:
        """Records of other kinds cost nothing."""

    @take.register
    def _(self, record: RunStarted) -> None:
        self.seed = record.seed
        self._placement = str(record.config.get("placement", {}).get("name", "?"))
        self._alive = {info.name: True for info in record.replicas}

    @take.register
    def _(self, record: ReplicaReport) -> None:
        self._count(record.t_s)
        self._alive[record.replica] = record.alive

    @take.register
    def _(self, record: StepStarted) -> None:
        self._since_s = record.t_s
        self.max_lag = max(self.max_lag, record.max_lag)

    @take.register
    def _(self, record: StepEnded) -> None:
        self._count(record.t_s)
        self._since_s = math.nan
        self._step = record.step + 1

    @take.register
    def _(self, record: WeightsPushed) -> None:
        self._version = record.weight_version
        if not math.isnan(self._since_s):
            paused_from_s = max(record.t_s - record.seconds, self._since_s)
            self._count(paused_from_s)
            self._since_s = max(self._since_s, record.t_s)

    @take.register
    def _(self, record: AttemptEnded) -> None:
        self._tokens += record.tokens

    @take.register
    def _(self, record: GroupAdmitted) -> None:
        self._prompts = record.prompt_policy or self._prompts

    @take.register
    def _(self, record: TrajectoryEnded) -> None:
        oldest = min((segment[0] for segment in record.segments), default=self._version)
        cut = record.disposition == Disposition.TRUNCATED.value
        self._answers[record.trajectory_id] = (record.generated_tokens, cut, oldest)

    @take.register
    def _(self, record: GroupEnded) -> None:
        for trajectory_id in record.trajectory_ids:
            tokens, cut, oldest = self._answers.pop(trajectory_id, (0, False, self._version))
            if record.complete:
                self._recent.append((tokens, cut, self._version - oldest))

    @take.register
    def _(self, record: QualityMeasured) -> None:
        self._count(record.t_s)
        self._evaluation_s += record.seconds
        extras = {}
        if count := len(self._recent):
            lengths, cut, lags = zip(*self._recent, strict=True)
            extras = {
                "mean_length": sum(lengths) / count,
                "truncated_share": sum(cut) / count,
                "mean_lag": sum(lags) / count,
            }
        self._recent.clear()
        self.measured.append(
            Measured(record, self._step, self._tokens, self._replica_s, self._evaluation_s, extras)
        )

    def _count(self, t_s: float) -> None:
        """Add the rollout until now."""
        if not math.isnan(self._since_s) and t_s > self._since_s:
            self._replica_s += (t_s - self._since_s) * sum(self._alive.values())
            self._since_s = t_s
