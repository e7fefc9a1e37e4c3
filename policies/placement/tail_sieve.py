"""TailSieve (arXiv 2608.22788): groups known to finish late run in a small pool of their own.

State (q, m): the q groups of a step that are likeliest to be late go to the first m living replicas
by name, the tail pool, all others to the rest; (0, 0) is the uniform fleet.  Within a pool, the
fewest in flight.  Pools are this policy's own, not the fleet's labels.  Both numbers change only
between steps.

*Who is late.*  Each prompt keeps its place in the finishing order of the step that visited it last,
as a share 0..1; those in the last `tail_share` are candidates, the latest first.  The paper asks
for delta more groups than it needs, cuts the last ones off and keeps their prompts; here nothing is
cut, and the same signal is read off complete steps.  The order is that of the groups' longest
trajectories, which is the finishing order at one speed: a group in the tail pool runs faster, and
would by the clock lose its place to one in the bulk.  A prompt never seen is bulk, so in its first
epoch a run is uniform, and where no prompt comes again it always is.

*Cost model.*  A replica whose batch runs to its end takes sum over j of L_j (tau(j) - tau(j - 1));
for the affine tau of `forecast.throughput` that is M * Lmax + c * sum(L), the context's part
counted.  A pool shares its sum evenly; T(q, m) is the larger of the two pools' times, as a share of
the uniform fleet's, on the lengths of the last steps with the order that was expected of them then,
so that wrong expectations count.  The paper looks at one step; with heavy tails one step's best
split is far from the next one's, so here it is the mean over `window` steps.

*Inner loop* (m > 0).  Rates r = groups / seconds of each pool as measured, smoothed; the target
q* = N r_tail / (r_bulk + r_tail) makes both end together.  q follows with a damped momentum, by a
bounded step, if the model predicts enough gain; it then holds, one step after an increase and two
after a decrease.

*Outer loop*, when the inner has settled: the model is searched over m within 2 of the present one
and over all q, the uniform fleet included; m moves by one towards the best if that gains enough.
The paper's elasticities (grow m while gamma_tail / (alpha lambda_tail) exceeds
gamma_bulk / ((1 - alpha) lambda_bulk)) are the slope of what the search compares, so they are not
computed, and its feasibility test G_tail(m) >= D_bulk(m) is the model's T_tail <= T_bulk.

Measured in simulation, where prompts explain 65 % of the variance of log-lengths (8 replicas, 64
groups): 0.89 to 0.98 of the default's time on a weak tail (P90 / P50 = 1.5) once the split has
settled; on a strong one (6) the model mostly finds nothing to gain and the fleet stays uniform.

Not here: the depth of speculation per pool (deeper in the tail), and the cut itself.  Barrier steps
only: a stream has no last group to wait for, and gets the uniform rule.  All replicas are taken as
equally fast, and the KV cache as large enough.  Correctness class: exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Decision
from steersman.policies.placement._pools import FleetSpeed, by_name, fill
from steersman.policies.placement._split_model import SplitModel
from steersman.policies.placement._step_book import (
    UNASSIGNED,
    Groups,
    PromptMemory,
    StepBook,
    find,
)

NAME = "tail_sieve"
BULK, TAIL = 0, 1
REASONS = ("bulk pool; fewest in flight", "finished late at its last visit; tail pool")
RADIUS = 2
"""Replicas by which the searched pool sizes differ from the present one (the paper's)."""
HOLD_AFTER_INCREASE, HOLD_AFTER_DECREASE = 1, 2
"""Steps (the paper's)."""


@dataclass
class TailSieve:
    """The paper leaves the constants of its inner loop open; these were tried in simulation."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    tail_share: float = 0.25
    """Share of the finishing order whose prompts are candidates for the tail pool.  The paper: 5,
    10 and 25 % hold 85, 93 and 95 % of the groups that are long indeed."""
    smoothing: float = 0.5
    """Weight of the newest step in a pool's rate; 1: no memory."""
    momentum: float = 0.3
    """Share of the last change of q that is made again; 0: none."""
    max_change: float = 0.1
    """Largest change of q at once, as a share of the step's groups; at least one group."""
    gain: float = 0.03
    """Share of the uniform step's time that a change must save by the model; large: never."""
    window: int = 4
    """Steps that the model is the mean of; 1: the last one alone."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "tail_share": Range(0.05, 0.5),
        "smoothing": Range(0.1, 1.0),
        # twice the distance and more only oscillates
        "momentum": Range(0.0, 0.9),
        "max_change": Range(0.02, 0.3, log=True),
        # the model is not good to a percent
        "gain": Range(0.01, 0.2, log=True),
        "window": Range(1, 16, integer=True),
    }

    _book: StepBook = field(default_factory=StepBook, init=False)
    _memory: PromptMemory = field(default_factory=PromptMemory, init=False)
    _q: int = field(default=0, init=False)
    _m: int = field(default=0, init=False)
    _velocity: float = field(default=0.0, init=False)
    _rates: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    """Groups per second of bulk and tail, smoothed; 0: not measured with this m."""
    _recent: list[Groups] = field(default_factory=list, init=False)
    """Groups of the last steps."""
    _hold: int = field(default=0, init=False)
    """Steps to wait before the next change."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Place everything that waits; learn when a step is over."""
        replicas = by_name(observation)
        closed = self._book.follow(observation)
        if closed is not None and len(closed):
            if len(replicas) and observation.trainer.objective is Objective.BARRIER:
                self._adapt(closed, FleetSpeed.of(observation, forecast), len(replicas))
            self._remember(closed)
        queued = observation.queued
        if not len(queued) or not len(replicas):
            return []
        m = min(self._m, len(replicas) - 1)
        if observation.trainer.objective is not Objective.BARRIER:
            m = 0
        pool = self._pools(observation, queued) if m else np.full(len(queued), BULK)
        decisions: list[Decision] = []
        for number, its in ((TAIL, replicas[:m]), (BULK, replicas[m:])):
            rows = queued[pool == number]
            if len(rows):
                decisions += fill(observation, rows, its, NAME, REASONS[number])
        return decisions

    def _pools(self, observation: Observation, queued: Ints) -> Ints:
        """(k,) pool of each queued trajectory; groups not routed yet are routed."""
        g = self._book.groups
        at = find(g.group_id, observation.groups.group_id)[
            observation.trajectories.group_row[queued]
        ]
        fresh = np.unique(at[g.pool[at] == UNASSIGNED])
        g.expected[fresh] = self._memory.get(g.prompt_key[fresh])
        g.pool[fresh] = BULK
        room = max(self._q - int((g.pool == TAIL).sum()), 0)
        late = fresh[g.expected[fresh] >= 1 - self.tail_share]
        latest = late[np.lexsort((g.group_id[late], -g.expected[late]))]
        g.pool[latest[:room]] = TAIL
        return np.asarray(g.pool[at])

    def _remember(self, closed: Groups) -> None:
        order = np.lexsort((closed.group_id, closed.longest))
        place_in = np.empty(len(closed))
        place_in[order] = (np.arange(len(closed)) + 0.5) / len(closed)
        self._memory.put(closed.prompt_key, place_in)

    def _adapt(self, closed: Groups, speed: FleetSpeed, replicas: int) -> None:
        """One decision of the two loops."""
        unrouted = closed.pool == UNASSIGNED
        closed.expected[unrouted] = self._memory.get(closed.prompt_key[unrouted])
        self._recent = [*self._recent, closed][-self.window :]
        model = SplitModel(self._recent, speed, replicas, self.tail_share)
        self._m = min(self._m, replicas - 1)
        self._measure(closed)
        if self._hold > 0:
            self._hold -= 1
        elif not self._change_q(model):
            self._change_m(model)

    def _measure(self, closed: Groups) -> None:
        tail = closed.pool == TAIL
        if not self._m or not tail.any() or tail.all():
            return
        new = [is_in.sum() / max(closed.end_s[is_in].max(), 1e-9) for is_in in (~tail, tail)]
        self._rates = tuple(  # type: ignore[assignment]
            float(n if old == 0 else old + self.smoothing * (n - old))
            for old, n in zip(self._rates, new, strict=True)
        )

    def _change_q(self, model: SplitModel) -> bool:
        """The inner loop; False: it has settled."""
        bulk, tail = self._rates
        if not self._m or not tail:
            return False
        target = model.groups * tail / (bulk + tail)
        self._velocity = self.momentum * self._velocity + (1 - self.momentum) * (target - self._q)
        most = max(int(self.max_change * model.groups), 1)
        change = int(np.clip(round(self._velocity), -most, most))
        q = int(np.clip(self._q + change, 1, model.most))
        share = model.share(self._m)
        if q == self._q or share[q] > share[min(self._q, model.most)] - self.gain:
            return False
        self._hold = HOLD_AFTER_INCREASE if q > self._q else HOLD_AFTER_DECREASE
        self._q = q
        return True

    def _change_m(self, model: SplitModel) -> None:
        """The outer loop."""
        low, high = max(self._m - RADIUS, 1), min(self._m + RADIUS, model.replicas - 1)
        best = {m: model.best(m) for m in range(low, high + 1)} if model.most else {}
        best[0] = 0, 1.0
        now = model.share(self._m)[min(self._q, model.most)] if self._m else 1.0
        aim = min(best, key=lambda m: (best[m][1], m))
        if aim == self._m or best[aim][1] > now - self.gain:
            return
        self._m += int(np.sign(aim - self._m))
        self._q = model.best(self._m)[0] if self._m and model.most else 0
        self._rates, self._velocity, self._hold = (0.0, 0.0), 0.0, HOLD_AFTER_INCREASE

    def state_dict(self) -> dict[str, Any]:
        """The split, its loops, the prompts and the present step."""
        return {
            "split": [self._q, self._m],
            "velocity": self._velocity,
            "rates": list(self._rates),
            "hold": self._hold,
            "recent": [groups.state_dict() for groups in self._recent],
            "memory": self._memory.state_dict(),
            "book": self._book.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all of it."""
        self._q, self._m = (int(n) for n in state["split"])
        self._velocity, self._hold = float(state["velocity"]), int(state["hold"])
        self._rates = float(state["rates"][0]), float(state["rates"][1])
        self._recent = [Groups.from_state(groups) for groups in state["recent"]]
        self._memory = PromptMemory.from_state(state["memory"])
        self._book = StepBook.from_state(state["book"])


PLUGIN: type[PlacementPolicy] = TailSieve
