"""A placement policy that follows one plan, and says what a look ahead told it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.controller.horizon._compiled import refill
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Advice, Observation
from steersman.policies.adaptive.order import ordered
from steersman.policies.adaptive.plans import DEFAULT, Plan
from steersman.policies.contract import Stateless
from steersman.policies.decision import Decision, place
from steersman.policies.placement._fewest import fewest_first

BACKLOG = 2


@dataclass
class Follows(Stateless):
    """Not told of anything unless `plans` are given."""

    plan: Plan = DEFAULT
    plans: tuple[Plan, ...] = ()
    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    seen: list[tuple[float, Advice]] = field(default_factory=list)
    """What it was told, and when."""
    waited: list[tuple[float, int]] = field(default_factory=list)
    """Times it was asked at, and how many waited."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        self.waited.append((observation.now_s, len(observation.queued)))
        if observation.advice is not None:
            self.seen.append((observation.now_s, observation.advice))
        if not len(observation.queued):
            return []
        chosen = self._held if self.plan.hold else self._at_once
        return [
            place(observation, int(row), int(to), "follows", self.plan.name)
            for row, to in chosen(observation, forecast)
        ]

    def _at_once(self, observation: Observation, forecast: Forecast) -> list[tuple[int, int]]:
        rows = ordered(self.plan.order, observation, forecast)
        living = np.flatnonzero(observation.replicas.alive)
        to = fewest_first(observation.inflight(), living, len(rows), lambda row, n: float(row))
        return list(zip(rows.tolist(), to, strict=True))

    def _held(self, observation: Observation, forecast: Forecast) -> Any:
        t, r = observation.trajectories, observation.replicas
        order = ordered(self.plan.order, observation, forecast)
        context = t.prompt_tokens + t.generated_tokens + forecast.length.mean_remaining_tokens
        at = observation.destination_row
        on = at >= 0
        promised = np.bincount(at[on], weights=context[on], minlength=len(r))
        memory = np.where(
            r.kv_capacity_tokens > 0, self.plan.promise * r.kv_capacity_tokens, np.inf
        )
        room = np.where(r.alive, r.max_num_seqs + BACKLOG - observation.inflight(), 0.0)
        sent = np.empty((3, len(order)), dtype=np.int64)
        count = refill(
            order[None],
            np.zeros(1, dtype=np.int64),
            context[None],
            memory[None],
            r.max_num_seqs.astype(np.float64),
            room[None],
            promised[None],
            *sent,
        )
        return sent[1:, :count].T
