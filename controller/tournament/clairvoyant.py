"""How fast one synchronous step could be for somebody who knows every length: a reference.

Planning is in the affine model: a replica that runs to its end takes

    T_r = M * steps_r + sum(c * L + k * K),   K = p * L + L^2 / 2,
    steps_r = max(Lmax_r, sum(L) / slots, sum(K) / capacity)

for M, c, k of the profile's line, prompts of p tokens, a batch of at most `slots` and a KV cache of
`capacity` tokens; K is a trajectory's context summed over its tokens.

- `longest_first`: list scheduling, longest first, each where the end is then soonest (Graham 1969);
- `isolation`: the sorted lengths cut into one contiguous run per replica, so that the last to end
  ends soonest.  Long ones come to few, as a replica pays M for its longest only;
- `optimum_s`: the best assignment of few trajectories (a dynamic programme with Pareto pruning, as
  arXiv 2608.22788 has for its oracle); `relaxed_s`: what no assignment of any number is below.

Besides, a single queue: each replica takes the longest that waits once it has room for the whole
context that this one will end with, or for a part of it.

The plan is then run in the simulator's core, with prefills, prefix caches, memory, turns and all,
which makes it comparable to a replay's makespan.  It is a reference, not a bound: nobody knows
whether something else would be faster still; `bounds` has what nothing can beat.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options
from steersman.controller.replay.workload import Asked
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import EventKind, Trajectories

BISECTIONS = 60
"""Halvings of the interval that holds the answer: to the last digit."""
MEMORY_SHARES = (1.0, 2.0, 3.0)
"""Of the KV cache, promised to contexts at their full length: with 1 none is ever evicted; more
counts on their not being at full length all at once."""
MOST_STATES = 2_000_000
"""Assignments kept at once by the dynamic programme; beyond, it gives up."""


@dataclass(frozen=True)
class Work:
    """n trajectories, the longest first, as the affine model sees them."""

    fixed_s: float
    """M"""
    length: Floats
    """(n,) descending."""
    work_s: Floats
    """(n,) c * L + k * K of each."""
    fills: Floats
    """(n, 2) share of a replica's slots and of its memory, times the steps it is held."""
    slots: int = 1 << 40

    @classmethod
    def of(cls, asked: Asked, plan: FleetPlan) -> tuple["Work", Ints]:
        """Of a step, and its (n,) rows in this order."""
        rows = np.lexsort((np.arange(len(asked)), -asked.length))
        p, length = plan.profile, asked.length[rows].astype(np.float64)
        context = length * (asked.prompt_tokens[rows] + length / 2)
        work_s = (p.sequence_s + p.overhead_sequence_s) * length + p.token_s * context
        capacity = p.kv_capacity_tokens or np.inf
        fills = np.stack((length / p.max_num_seqs, context / capacity), axis=1)
        return cls(p.fixed_s + p.overhead_s, length, work_s, fills, p.max_num_seqs), rows

    @classmethod
    def free(cls, fixed_s: float, length: Floats, work_s: Floats) -> "Work":
        """Of lengths in descending order, on replicas whose slots and memory are unlimited."""
        return cls(fixed_s, length, work_s, np.zeros((len(length), 2)))

    def end_s(self, replica: Ints, speeds: Floats) -> Floats:
        """(r,) seconds that each replica takes if `replica` (n,) says who runs where."""
        r = len(speeds)
        longest = np.zeros(r)
        np.maximum.at(longest, replica, self.length)
        fills = np.zeros((r, 2))
        np.add.at(fills, replica, self.fills)
        work_s = np.bincount(replica, weights=self.work_s, minlength=r)
        steps = np.maximum(longest, fills.max(axis=1))
        return np.asarray((self.fixed_s * steps + work_s) / speeds)


def longest_first(work: Work, speeds: Floats) -> Ints:
    """(n,) replica of each."""
    r = len(speeds)
    longest, fills, work_s = np.zeros(r), np.zeros((r, 2)), np.zeros(r)
    answer = np.empty(len(work.length), dtype=np.int64)
    for i, (length, own_s) in enumerate(zip(work.length, work.work_s, strict=True)):
        steps = np.maximum(np.maximum(longest, length), (fills + work.fills[i]).max(axis=1))
        at = int(np.argmin((work.fixed_s * steps + work_s + own_s) / speeds))
        answer[i] = at
        longest[at] = max(longest[at], length)
        fills[at] += work.fills[i]
        work_s[at] += own_s
    return answer


def isolation(work: Work, speeds: Floats) -> Ints:
    """(n,) replica of each; the fastest get the longest.

    For a given time the first replica takes as many as it can, then the next: what remains is then
    shorter and less, so nothing else would leave more room.  The time is found by bisection.
    """
    order = np.argsort(-speeds, kind="stable")
    run = _Run(work)
    everything = len(work.length)

    def cuts(time_s: float) -> list[int]:
        ends = [0]
        for speed in speeds[order].tolist():
            ends.append(run.last(ends[-1], time_s * speed))
        return ends

    low, high = 0.0, 1.0
    while cuts(high)[-1] < everything:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if cuts(middle)[-1] == everything else (middle, high)
    return np.asarray(np.repeat(order, np.diff(cuts(high))))


class _Run:
    """How far a run of the sorted trajectories can reach on one replica."""

    def __init__(self, work: Work) -> None:
        self._work, self._work_s = work, _from_zero(work.work_s)
        # what grows along the run when slots or memory, not the longest, say how many steps
        self._full = [work.fixed_s * _from_zero(f) + self._work_s for f in work.fills.T]

    def last(self, at: int, budget_s: float) -> int:
        """The first trajectory not in a run that begins with `at` and takes `budget_s`."""
        work, n = self._work, len(self._work.length)
        if at == n:
            return n
        end = self._reach(self._work_s, at, budget_s - work.fixed_s * work.length[at])
        for full in self._full:
            end = min(end, self._reach(full, at, budget_s))
        second = at + work.slots
        if end > second:
            # two of the first slots + 1 share a slot, at best the shortest two
            steps = max(work.length[at], work.length[second - 1] + work.length[second])
            pair = self._reach(self._work_s, at, budget_s - work.fixed_s * steps)
            end = min(end, max(second, pair))
        return max(end, at)

    @staticmethod
    def _reach(grows: Floats, at: int, budget_s: float) -> int:
        return int(np.searchsorted(grows, grows[at] + budget_s, side="right")) - 1


def relaxed_s(work: Work, replicas: int) -> float:
    """Seconds below which no assignment to equal replicas of unlimited slots ends.

    If a replica could share a trajectory's work (not its length) with those that started longer
    ones, then the first k replicas could hold all that comes before the (k + 1)th starts as soon as
    M * (sum of their longest) + W fits into k times the time.  Starting late means a shorter
    longest, so each starts as late as that allows.
    """
    total = _from_zero(work.work_s)
    n = len(work.length)

    def fits(time_s: float) -> bool:
        at, paid_s = 0, 0.0
        for k in range(1, replicas + 1):
            paid_s += work.fixed_s * work.length[at]
            if paid_s + total[at + 1] > k * time_s:
                return False
            at = int(np.searchsorted(total, k * time_s - paid_s, side="right")) - 1
            if at >= n:
                return True
        return False

    low, high = 0.0, work.fixed_s * work.length[0] + total[-1]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(low)


def optimum_s(work: Work, replicas: int) -> float:
    """Least possible seconds on equal replicas of unlimited slots, for a few trajectories.

    Trajectories are assigned longest first, so a replica's longest is its first and a state is how
    long each replica takes so far.  A state is dropped if another with as many replicas in use is
    nowhere longer, or if the mean over its replicas cannot stay below the best known plan.
    """
    speeds = np.ones(replicas)
    plans = (longest_first(work, speeds), isolation(work, speeds))
    best = min(float(work.end_s(plan, speeds).max()) for plan in plans)
    states = np.zeros((1, replicas))
    left = work.work_s.sum()
    for length, own_s in zip(work.length.tolist(), work.work_s.tolist(), strict=True):
        left -= own_s
        grown = []
        for at in range(replicas):
            new = states.copy()
            new[:, at] += own_s + np.where(states[:, at] == 0, work.fixed_s * length, 0.0)
            grown.append(new)
        states = np.sort(np.concatenate(grown), axis=1)
        if len(states) > MOST_STATES:
            raise InvalidInputError(f"{len(work.length)} trajectories are too many to be exact")
        hopeful = (states[:, -1] < best) & (states.sum(axis=1) + left < best * replicas)
        states = _pareto(states[hopeful])
        if not len(states):
            return best
    return min(best, float(states[:, -1].min()))


def _pareto(states: Floats) -> Floats:
    """Without those than which a neighbour, in the order of their sums, is nowhere longer."""
    states = np.unique(states, axis=0)
    states = states[np.argsort(states.sum(axis=1), kind="stable")]
    for shift in (1, 2, 4, 8):
        if len(states) > shift:
            better = (states[:-shift] <= states[shift:]).all(axis=1)
            same_open = (states[:-shift] > 0).sum(axis=1) == (states[shift:] > 0).sum(axis=1)
            states = np.concatenate((states[:shift], states[shift:][~(better & same_open)]))
    return states


@dataclass(frozen=True)
class Clairvoyant:
    """The fastest schedule found for a step."""

    makespan_s: float
    schedule: str
    all_s: Mapping[str, float]
    """Of every schedule that was tried."""


def clairvoyant_makespan(
    asked: Asked, plan: FleetPlan, latency_s: float = Options().latency_s
) -> Clairvoyant:
    """Run the candidates in the simulator; `latency_s` is added as a replay adds it."""
    if not len(asked):
        return Clairvoyant(latency_s, "nothing to do", {})
    work, rows = Work.of(asked, plan)
    speeds = np.array(plan.speeds or (1.0,) * plan.replicas, dtype=np.float64)
    assigned: dict[str, Ints] = {
        "longest first": longest_first(work, speeds),
        "isolation": isolation(work, speeds),
        "longest first, fewest in flight": np.arange(len(rows)) % plan.replicas,
    }
    all_s = {name: _run_s(asked, plan, rows, at) + latency_s for name, at in assigned.items()}
    for share in MEMORY_SHARES:
        name = f"longest first, the memory promised {share:g} times"
        all_s[name] = _pulled_s(asked, plan, rows, share) + latency_s
    schedule = min(all_s, key=all_s.__getitem__)
    return Clairvoyant(all_s[schedule], schedule, all_s)


def _run_s(asked: Asked, plan: FleetPlan, rows: Ints, replica: Ints) -> float:
    """Everything is sent at once, the longest first; what does not fit waits in the engines."""
    core = _core(asked, plan)
    core.submit(rows, replica)
    core.advance(np.inf)
    return core.now_s


def _pulled_s(asked: Asked, plan: FleetPlan, rows: Ints, share: float) -> float:
    """Each replica takes the longest that waits whenever it has a slot, and room for the whole
    context that this one will end with; of its memory, `share` is given to such promises."""
    core, turns = _core(asked, plan), asked.turns
    row = np.repeat(np.arange(len(asked)), turns.count)
    extra = np.bincount(row, weights=turns.extra_tokens, minlength=len(asked))
    context = asked.prompt_tokens + asked.length + extra
    memory = np.where(plan.kv_capacity_tokens > 0, share * plan.kv_capacity_tokens, np.inf)
    slots, promised, coming = plan.slots.copy(), np.zeros(plan.replicas), 0
    while True:
        while coming < len(rows):
            own = context[rows[coming]]
            # what alone is more than all of it gets a replica for itself
            fits = (slots > 0) & ((promised + own <= memory) | (promised == 0))
            if not fits.any():
                break
            at = int(np.where(fits, slots / plan.slots, -1.0).argmax())
            core.submit(rows[coming : coming + 1], np.array([at]))
            slots[at], promised[at], coming = slots[at] - 1, promised[at] + own, coming + 1
        events = core.advance(np.inf, stop_on=(EventKind.FINISHED,))
        done = events.kind == EventKind.FINISHED
        if not done.any():
            return core.now_s
        np.add.at(slots, events.replica[done], 1)
        np.subtract.at(promised, events.replica[done], context[events.trajectory[done]])


def _core(asked: Asked, plan: FleetPlan) -> SimulatedCore:
    core = SimulatedCore()
    for spec in plan.specs():
        core.add_replica(spec)
    turns = asked.turns
    core.add(
        Trajectories(
            group=asked.group_row,
            prompt_tokens=asked.prompt_tokens.astype(np.float64),
            encode_s=np.asarray(plan.image_encode_s * asked.images, dtype=np.float64),
            turns=turns.count,
            turn_tokens=turns.tokens,
            wait_s=turns.wait_s,
            extra_tokens=turns.extra_tokens,
        )
    )
    return core


def _from_zero(values: Floats) -> Floats:
    return np.concatenate((np.zeros(1), np.cumsum(values)))
