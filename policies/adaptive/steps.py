"""What a step took, against what the trainer's default would have been expected to take for it.

While a step runs, what ended is written down.  When the next begins, the realised lengths are put
where the default would have put them (fewest in flight), and the model of `_ends` says when the
last replica would have ended.  log(seconds / that) is comparable between steps of other lengths,
and between arms: the model's error is common to all.  What was put off into a later step counts
where it ended.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.adaptive._ends import Model, Rows, end_s, loads
from steersman.policies.adaptive._filling import by_fewest
from steersman.policies.adaptive.contexts import Contexts

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
    _length: list[Ints] = field(default_factory=list)
    _prompt: list[Ints] = field(default_factory=list)
    _group: list[Ints] = field(default_factory=list)

    def follow(self, observation: Observation, model: Model, contexts: Contexts) -> float | None:
        """Take in an observation; if it is the first of another step, the log cost of the one
        before (NaN: nothing ended in it)."""
        closed = None
        new = observation.trainer.step != self.step
        if not new:
            self._add(observation)
        elif self.step is not None:
            self._add(observation)  # the last ends are seen when the next step begins
            closed = self._log_cost(model, contexts)
        if new:
            self.step, self.started_s = observation.trainer.step, observation.now_s
            self._length, self._prompt, self._group = [], [], []
        idle = (Phase.ENDED, Phase.PARKED)
        works = not np.isin(observation.trajectories.phase, idle).all()
        if new or len(observation.ended) or works:  # a trainer that trains is not rolling out
            self.seen_s = observation.now_s
        return closed

    def _add(self, observation: Observation) -> None:
        e = observation.ended
        if len(e) and sum(map(len, self._length)) < MOST_ENDED:
            self._length.append(e.generated_tokens)
            self._prompt.append(e.prompt_tokens)
            self._group.append(e.group_id)

    def _log_cost(self, model: Model, contexts: Contexts) -> float:
        seconds = self.seen_s - self.started_s
        if not self._length or seconds <= 0 or not model.alive.any():
            return float("nan")
        length = np.concatenate(self._length).astype(np.float64)
        prompt = np.concatenate(self._prompt).astype(np.float64)
        _, group = np.unique(np.concatenate(self._group), return_inverse=True)
        chain = contexts.stretch * length[None, :]
        rows = Rows(length[None, :], chain, prompt, prompt, group, contexts.growth)
        load = loads(rows, np.full(len(length), -1), len(model.alive), int(group.max()) + 1)
        by_fewest(model, rows, load, np.arange(len(length)))
        reference_s = float(end_s(model, load).max())
        return float(np.log(seconds / reference_s)) if reference_s > 0 else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        columns = {"length": self._length, "prompt": self._prompt, "group": self._group}
        return {
            "step": self.step,
            "started_s": self.started_s,
            "seen_s": self.seen_s,
            "context": list(self.context),
            **{n: [part.tolist() for part in parts] for n, parts in columns.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "StepBook":
        """The inverse of `state_dict`."""
        columns = [
            [np.array(part, dtype=np.int64) for part in state[name]]
            for name in ("length", "prompt", "group")
        ]
        plain = (state[name] for name in ("step", "started_s", "seen_s", "context"))
        return cls(*plain, *columns)


def features(observation: Observation, model: Model, final: Floats) -> Floats:
    """(FEATURES,) of the step to come: waves of slots, and fills of memory, that it needs."""
    unfinished = len(observation.queued) + int(observation.inflight().sum())
    slots = float(model.slots[model.alive].sum())
    capacity = float(model.capacity[model.alive].sum())
    waves = np.log(max(unfinished, 1) / max(slots, 1.0))
    fills = np.log(max(float(final.sum()), 1.0) / capacity) if np.isfinite(capacity) else -LOG_SCALE
    return np.clip(np.array([waves, fills]) / LOG_SCALE, -1.0, 1.0)
