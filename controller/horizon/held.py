"""How a plan that holds back gives out what waits, in many worlds at once.

A replica is given the next in the plan's order whenever it has a slot free, or fewer than `BACKLOG`
behind its slots, and what it was given, at the length now expected of it, leaves room for this one
within the plan's share of its memory.  Nobody is told the drawn lengths; but as siblings end, or go
on, they tell of one another, and order and promises change as new forecasts would have it
(`learning`).  Without that, holding back would look worse than it is: first one of each group, then
learn, then the longest.

Time passes in steps in which a replica sees about one end, and the backlog covers what ends
meanwhile: a live controller does the same, and one event after another would cost fifty times as
much.
"""

from collections.abc import Sequence

import numpy as np

from steersman.controller.horizon._compiled import refill
from steersman.controller.horizon.learning import Posterior, Prior
from steersman.controller.horizon.worlds import LEAST_FIXED_S, Worlds
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Bools, Ints, Observation
from steersman.policies.adaptive.order import ranked, scores, turns
from steersman.policies.adaptive.plans import Order, Plan

BACKLOG = 2
"""Sent to a replica beyond its slots, so that an end is followed by a start without a decision."""
ENDS_PER_LOOK = 1.0
"""Of a replica, aimed at; below `BACKLOG`, so that a slot is rarely empty."""
LONGEST_LOOK = 0.01
"""Of the time so far: where nothing has ended yet, the first ends are not to be missed."""
MOST_CHANGE = 2.0
"""Of the time between two looks, by one look's ends: they are few and scatter."""
REVISIONS = 32
"""Of order and promises, or twice as many, at about equal numbers of starts and ends."""


class Held:
    """See the module."""

    def __init__(
        self,
        observation: Observation,
        forecast: Forecast,
        rows: Ints,
        plans: Sequence[Plan],
        count: int,
    ) -> None:
        """`rows` (n,) take part in the worlds, `count` of which are each plan's."""
        held = [number for number, plan in enumerate(plans) if plan.hold]
        self._plans = [plans[number] for number in held]
        self._count = count
        self._worlds = np.concatenate([n * count + np.arange(count) for n in held])
        self._row_of = np.full(len(plans) * count, -1)
        self._row_of[self._worlds] = np.arange(len(self._worlds))
        fixed_s = max(float(forecast.throughput.fixed_s.max()), LEAST_FIXED_S)
        slots = max(int(observation.replicas.max_num_seqs.max()), 1)
        mean = max(float(forecast.length.mean_remaining_tokens[rows].mean()), 1.0)
        self._look_s = fixed_s * mean / slots  # too short, as `run` will find out
        self._set_order(observation, forecast, rows)
        self._set_room(observation, forecast, rows)

    def run(self, worlds: Worlds) -> None:
        """Until nothing waits any more."""
        changes, ended, everything = 0, 0, self._order.size
        while True:
            self._send(worlds)
            waiting = self._coming < self._order.shape[1]
            if not waiting.any():
                return
            world, position, replica = worlds.advance(worlds.now_s + self._look_s)
            row = self._row_of[world]
            mine = row >= 0
            row, position, replica = row[mine], position[mine], replica[mine]
            np.add.at(self._room, (row, replica), 1.0)
            np.subtract.at(self._promised, (row, replica), self._context[row, position])
            ends = waiting[row].sum() / (waiting.sum() * len(self._slots))
            change = max(ENDS_PER_LOOK / max(ends, ENDS_PER_LOOK / MOST_CHANGE), 1.0 / MOST_CHANGE)
            longest_s = max(self._look_s, LONGEST_LOOK * worlds.now_s)
            self._look_s = min(self._look_s * change, longest_s)
            ended += len(row)
            if self._coming.sum() + ended - changes > everything / REVISIONS:
                changes = self._coming.sum() + ended
                self._revise(worlds)

    def _set_order(self, observation: Observation, forecast: Forecast, rows: Ints) -> None:
        queued = observation.queued
        self._waiting = np.searchsorted(rows, queued)
        self._prior, self._turn = Prior.of(observation, forecast, rows), turns(observation)
        self._score = [scores(plan.order, forecast, queued) for plan in self._plans]
        self._order = np.tile(self._waiting, (len(self._worlds), 1))
        self._coming = np.zeros(len(self._worlds), dtype=np.int64)
        for number, plan in enumerate(self._plans):
            if plan.order is not Order.ARRIVAL:
                first = self._waiting[ranked(plan.order, self._score[number], self._turn)]
                self._order[self._part(number)] = first

    def _set_room(self, observation: Observation, forecast: Forecast, rows: Ints) -> None:
        t, r = observation.trajectories, observation.replicas
        living = np.flatnonzero(r.alive)
        self._before = (t.prompt_tokens + t.generated_tokens)[rows].astype(np.float64)
        shape = (len(self._worlds), 1)
        self._context = np.tile(self._before + self._prior.expected, shape)
        capacity = np.where(r.kv_capacity_tokens > 0, r.kv_capacity_tokens, np.inf)[living]
        shares = np.repeat([plan.promise for plan in self._plans], self._count)
        self._memory = shares[:, None] * capacity
        self._slots = np.maximum(r.max_num_seqs[living], 1).astype(np.float64)
        place = np.full(len(r) + 1, -1)
        place[living] = np.arange(len(living))
        at = place[observation.destination_row[rows]]  # NO_ROW is the last
        self._at = np.tile(np.where(t.phase[rows] == Phase.QUEUED, -1, at), shape)
        free = self._slots + BACKLOG - observation.inflight()[living]
        self._room = np.tile(free, shape)
        self._promise(self._at >= 0)
        self._sent = np.empty((3, self._order.size), dtype=np.int64)

    def _part(self, number: int) -> slice:
        """The worlds of one of the plans."""
        return slice(number * self._count, (number + 1) * self._count)

    def _send(self, worlds: Worlds) -> None:
        count = refill(
            self._order,
            self._coming,
            self._context,
            self._memory,
            self._slots,
            self._room,
            self._promised,
            *self._sent,
        )
        world, position, replica = self._sent[:, :count]
        self._at[world, position] = replica
        worlds.send(self._worlds[world], position, replica)

    def _promise(self, there: Bools) -> None:
        """What was given to each replica, and has not ended: `there` (w, n)."""
        r = len(self._slots)
        cell = (self._at + r * np.arange(len(self._at))[:, None])[there]
        held = np.bincount(cell, weights=self._context[there], minlength=len(self._at) * r)
        self._promised = held.reshape(len(self._at), r)

    def _revise(self, worlds: Worlds) -> None:
        """As what has been written since tells; who was sent stays in front."""
        written, ended = worlds.written(self._worlds), worlds.ends_s[self._worlds] > 0
        begun = self._at >= 0
        now = Posterior(self._prior, written, begun, ended)
        self._context = self._before + now.expected()
        self._promise(begun & ~ended)
        for number, plan in enumerate(self._plans):
            if plan.order is Order.ARRIVAL:
                continue
            part = self._part(number)
            score = self._score[number] + now.news(plan.order, self._waiting, part)
            score[begun[part][:, self._waiting]] = np.inf
            self._order[part] = self._waiting[ranked(plan.order, score, self._turn)]
