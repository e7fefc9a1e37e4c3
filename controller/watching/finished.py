"""Looks at a run that is over, by its trace.

What ran where is known exactly, from the attempts; their tokens are spread evenly over their time.
Replicas' reports tell the rest.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np

from steersman.controller.trace import records
from steersman.controller.watching.load import Load
from steersman.controller.watching.observed import Observed, observed_of
from steersman.controller.watching.record_counts import RecordCounts
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

MOMENTS = 4000
"""Of a run, evenly spaced: what is shorter than a moment is not seen."""
Attempt = tuple[float, float, int]
"""Begin, end and tokens."""


def observe_trace(trace: Iterable[records.Record]) -> Observed:
    """What a trace tells.  Raises `InvalidInputError` if nothing ran in it."""
    reading = _Reading()
    for record in trace:
        reading.take(record)
    return reading.observed()


class _Reading:
    """What is known so far."""

    def __init__(self) -> None:
        self._counts = RecordCounts()
        self._names: list[str] = []
        self._policy = self._mode = ""
        self._open: dict[str, float] = {}
        self._attempts: dict[str, list[Attempt]] = defaultdict(list)
        self._kv: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._preemptions: dict[str, list[int]] = defaultdict(list)
        self._last_s = 0.0

    def take(self, record: records.Record) -> None:
        """One record."""
        self._counts.take(record)
        self._last_s = max(self._last_s, record.t_s)
        match record:
            case records.RunStarted():
                self._names = [info.name for info in record.replicas]
                self._policy = str(record.config.get("placement", {}).get("name", ""))
            case records.ControllerState():
                self._mode = record.state
            case records.AttemptStarted():
                self._open[record.attempt_id] = record.t_s
            case records.AttemptEnded():
                begun_s = self._open.pop(record.attempt_id, record.t_s)
                self._attempts[record.replica].append((begun_s, record.t_s, record.tokens))
            case records.ReplicaReport():
                self._kv[record.replica].append((record.t_s, record.stats.kv_cache_usage))
                self._preemptions[record.replica].append(record.stats.preemptions)

    def observed(self) -> Observed:
        """All that it tells."""
        names = self._names + sorted(self._attempts.keys() - set(self._names))
        if not any(self._attempts.values()):
            raise InvalidInputError("nothing ran in the trace: no attempt has ended in it")
        t_s = np.linspace(0.0, self._last_s, MOMENTS)
        running, tokens = zip(*(_of(self._attempts[name], t_s) for name in names), strict=True)
        load = Load(
            t_s=t_s,
            running=np.stack(running, axis=1),
            waiting=np.zeros((len(t_s), len(names))),
            kv=np.stack([_held(self._kv[name], t_s) for name in names], axis=1),
            tokens=np.stack(tokens, axis=1),
        )
        preemptions = [_grown(self._preemptions[name]) for name in names]
        rewards = self._counts.rewards
        return msgspec.structs.replace(
            observed_of("trace", names, load, preemptions),
            degenerate_share=rewards.degenerate_share,
            groups_rewarded=rewards.degenerate + rewards.informative,
            decider=f"{self._policy or 'the controller'} ({self._mode or 'mode unknown'})",
            decisions=self._counts.decision_sums(),
        )


def _of(attempts: list[Attempt], t_s: Floats) -> tuple[Floats, Floats]:
    """Attempts under way, and tokens written, at each of the times."""
    if not attempts:
        return np.zeros(len(t_s)), np.zeros(len(t_s))
    begin, end, tokens = np.array(attempts, dtype=np.float64).T
    there = np.searchsorted(np.sort(begin), t_s, side="right") - np.searchsorted(
        np.sort(end), t_s, side="right"
    )
    per_s = tokens / np.maximum(end - begin, 1e-9)
    time_s = np.concatenate(([0.0], begin, end))
    change = np.concatenate(([0.0], per_s, -per_s))
    order = np.argsort(time_s, kind="stable")
    knots, rate = time_s[order], np.cumsum(change[order])
    area = np.concatenate(([0.0], np.cumsum(rate[:-1] * np.diff(knots))))
    return there.astype(np.float64), np.maximum.accumulate(np.interp(t_s, knots, area))


def _held(reports: list[tuple[float, float]], t_s: Floats) -> Floats:
    """The last report at each of the times; NaN before the first."""
    if not reports or not any(value for _, value in reports):
        return np.full(len(t_s), np.nan)  # an engine that always says 0 does not say it
    times, values = np.array(reports).T
    at = np.searchsorted(times, t_s, side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def _grown(counter: list[int]) -> int:
    """Since the first report; what begins anew begins from nothing."""
    return sum(max(b - a, 0) for a, b in pairwise(counter))
