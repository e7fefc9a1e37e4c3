"""What a step took, against what the trainer's default would have been expected to take for it.

While a step runs, what ended is written down.  When the next begins, the realised lengths are put
where the default would have put them (fewest in flight), and the model of `_ends` says when the
last replica would have ended.  log(seconds / that) is comparable between steps of other lengths,
and between arms: the model's error is common to all.

What was put off belongs to the step it was admitted in.  There its whole length counts, in the
scenarios that are drawn for its rest, and so do the seconds by which the next step is expected to
end later for it, which that step is spared:

    log((seconds + carried out - carried in) / mean over scenarios of the default's end)

Over a run the carried seconds cancel.  Without them a step that puts off is not credited for what
it spared, and one that does not put off looks fast after one that did: half of its longest answers
are written already.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.adaptive._ends import Model, Rows, end_s, loads
from steersman.policies.adaptive._filling import by_fewest
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook

MOST_ENDED = 100_000
"""Ended trajectories kept for one step; of more, the first: a stream may never end one."""
FEATURES = 2
LOG_SCALE = 3.0
"""Features are logs over this: a factor of 20 is 1."""


@dataclass
class StepBook:
    """The present step."""

    step: int | None = None
    started_s: float = 0.0
    seen_s: float = 0.0
    """When anything was unfinished last."""
    context: list[float] = field(default_factory=lambda: [0.0] * FEATURES)
    """What was known of it at its beginning, see `features`."""
    carried_s: float = 0.0
    """By how much it was expected to end later for what earlier steps had put off."""
    _carried: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The groups of that."""
    _length: list[Ints] = field(default_factory=list)
    _prompt: list[Ints] = field(default_factory=list)
    _group: list[Ints] = field(default_factory=list)

    def follow(
        self, observation: Observation, outlook: Outlook, contexts: Contexts
    ) -> float | None:
        """Take in an observation; if it is the first of another step, the log cost of the one
        before (NaN: nothing ended in it, or nobody can tell what it carried out)."""
        closed = None
        new = observation.trainer.step != self.step
        if not new:
            self._add(observation)
        else:
            late = put_off(observation)
            carried_s = _carried_s(observation, outlook, late)
            if self.step is not None:
                self._add(observation)  # the last ends are seen when the next step begins
                closed = self._log_cost(observation, outlook, contexts, late, carried_s)
            self.step, self.started_s = observation.trainer.step, observation.now_s
            self.carried_s = carried_s
            group = observation.trajectories.group_row[late]
            self._carried = np.unique(observation.groups.group_id[group])
            self._length, self._prompt, self._group = [], [], []
        phase = observation.trajectories.phase
        works = not ((phase == Phase.ENDED) | (phase == Phase.PARKED)).all()
        if new or len(observation.ended) or works:  # a trainer that trains is not rolling out
            self.seen_s = observation.now_s
        return closed

    def _add(self, observation: Observation) -> None:
        e = observation.ended
        own = ~np.isin(e.group_id, self._carried)
        if own.any() and sum(map(len, self._length)) < MOST_ENDED:
            self._length.append(e.generated_tokens[own])
            self._prompt.append(e.prompt_tokens[own])
            self._group.append(e.group_id[own])

    def _log_cost(
        self,
        observation: Observation,
        outlook: Outlook,
        contexts: Contexts,
        late: Ints,
        carried_s: float,
    ) -> float:
        seconds = self.seen_s - self.started_s + carried_s - self.carried_s
        if not self._length or not seconds > 0 or not outlook.model.alive.any():
            return float("nan")
        t, g = observation.trajectories, observation.groups
        late = late[g.step[t.group_row[late]] == self.step]
        ended = np.concatenate(self._length).astype(np.float64)
        whole = t.generated_tokens[late] + outlook.rows.length[:, late]
        scenarios = len(whole) if len(late) else 1
        length = np.concatenate(
            (np.repeat(ended[None, :], scenarios, axis=0), whole[:scenarios]), axis=1
        )
        prompt = np.concatenate((*self._prompt, t.prompt_tokens[late])).astype(np.float64)
        ids = np.concatenate((*self._group, g.group_id[t.group_row[late]]))
        _, group = np.unique(ids, return_inverse=True)
        chain = contexts.stretch * length
        rows = Rows(length, chain, prompt, prompt, group, contexts.growth)
        reference_s = _default_end_s(outlook.model, rows, np.arange(len(ids)), int(group.max()) + 1)
        return float(np.log(seconds / reference_s)) if reference_s > 0 else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        columns = {"length": self._length, "prompt": self._prompt, "group": self._group}
        return {
            "step": self.step,
            "started_s": self.started_s,
            "seen_s": self.seen_s,
            "context": list(self.context),
            "carried_s": self.carried_s if np.isfinite(self.carried_s) else None,
            "carried": self._carried.tolist(),
            **{n: [part.tolist() for part in parts] for n, parts in columns.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "StepBook":
        """The inverse of `state_dict`."""
        book = cls(*(state[name] for name in ("step", "started_s", "seen_s", "context")))
        known = state["carried_s"] is not None
        book.carried_s = float(state["carried_s"]) if known else float("nan")
        book._carried = np.array(state["carried"], dtype=np.int64)
        for name in ("length", "prompt", "group"):
            parts = [np.array(part, dtype=np.int64) for part in state[name]]
            setattr(book, f"_{name}", parts)
        return book


def put_off(observation: Observation) -> Ints:
    """Rows of what is unfinished and belongs to an earlier step by a decision."""
    t, g = observation.trajectories, observation.groups
    late = (t.phase != Phase.ENDED) & (t.deferred > 0)
    late &= g.step[t.group_row] < observation.trainer.step
    return np.flatnonzero(late)


def _carried_s(observation: Observation, outlook: Outlook, late: Ints) -> float:
    """Seconds by which a step that begins with `late` is expected to end later for it; NaN where it
    brings nothing of its own, as when a trainer only waits for the rest."""
    if not len(late) or not outlook.model.alive.any():
        return 0.0
    unfinished = np.flatnonzero(observation.trajectories.phase != Phase.ENDED)
    own = np.setdiff1d(unfinished, late)
    if not len(own):
        return float("nan")
    groups = len(observation.groups)
    both_s = _default_end_s(outlook.model, outlook.rows, np.concatenate((late, own)), groups)
    return both_s - _default_end_s(outlook.model, outlook.rows, own, groups)


def _default_end_s(model: Model, rows: Rows, order: Ints, groups: int) -> float:
    """Mean over scenarios of when the default would have done `order`."""
    load = loads(rows, np.full(rows.length.shape[1], -1), len(model.alive), groups)
    by_fewest(model, rows, load, order)
    return float(end_s(model, load).max(axis=1).mean())


def features(observation: Observation, model: Model, final: Floats) -> Floats:
    """(FEATURES,) of the step to come: waves of slots, and fills of memory, that it needs."""
    unfinished = len(observation.queued) + int(observation.inflight().sum())
    slots = float(model.slots[model.alive].sum())
    capacity = float(model.capacity[model.alive].sum())
    waves = np.log(max(unfinished, 1) / max(slots, 1.0))
    fills = np.log(max(float(final.sum()), 1.0) / capacity) if np.isfinite(capacity) else -LOG_SCALE
    return np.clip(np.array([waves, fills]) / LOG_SCALE, -1.0, 1.0)
