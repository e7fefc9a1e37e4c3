"""What comes out of a replay: steps, attempts, and the fleet at every decision."""

from dataclasses import dataclass, field

import numpy as np

from steersman.controller.replay._books import ANSWERS, REPLACED
from steersman.controller.replay.intervals import ENDINGS, Attempts
from steersman.controller.replay.world import World
from steersman.estimators.observation import Bools, Floats, Ints, Observation


@dataclass(frozen=True)
class StepResult:
    """What one step took and what it delivered."""

    step: int
    start_s: float
    makespan_s: float
    asked: int
    """Samples it admitted."""
    finished: int
    """Answers in it, carried-over ones included."""
    truncated: int
    deferred: int
    moves: int
    tokens: int
    """Of the answers in it."""
    mean_length_asked: float
    mean_length_kept: float
    """Tokens of the answers of its own groups; NaN: there were none."""
    stopped: int = 0
    """Answers that were cut off by a decision."""
    restarted: int = 0
    """Trajectories that a decision replaced by fresh ones."""
    expired: int = 0
    """Replaced likewise, because they were beyond the lag bound."""
    discarded_tokens: int = 0
    """Of what was replaced: written in vain."""


@dataclass
class Samples:
    """The fleet at every decision."""

    time_s: list[float] = field(default_factory=list)
    running: list[Ints] = field(default_factory=list)
    """(r,) each."""
    alive: list[Bools] = field(default_factory=list)
    """(r,) each."""
    waiting: list[int] = field(default_factory=list)
    """At the controller and in the engines' queues."""
    kv_cache_usage: list[Floats] = field(default_factory=list)

    def add(self, seen: Observation) -> None:
        """One more."""
        self.time_s.append(seen.now_s)
        self.running.append(seen.replicas.running)
        self.alive.append(seen.replicas.alive)
        self.waiting.append(int(seen.replicas.waiting.sum()) + len(seen.queued))
        self.kv_cache_usage.append(seen.replicas.kv_cache_usage)


@dataclass(frozen=True)
class Result:
    """A whole replay."""

    policy: str
    steps: list[StepResult]
    attempts: Attempts
    samples: Samples
    decisions: int
    decide_s: float
    """Seconds of real time that deciding took in all; `decisions` ticks shared them."""
    tick_ms_p99: float
    """99 % of the decisions took at most so many milliseconds."""
    preemptions: int
    unsupported: float
    """Share of the replica time beyond the loads the profile was fitted on."""
    prompt_tokens: Ints
    """(n,) of every trajectory, fresh ones included; rows as in `attempts`."""
    loops: Bools
    """(n,) it only repeats itself in the end."""


@dataclass(frozen=True)
class Totals:
    """Counts since the run began."""

    finished: int
    truncated: int
    stopped: int
    restarted: int
    expired: int
    deferred: int
    moves: int
    tokens: int
    discarded_tokens: int

    @classmethod
    def of(cls, world: World) -> "Totals":
        """As they stand."""
        i = world.ints
        count = np.bincount(i["ending"] + 1, minlength=len(ENDINGS) + 1)[1:]
        tokens = np.bincount(i["ending"] + 1, weights=i["generated"], minlength=len(ENDINGS) + 1)
        named = {name: int(count[row]) for row, name in enumerate(ENDINGS)}
        return cls(
            finished=int(count[list(ANSWERS)].sum()),
            truncated=named["truncated"],
            stopped=named["stopped"],
            restarted=named["restarted"],
            expired=named["expired"],
            deferred=int(i["deferred"].sum()),
            moves=int(i["moves"].sum()),
            tokens=int(tokens[1:][list(ANSWERS)].sum()),
            discarded_tokens=int(tokens[1:][list(REPLACED)].sum()),
        )

    def since(self, before: "Totals") -> dict[str, int]:
        """What was added."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


def step_result(
    world: World, step: int, before: Totals, started_s: float, latency_s: float, asked: Ints
) -> StepResult:
    """Of a step that began at `started_s`, whose own samples were first the rows `asked` (n,)."""
    i = world.ints
    last_s = max(world.intervals.latest_s + latency_s, started_s)
    # a slot's answer may be a fresh sample's
    own = np.isin(i["group"], np.unique(i["group"][asked])) & np.isin(i["ending"], ANSWERS)
    return StepResult(
        step=step,
        start_s=started_s,
        makespan_s=last_s - started_s,
        asked=len(asked),
        mean_length_asked=_mean(i["length"][asked]),
        mean_length_kept=_mean(i["generated"][own]),
        **Totals.of(world).since(before),
    )


def batch_result(
    world: World, step: int, before: Totals, started_s: float, latency_s: float, answers: Ints
) -> StepResult:
    """Of a stream's batch, with the rows `answers` (n,) that came in it."""
    i = world.ints
    last_s = max(world.intervals.latest_s + latency_s, started_s)
    return StepResult(
        step=step,
        start_s=started_s,
        makespan_s=last_s - started_s,
        asked=len(answers),
        mean_length_asked=_mean(i["length"][_firsts(world, answers)]),
        mean_length_kept=_mean(i["generated"][answers]),
        **Totals.of(world).since(before),
    )


def _firsts(world: World, rows: Ints) -> Ints:
    """Who had the slots of `rows` first: what was asked for, whoever answered."""
    i = world.ints
    if not i["restarts"][rows].any():
        return rows
    slot = i["group"] * (1 + int(i["index"].max())) + i["index"]
    first = np.flatnonzero(i["restarts"] == 0)
    order = first[np.argsort(slot[first])]
    return np.asarray(order[np.searchsorted(slot[order], slot[rows])])


def _mean(tokens: Ints) -> float:
    return float(tokens.mean()) if len(tokens) else float("nan")
