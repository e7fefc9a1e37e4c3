"""From the records of a trace to the story of its decisions, in one pass.

A decision's replica is where its trajectory was by the phases recorded before it; its alternatives
are those of its tick; its outcome is the record that follows; its fate is known at the end.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatchmethod
from itertools import count

from steersman.controller.explain.story import (
    Counted,
    Explained,
    Fate,
    Selection,
    Story,
    Weighed,
    patterns,
)
from steersman.controller.trace.records import (
    AlternativesWeighed,
    ControllerState,
    DecisionDropped,
    DecisionTaken,
    Outcome,
    PhaseChanged,
    Record,
    RunStarted,
    StackChosen,
    StepStarted,
    TrajectoryEnded,
    TrajectoryQueued,
)
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.contract import OutcomeKind
from steersman.policies.decision import Action, Decision


def explain(records: Iterable[Record], selection: Selection, limit: int) -> Story:
    """The story of the selected decisions, at most `limit` of them in full.

    With a selection these are the first; without one, those with the largest predicted gains.

    Raises
    ------
    InvalidInputError
        For a trajectory, or a step, that the trace does not have.
    """
    reading = _Reading(selection, limit)
    for record in records:
        reading.take(record)
    return reading.close()


class _Reading:
    """What is known so far."""

    def __init__(self, selection: Selection, limit: int) -> None:
        self._selection, self._limit = selection, limit
        self._story = Story()
        self._pattern = patterns(())
        self._mode, self._step, self._stack = "", -1, ""
        self._steps: list[int] = []
        self._where: dict[int, str] = {}
        """Replica by trajectory, of all that were queued; empty: none."""
        self._fates: dict[int, Fate] = {}
        self._weighed = AlternativesWeighed(t_s=0.0, tick=-1, seconds={})
        self._counted_tick = -1
        self._totals: dict[str, Weighed] = {}
        self._counts: dict[tuple[str, str, str], Counted] = {}
        self._dropped: Counter[str] = Counter()
        self._awaited: dict[tuple[int, int, str], tuple[Explained, Counted]] = {}
        self._kept: list[tuple[float, int, Explained]] = []
        """A heap: of those kept, the one with the smallest gain comes first."""
        self._number = count()

    @singledispatchmethod
    def take(self, record: Record) -> None:
        """Records of other kinds tell nothing about decisions."""

    @take.register
    def _(self, record: RunStarted) -> None:
        self._pattern = patterns(info.name for info in record.replicas)

    @take.register
    def _(self, record: ControllerState) -> None:
        self._mode = record.state

    @take.register
    def _(self, record: StepStarted) -> None:
        self._step = record.step
        self._steps.append(record.step)

    @take.register
    def _(self, record: TrajectoryQueued) -> None:
        self._where[record.trajectory_id] = ""
        if (fate := self._fates.get(record.replaces)) is not None:
            self._fates[record.replaces] = replace(fate, replaced_by=record.trajectory_id)

    @take.register
    def _(self, record: PhaseChanged) -> None:
        self._where[record.trajectory_id] = record.replica

    @take.register
    def _(self, record: TrajectoryEnded) -> None:
        self._fates[record.trajectory_id] = Fate(
            record.t_s,
            record.disposition,
            record.generated_tokens,
            record.correctness,
            record.weight,
        )

    @take.register
    def _(self, record: StackChosen) -> None:
        choice = record.choice
        self._stack = f"{choice.stack}, with probability {choice.propensity:.2g}: {choice.reason}"

    @take.register
    def _(self, record: AlternativesWeighed) -> None:
        self._weighed = record

    @take.register
    def _(self, record: DecisionTaken) -> None:
        told = self._told(record.t_s, record.tick, record.decision)
        if told is None:
            return
        told.mode, told.enforced, told.stack = record.mode, record.enforced, self._stack
        if record.enforced == (record.mode == "enforcing"):
            self._attach_alternatives(told)  # else somebody else took it, who weighed nothing
        counted = self._count_of(told)
        counted.taken += 1
        counted.enforced += told.enforced
        counted.gain_s += told.gain_s
        counted.cost_s += told.cost_s
        if told.enforced:
            self._awaited[told.tick, told.trajectory_id, told.action] = (told, counted)
        self._keep(told)

    @take.register
    def _(self, record: DecisionDropped) -> None:
        told = self._told(record.t_s, record.tick, record.decision)
        if told is None:
            return
        told.dropped = record.why
        self._attach_alternatives(told)
        self._count_of(told).dropped += 1
        self._dropped[self._pattern(record.why)] += 1
        self._keep(told)

    @take.register
    def _(self, record: Outcome) -> None:
        key = (record.tick, record.trajectory_id, record.action)
        told, counted = self._awaited.pop(key, (None, None))
        if told is not None and counted is not None:
            told.outcome = record.outcome
            counted.applied += record.outcome == OutcomeKind.APPLIED

    def close(self) -> Story:
        """The story, in the order of time."""
        self._check_selection()
        story = self._story
        kept = sorted(self._kept, key=lambda entry: entry[1])
        if not self._selection:
            kept = sorted(self._kept, key=lambda entry: (-entry[0], entry[1]))
        story.decisions = [told for _, _, told in kept]
        for told in story.decisions:
            told.fate = self._fates.get(told.trajectory_id)
        order = {action.value: place for place, action in enumerate(Action)}
        story.counts = sorted(
            self._counts.values(), key=lambda c: (order[c.action], -c.taken - c.dropped, c.reason)
        )
        story.dropped = dict(self._dropped.most_common())
        story.weighed = sorted(self._totals.values(), key=lambda w: (-w.least, w.name))
        return story

    def _told(self, t_s: float, tick: int, decision: Decision) -> Explained | None:
        """The decision with what is known of it now, if it is selected."""
        chosen = self._selection
        wanted = (chosen.trajectory, chosen.tick, chosen.step, chosen.action)
        found = (decision.trajectory_id, tick, self._step, decision.action.value)
        if any(w is not None and w != f for w, f in zip(wanted, found, strict=True)):
            return None
        self._story.matching += 1
        return Explained(
            t_s=t_s,
            tick=tick,
            step=self._step,
            trajectory_id=decision.trajectory_id,
            action=decision.action.value,
            source=self._where.get(decision.trajectory_id, ""),
            target=decision.replica,
            policy=decision.policy,
            reason=decision.reason,
            gain_s=decision.gain_s,
            cost_s=decision.cost_s,
            propensity=decision.propensity,
            mode=self._mode,
            enforced=False,
        )

    def _attach_alternatives(self, told: Explained) -> None:
        if self._weighed.tick != told.tick:
            return
        told.alternatives = self._weighed.seconds
        if self._counted_tick != told.tick:
            self._counted_tick = told.tick
            self._count_alternatives(told.alternatives)

    def _count_alternatives(self, seconds: dict[str, float | None]) -> None:
        known = {name: value for name, value in seconds.items() if value is not None}
        least = min(known.values(), default=0.0)
        for name, value in seconds.items():
            total = self._totals.setdefault(name, Weighed(name))
            total.ticks += 1
            if value is not None:
                total.least += value == least
                total.seconds += value
                total.ending += 1

    def _count_of(self, told: Explained) -> Counted:
        key = (told.action, told.policy, self._pattern(told.reason))
        return self._counts.setdefault(key, Counted(*key))

    def _keep(self, told: Explained) -> None:
        if self._selection:
            if len(self._kept) < self._limit:
                self._kept.append((0.0, next(self._number), told))
        elif told.gain_s > 0:
            # of equal gains the earlier one is kept
            heapq.heappush(self._kept, (told.gain_s, -next(self._number), told))
            if len(self._kept) > self._limit:
                heapq.heappop(self._kept)

    def _check_selection(self) -> None:
        chosen = self._selection
        if chosen.trajectory is not None and chosen.trajectory not in self._where:
            known = f"0 to {max(self._where)}" if self._where else "none"
            raise InvalidInputError(f"no trajectory {chosen.trajectory}; the trace has {known}")
        if chosen.step is not None and chosen.step not in self._steps:
            known = f"{min(self._steps)} to {max(self._steps)}" if self._steps else "none"
            raise InvalidInputError(f"no step {chosen.step}; the trace has {known}")
