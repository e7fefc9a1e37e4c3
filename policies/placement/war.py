"""WAR, layer 1: the trainer's default at low load, priorities and windows at high load.

Source: WAR (arXiv 2607.17299).  With N outstanding requests (waiting or in flight):

- N < threshold: verl's default, sticky, else fewest in flight; everything is placed at once.
- else each waiting trajectory gets a priority on each replica, a sum of four terms whose weights
  are so far apart that they order like digits:

      wait      0 until it has waited `protect_after_s`, then decisive: its sandbox would expire
      turns     - expected turns of its group, an average of its finished siblings' that forgets
      cache     + share of prompt tokens found cached on that replica
      in flight - trajectories that the replica has

  and the highest pair is placed while the replica's window has room.  The first two terms belong to
  the trajectory and the last two to the replica, so the best trajectory takes its best replica.

The window is CONCUR's (`_aimd`), bounded by W <= in flight + waiting / replicas and W >= 1.

Misprints and gaps.  The bound as printed, min(max(1, W), in flight + waiting / replicas), is 0
where both terms are: here 1 is the floor of the whole, and the waiting ones' share is rounded up,
or the last few would wait beside free slots.  As printed a hit share *below* its threshold *raises*
the window; here it lowers it, as in CONCUR.  Whether "the hit rate" is the replica's or that of the
trajectory there is not said: here a trajectory that carries tokens counts as a sure hit on the
replica it was last on, and the replica's share holds elsewhere.  A group none of whose samples has
ended counts with the mean of all samples that have.  The paper gives no threshold of N, weights or
waiting time; they are options, the weights reduced to their order.

The wait term is not decoration.  Without it the paper measured 46.9 % less rollout time at batch
64, with 38.9 % fewer turns: groups of many turns starved until their sandboxes expired, and what
was cut looked like speed.  A replay has no sandboxes: look at the longest wait.  Layer 2,
speculation by batch size, is a policy of another kind.  Correctness class: exact.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.contract import PlacementPolicy, Range
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._aimd import WINDOW_RANGES, AimdRule, Windows, room_of
from steersman.policies.placement._homes import Homes

STICKY, FEWEST, PROTECTED, SHORT = range(4)
REASONS = (
    "low load: returns to its replica",
    "low load: fewest in flight",
    "high load: it has waited too long",
    "high load: its group is expected to have the fewest turns of those that wait",
)


@dataclass
class War(AimdRule):
    """The defaults of the window are those of `aimd_concurrency`."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    threshold: float = 32.0
    """Outstanding requests per living replica from which the load is high; the paper tests batches
    of 4 to 64 prompts and leaves it open.  0: always; inf: never."""
    protect_after_s: float = 60.0
    """Seconds of waiting after which a trajectory goes first; the paper leaves it open.  Well
    below the life of a sandbox; inf: never."""
    turns_memory: float = 0.3
    """Weight of a newly finished sibling in its group's expected turns; left open too."""
    cache_weight: float = 100.0
    """Trajectories in flight that a hit share of 1 outweighs: above any replica's batch and the
    cache decides, as in the paper; 0: the fewest in flight."""

    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "threshold": Range(0, 512),
        "protect_after_s": Range(5.0, 600.0, log=True),
        "cache_weight": Range(0, 1000),
        **WINDOW_RANGES,
    }

    _windows: Windows = field(default_factory=Windows, init=False)
    _homes: Homes = field(default_factory=Homes, init=False)
    _turns: dict[int, float] = field(default_factory=dict, init=False)
    """Expected turns by id of open groups."""
    _ended: int = field(default=0, init=False)
    _ended_turns: int = field(default=0, init=False)
    """Of all that ended: how many, and their turns in all."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Learn turns, adjust the windows, then place by the rule of the load."""
        self._learn(observation)
        homes = self._homes.update(observation)
        windows = self._windows.update(observation, self)
        queued, alive = observation.queued, observation.replicas.alive
        living = int(alive.sum())
        if not living or not len(queued):
            return []
        inflight = observation.inflight()
        outstanding = len(queued) + int(inflight[alive].sum())
        if outstanding < self.threshold * living:
            room = np.where(alive, len(queued), 0)
            order, protected = queued, 0
            prefer = np.inf
        else:
            bounded = np.minimum(windows, inflight + np.ceil(len(queued) / living))
            room = room_of(observation, np.maximum(bounded, 1.0))
            order, protected = self._order(observation)
            prefer = self.cache_weight
        return _place(observation, homes, order, protected, room, prefer)

    def _order(self, observation: Observation) -> tuple[Ints, int]:
        """Waiting rows, the highest priority first, and how many of them are protected."""
        t, queued = observation.trajectories, observation.queued
        waited_s = observation.now_s - t.queued_s[queued]
        late = waited_s >= self.protect_after_s
        usual = self._ended_turns / max(self._ended, 1)
        ids = observation.groups.group_id.tolist()
        turns = np.array([self._turns.get(group_id, usual) for group_id in ids])
        # of those that are late, who waits longest; of the others, the group with the fewest turns
        first = np.where(late, -waited_s, turns[t.group_row[queued]])
        order = np.lexsort((queued, -waited_s, first, ~late))
        return np.asarray(queued[order]), int(late.sum())

    def _learn(self, observation: Observation) -> None:
        e, known = observation.ended, self._turns
        whole = ~e.censored
        pairs = zip(e.group_id[whole].tolist(), e.turns[whole].tolist(), strict=True)
        for group_id, turns in pairs:
            before = known.get(group_id, float(turns))
            known[group_id] = before + self.turns_memory * (turns - before)
        self._ended += int(whole.sum())
        self._ended_turns += int(e.turns[whole].sum())
        open_groups = set(observation.groups.group_id.tolist())
        self._turns = {g: turns for g, turns in known.items() if g in open_groups}

    def state_dict(self) -> dict[str, Any]:
        """Windows, homes and expected turns."""
        return {
            "windows": self._windows.state_dict(),
            "homes": self._homes.state_dict(),
            "group_id": list(self._turns),
            "turns": list(self._turns.values()),
            "ended": self._ended,
            "ended_turns": self._ended_turns,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._windows = Windows.from_state(state["windows"])
        self._homes = Homes.from_state(state["homes"])
        self._turns = dict(zip(state["group_id"], state["turns"], strict=True))
        self._ended, self._ended_turns = int(state["ended"]), int(state["ended_turns"])


def _place(
    observation: Observation, homes: Ints, order: Ints, protected: int, room: Ints, prefer: float
) -> list[Decision]:
    """In this order, each to the replica with room that has the highest prefer * hit - in flight.

    `prefer` infinite: the low load's rule, for which only a trajectory's own replica is a hit.
    """
    r, t = observation.replicas, observation.trajectories
    low_load = np.isinf(prefer)
    hit: Floats = np.zeros(len(r)) if low_load else prefer * r.prefix_hit_share
    count, left = observation.inflight().tolist(), room.tolist()
    heap = [(count[i] - hit[i], r.names[i], i) for i in np.flatnonzero(room > 0).tolist()]
    heapq.heapify(heap)
    decisions: list[Decision] = []
    home_of = np.where((t.generated_tokens > 0) | low_load, homes, -1)[order].tolist()
    ids = t.trajectory_id[order].tolist()
    for place, (row, i, home) in enumerate(zip(order.tolist(), ids, home_of, strict=True)):
        best = _best(heap, count, hit, left)
        if best < 0:
            break
        if home >= 0 and left[home] > 0 and count[home] - prefer <= count[best] - hit[best]:
            best = home
        why = PROTECTED if place < protected else SHORT
        if low_load:
            why = STICKY if best == home else FEWEST
        count[best] += 1
        left[best] -= 1
        decisions.append(Decision(i, Action.PLACE, "war", REASONS[why], r.names[best], row=row))
    return decisions


def _best(
    heap: list[tuple[float, str, int]], count: list[int], hit: Floats, left: list[int]
) -> int:
    """The replica with room that costs least, or -1; entries of the heap may be out of date."""
    while heap:
        cost, name, row = heap[0]
        now = count[row] - hit[row]
        if left[row] <= 0:
            heapq.heappop(heap)
        elif cost != now:
            heapq.heapreplace(heap, (now, name, row))
        else:
            return row
    return -1


PLUGIN: type[PlacementPolicy] = War
