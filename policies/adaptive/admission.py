"""Where and when what waits begins.

*All at once*, if there is a slot and memory for everybody: three assignments are compared on the
same scenarios (mean of when the last replica ends), and the trainer's default is what another must
beat by `margin`:

- default: fewest in flight;
- longest first, each where the end is then soonest: balances unlike replicas and what runs already;
- cut: the order of expected lengths cut into one run per replica, the fastest get the longest.
  Siblings stay together, so that prompts are computed once, and few replicas pay for long tails.

*Gathered*: where replicas slow each other down (`sharing`), the same on fewer of them, if that is
better by `GATHER_MARGIN`; the others then get nothing for the rest of the step.

*Held*, if not: what has no slot stays here, where late knowledge still counts, and goes in the
plan's order as slots become free, each where the end is then soonest.  Two more than slots, so that
none is empty until the next tick, cost 1 % where siblings are alike.  A replica takes new ones
only while the contexts promised to it, at their expected ends, are below the plan's share of its KV
cache.
"""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Floats, Ints, Observation
from steersman.policies.adaptive._ends import Model
from steersman.policies.adaptive._filling import by_cuts, by_end, by_fewest, place_all
from steersman.policies.adaptive.order import ordered
from steersman.policies.adaptive.outlook import Outlook, free_slots
from steersman.policies.adaptive.plans import Plan
from steersman.policies.adaptive.sharing import Sharing

GATHER_MARGIN = 0.1
"""Share of the expected end by which gathering must be better than the best plan for all replicas:
that they share anything is learned from tails, and half a fleet idles if it is wrong."""
MOST_TRIALS, ALIKE = 300_000, 0.2
"""Trajectories times replicas above which the default alone is looked at where replicas are alike
and idle: it balances so many as well as longest first does, comparing would take 60 ms, and what
has proved long is moved later."""
CUTTING = 24
"""Passes over what waits that cutting takes: doublings and bisections."""
MOST_WAITING = 2
"""Requests in an engine's own queue above which it gets no more: it has less room than slots."""
DEFAULT, LONGEST, CUT = "default", "longest first", "cut by length"


@dataclass(frozen=True)
class Assignment:
    """Rows in the order they are placed, and their replicas."""

    name: str
    rows: Ints
    target: Ints
    end_s: float
    """Mean over the scenarios of when the last replica ends."""


def memory_room(observation: Observation, outlook: Outlook, promise: float) -> Floats:
    """(r,) tokens of whole contexts that may still be promised; negative: too many are."""
    t = observation.trajectories
    here = np.where(t.phase != Phase.ENDED, observation.destination_row, NO_ROW)
    on = here >= 0
    given = np.bincount(here[on], weights=outlook.final[on], minlength=len(observation.replicas))
    return np.asarray(promise * outlook.model.capacity - given)


def fits_at_once(observation: Observation, outlook: Outlook, promise: float) -> bool:
    """Whether everybody who waits has a slot, and memory."""
    queued, able = observation.queued, outlook.model.open
    memory = np.maximum(memory_room(observation, outlook, promise), 0.0)[able].sum()
    slots = free_slots(observation, able).sum()
    return bool(len(queued) <= slots and outlook.final[queued].sum() <= memory)


def assignments(
    observation: Observation, forecast: Forecast, outlook: Outlook
) -> dict[str, Assignment]:
    """By name, the default first."""
    queued = observation.queued
    mean, group = forecast.length.mean_remaining_tokens, observation.trajectories.group_row
    longest_first = queued[np.lexsort((queued, group[queued], -mean[queued]))]
    model, n = outlook.model, len(queued)
    fastest_first = _fastest_first(model)
    room = np.full(len(model.fixed_s), n)
    no_bound = np.full(len(room), np.inf)
    made: dict[str, Assignment] = {}

    def add(name: str, order: Ints, target: Ints) -> None:
        load = outlook.load.copy()
        place_all(model, outlook.rows, load, order, target)
        made[name] = Assignment(name, order, target, float(outlook.last_s(load).mean()))

    thin = outlook.thinned(n * len(fastest_first))
    load = thin.load.copy()
    add(DEFAULT, queued, by_fewest(model, thin.rows, load, queued))
    if n * len(fastest_first) > MOST_TRIALS and _alike(outlook, fastest_first):
        return made
    load = thin.load.copy()
    target = by_end(model, thin.rows, load, longest_first, room.copy(), no_bound, outlook.final)
    add(LONGEST, longest_first, target)
    thin = outlook.thinned(n * CUTTING)
    load = thin.load.copy()
    cut = by_cuts(model, thin.rows, load, longest_first, fastest_first, room)
    add(CUT, longest_first, cut)
    return made


def _alike(outlook: Outlook, replicas: Ints) -> bool:
    """Whether nothing tells the replicas apart: neither speed nor load."""
    seconds = outlook.model.fixed_s[replicas]
    same = float(seconds.max()) <= (1 + ALIKE) * float(seconds.min())
    return same and not outlook.load.number.any()


def gathered(
    observation: Observation, forecast: Forecast, outlook: Outlook, sharing: Sharing, end_s: float
) -> tuple[Outlook, Assignment] | None:
    """The best plan on half, a quarter ... of the replicas, the fastest, if it beats `end_s`."""
    fastest_first = _fastest_first(outlook.model)
    best: tuple[Outlook, Assignment] | None = None
    living = len(fastest_first)
    active = living // 2
    while active >= 1:
        chosen = np.zeros(len(outlook.model.open), dtype=np.bool_)
        chosen[fastest_first[:active]] = True
        faster = outlook.only(chosen, sharing.speed_up(active, living))
        plan = min(assignments(observation, forecast, faster).values(), key=lambda p: p.end_s)
        if plan.end_s < (1 - GATHER_MARGIN) * end_s:
            best, end_s = (faster, plan), plan.end_s / (1 - GATHER_MARGIN)
        active //= 2
    return best


def held(
    observation: Observation, forecast: Forecast, outlook: Outlook, plan: Plan
) -> tuple[Ints, Ints]:
    """Rows to place now and their replicas."""
    room = free_slots(observation, outlook.model.open)
    waiting = observation.replicas.waiting > MOST_WAITING
    room[waiting & (outlook.load.number > 0)] = 0
    memory = memory_room(observation, outlook, plan.promise)
    idle = outlook.load.number == 0
    memory[idle] = np.maximum(memory[idle], 1.0)  # what alone is more than all of it gets it all
    order = ordered(plan.order, observation, forecast)[: int(room.sum())]
    load = outlook.load.copy()
    target = by_end(outlook.model, outlook.rows, load, order, room, memory, outlook.final)
    placed = target >= 0
    return order[placed], np.asarray(target[placed])


def _fastest_first(model: Model) -> Ints:
    """Rows of the open replicas; ties by name."""
    able = model.by_name[model.open[model.by_name]]
    return np.asarray(able[np.argsort(model.fixed_s[able], kind="stable")])
