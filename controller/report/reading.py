"""Reads a trace into a `RunSummary`, one record after the other.

An event belongs to the step that began last before it, by its time and not by its place in the
file: what a step admits and resumes may be written a moment before the step's own record.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import singledispatchmethod
from typing import Any

import msgspec

from steersman.controller.report.drafts import DraftCounts, Drafted, total
from steersman.controller.report.summary import (
    Bar,
    DecisionSummary,
    RunSummary,
    StepSummary,
)
from steersman.controller.trace._invariants import Invariants
from steersman.controller.trace.records import (
    AttemptEnded,
    AttemptStarted,
    ControllerState,
    DecisionTaken,
    GroupAdmitted,
    GroupEnded,
    GroupExtended,
    Outcome,
    PhaseChanged,
    QualityMeasured,
    Record,
    ReplicaReport,
    Rewarded,
    RunStarted,
    StepEnded,
    StepStarted,
    TrajectoryEnded,
    WeightsPushed,
)
from steersman.estimators.lifecycle import ANSWERS, REPLACED, Disposition
from steersman.policies.decision import Action

_NATURAL = {"stop": "finished", "length": "truncated", "lost": "lost", "error": "lost"}
_AFTER_LEAVING = {
    "RUNNING": "migrated",
    "QUEUED": "migrated",
    "PARKED": "deferred",
    "ENDED": "stopped",
}


def summarize(records: Iterable[Record]) -> RunSummary:
    """The summary of one run, from its trace."""
    reading, invariants = _Reading(), Invariants()
    for record in records:
        invariants.take(record)
        reading.take(record)
    invariants.close()
    summary = reading.close()
    summary.problems = invariants.problems
    return summary


class _Reading:
    def __init__(self) -> None:
        self.run = RunSummary()
        self._groups: dict[int, GroupAdmitted] = {}
        self._ended: dict[int, TrajectoryEnded] = {}
        self._delivered: list[GroupEnded] = []
        self._given_up: set[int] = set()
        self._bars: dict[int, Bar] = {}
        self._events: list[tuple[float, str]] = []
        self._rewards: dict[int, float] = {}
        self._decisions: list[DecisionTaken] = []
        self._outcomes: dict[tuple[int, int, str], str] = {}
        self._draft_counts = DraftCounts()
        self._drafted: list[tuple[float, Drafted]] = []

    @singledispatchmethod
    def take(self, record: Record) -> None:
        """Records of other kinds are not in the report."""

    @take.register
    def _(self, record: RunStarted) -> None:
        run, config = self.run, record.config
        run.policy = str(config.get("placement", {}).get("name", "?"))
        run.replicas = [info.name for info in record.replicas]
        run.slots = {info.name: info.max_num_seqs for info in record.replicas}
        slots = ", ".join(sorted({str(info.max_num_seqs) for info in record.replicas}))
        started = datetime.fromtimestamp(record.started_unix_s, UTC)
        run.facts = {
            "started": f"{started:%Y-%m-%d %H:%M} UTC",
            "mode": str(config.get("mode", "?")),
            "seed": str(record.seed),
            "replicas": f"{len(run.replicas)}, each with {slots} sequences at most",
            "dtype": ", ".join(sorted({info.dtype for info in record.replicas})),
            "machine": record.machine,
            "steersman": record.steersman_version,
        }
        parts = ("placement", "prompts", "stopping", "speculation")
        self.run.levers = {part: _named(config[part]) for part in parts if part in config}

    @take.register
    def _(self, record: ControllerState) -> None:
        self.run.fail_open += record.state == "fail_open"

    @take.register
    def _(self, record: ReplicaReport) -> None:
        seen = self.run.kv_usage.setdefault(record.replica, [])
        seen.append((record.t_s, record.stats.kv_cache_usage))
        grown = self._draft_counts.grown(record.replica, record.stats.draft_classes)
        if grown:
            self.run.drafts += grown
            self._drafted.append((record.t_s, total(grown)))

    @take.register
    def _(self, record: WeightsPushed) -> None:
        difference, so_far = record.probe_max_difference, self.run.logprob_difference
        if difference is not None:
            self.run.logprob_difference = max(difference, so_far or 0.0)

    @take.register
    def _(self, record: StepStarted) -> None:
        self.run.steps.append(StepSummary(record.step, record.t_s, 0.0))

    @take.register
    def _(self, record: StepEnded) -> None:
        if self.run.steps:
            self.run.steps[-1].seconds = record.seconds

    @take.register
    def _(self, record: GroupAdmitted) -> None:
        self._groups[record.group_id] = record
        self.run.asked += record.size
        self.run.shapes[record.size, record.max_new_tokens] += 1
        self.run.prompts.add(record.prompt_key)

    @take.register
    def _(self, record: GroupExtended) -> None:
        before = self._groups[record.group_id]
        self._groups[record.group_id] = msgspec.structs.replace(before, size=record.size)
        self.run.asked += record.size - before.size

    @take.register
    def _(self, record: GroupEnded) -> None:
        if record.complete:
            self._delivered.append(record)
        else:
            self._given_up.add(record.group_id)

    @take.register
    def _(self, record: PhaseChanged) -> None:
        name = record.trajectory_id
        if (bar := self._bars.get(name)) is not None and bar.ending == "cut":
            bar.ending = _AFTER_LEAVING[record.new] if record.old == "LEAVING" else "lost"
        if (record.old, record.new) == ("LEAVING", "RUNNING"):
            self._events.append((record.t_s, "migrated"))
        if record.new == "PARKED":
            self._events.append((record.t_s, "deferred"))
        elif record.old == "PARKED" and record.new == "QUEUED":
            self._events.append((record.t_s, "resumed"))

    @take.register
    def _(self, record: AttemptStarted) -> None:
        bar = Bar(record.trajectory_id, record.replica, record.t_s, record.prefix_tokens)
        self._bars[record.trajectory_id] = bar
        self.run.bars.append(bar)

    @take.register
    def _(self, record: AttemptEnded) -> None:
        if (bar := self._bars.get(record.trajectory_id)) is not None:
            bar.end_s, bar.tokens = record.t_s, record.tokens
            bar.ending = _NATURAL.get(record.reason, "cut")

    @take.register
    def _(self, record: TrajectoryEnded) -> None:
        self._ended[record.trajectory_id] = record
        if record.disposition in REPLACED:
            self._events.append((record.t_s, "replaced"))

    @take.register
    def _(self, record: Rewarded) -> None:
        self._rewards[record.trajectory_id] = record.reward

    @take.register
    def _(self, record: QualityMeasured) -> None:
        self.run.qualities.append((record.metric, record.quality, record.evaluated))

    @take.register
    def _(self, record: DecisionTaken) -> None:
        if record.decision.action is Action.PLACE:
            self.run.placed += record.enforced
        elif record.decision.action is not Action.SPECULATE:  # which interrupts nothing
            self._decisions.append(record)

    @take.register
    def _(self, record: Outcome) -> None:
        if record.action != Action.PLACE:
            key = (record.tick, record.trajectory_id, record.action)
            self._outcomes[key] = record.outcome

    def close(self) -> RunSummary:
        """Put together what needs the whole trace."""
        steps = {step.step: step for step in self.run.steps}
        for group in self._groups.values():
            if group.step in steps:
                steps[group.step].asked_groups += 1
        starts = [step.started_s for step in self.run.steps]
        for t_s, name in self._events:
            self._count(starts, t_s, name)
        for t_s, drafted in self._drafted:
            if (step := self._step_at(starts, t_s)) is not None:
                step.drafts += drafted.verified
                step.draft_tokens_accepted += drafted.accepted
        for delivery in self._delivered:
            self._deliver(delivery, self._step_at(starts, delivery.t_s))
        self._balance()
        self._rank_decisions()
        return self.run

    def _step_at(self, starts: list[float], t_s: float) -> StepSummary | None:
        row = bisect_right(starts, t_s) - 1
        return self.run.steps[row] if row >= 0 else None

    def _count(self, starts: list[float], t_s: float, name: str) -> None:
        if (step := self._step_at(starts, t_s)) is not None:
            setattr(step, name, getattr(step, name) + 1)

    def _deliver(self, delivery: GroupEnded, step: StepSummary | None) -> None:
        answers = [self._ended[i] for i in delivery.trajectory_ids if i in self._ended]
        lengths = [answer.generated_tokens for answer in answers]
        rewards = [self._rewards[i] for i in delivery.trajectory_ids if i in self._rewards]
        self.run.lengths += lengths
        if rewards:
            self.run.rewarded_groups += 1
            self.run.degenerate_groups += len(set(rewards)) == 1
        if step is None:
            return
        if self._groups[delivery.group_id].step == step.step:
            self.run.on_time_lengths += lengths
        step.groups += 1
        step.tokens += sum(lengths)
        step.rewards += rewards
        how = Counter(answer.disposition for answer in answers)
        step.finished += how[Disposition.FINISHED]
        step.truncated += how[Disposition.TRUNCATED]
        step.other += how[Disposition.STOPPED] + how[Disposition.FAILED]

    def _balance(self) -> None:
        answers: dict[int, Counter[int]] = defaultdict(Counter)
        for ended in self._ended.values():
            if ended.disposition in ANSWERS:
                answers[ended.group_id][ended.slot] += 1
        for group in self._groups.values():
            counts = [answers[group.group_id][slot] for slot in range(group.size)]
            self.run.doubled += sum(max(count - 1, 0) for count in counts)
            if group.group_id not in self._given_up:
                self.run.lost += counts.count(0)

    def _rank_decisions(self) -> None:
        for taken in self._decisions:
            d = taken.decision
            key = (taken.tick, d.trajectory_id, d.action.value)
            outcome = self._outcomes.get(key, "" if taken.enforced else "only recorded")
            self.run.decisions.append(
                DecisionSummary(
                    t_s=taken.t_s,
                    trajectory_id=d.trajectory_id,
                    action=d.action.value,
                    replica=d.replica,
                    gain_s=d.gain_s,
                    cost_s=d.cost_s,
                    reason=d.reason,
                    outcome=outcome,
                )
            )
        self.run.decisions.sort(key=lambda d: d.cost_s - d.gain_s)


def _named(part: Any) -> str:
    """A part as configured: its name and the options that were given."""
    options = part.get("options") or {}
    return ",".join([str(part.get("name", "?")), *(f"{k}={v}" for k, v in options.items())])
