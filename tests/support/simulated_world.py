"""Random small worlds for the simulator, and a script of everything that can happen to them.

`Script(core, seed).play()` drives any core (the compiled one or the reference) the same way: what
it does next depends on the seed and on what the core reported, so that two that agree do the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from steersman.mechanisms.simulated.spec import EventKind, ReplicaSpec, Trajectories

FAR_S = 1e6
"""Long after everything in these worlds."""


def random_replica(rng: np.random.Generator, round_numbers: bool) -> ReplicaSpec:
    """Every feature is on or off by chance; small capacities, so that preemptions are common."""
    spec = random_line(rng, round_numbers)
    if rng.random() < 0.5:
        return spec
    step_s = 2.0**-10 if round_numbers else rng.uniform(1e-4, 1e-2)
    return replace(
        spec,
        sequence_s=0.0,
        batch_s=random_table(rng, spec, step_s),
        prefill_step_s=step_s * int(rng.integers(0, 8)),
        request_s=step_s * int(rng.integers(0, 3)),
    )


def random_table(rng: np.random.Generator, spec: ReplicaSpec, step_s: float) -> tuple[float, ...]:
    """Up by any of a few multiples of `step_s` from one batch to the next, or not at all."""
    rises = rng.integers(0, 4, spec.max_num_seqs)
    return tuple((spec.fixed_s + step_s * np.cumsum(rises)).tolist())


def random_line(rng: np.random.Generator, round_numbers: bool) -> ReplicaSpec:
    """A replica without a table."""
    if round_numbers:  # ties, and sums without rounding
        return ReplicaSpec(
            fixed_s=2.0**-6,
            sequence_s=2.0**-10 * int(rng.integers(0, 3)),
            prefill_token_s=2.0**-12 * int(rng.integers(0, 2)),
            max_num_seqs=int(rng.integers(1, 6)),
            kv_capacity_tokens=float(rng.choice([256, 512, 1024])),
            keeps_kv_between_turns=bool(rng.random() < 0.5),
            speed=float(rng.choice([0.5, 1.0, 2.0])),
        )
    return ReplicaSpec(
        fixed_s=rng.uniform(0.005, 0.05),
        sequence_s=float(rng.choice([0.0, rng.uniform(1e-4, 1e-2)])),
        token_s=float(rng.choice([0.0, rng.uniform(1e-6, 1e-4)])),
        knee_s=float(rng.choice([0.0, rng.uniform(0.01, 1.0)])),
        prefill_token_s=float(rng.choice([0.0, rng.uniform(1e-5, 1e-3)])),
        max_num_seqs=int(rng.integers(1, 9)),
        kv_capacity_tokens=float(rng.choice([np.inf, rng.uniform(100, 2000)])),
        prefix_cache_tokens=float(rng.choice([0.0, np.inf, rng.uniform(50, 1000)])),
        keeps_kv_between_turns=bool(rng.random() < 0.5),
        speed=float(rng.choice([1.0, rng.uniform(0.5, 2.0)])),
        tokens_per_iteration=float(rng.choice([1.0, rng.uniform(1.0, 4.0)])),
        cost_factor=rng.uniform(1.0, 2.0),
    )


def random_trajectories(rng: np.random.Generator, n: int, round_numbers: bool) -> Trajectories:
    """Groups of a few, one to three turns each; some have written a part of the first."""
    turns = rng.choice([1, 1, 2, 3], n)
    m = int(turns.sum())
    if round_numbers:
        tokens, waits = 16.0 * rng.integers(1, 8, m), 0.25 * rng.integers(0, 8, m)
        extra, prompts = 16.0 * rng.integers(0, 4, m), 16.0 * rng.integers(0, 6, n)
    else:
        tokens, waits = rng.integers(1, 150, m) * 1.0, rng.exponential(2.0, m)
        extra, prompts = rng.integers(0, 60, m) * 1.0, rng.integers(0, 120, n) * 1.0
    group = rng.integers(0, 1 + n // 4, n)
    unit = 16.0 if round_numbers else 1.0
    share = np.where(rng.random(n) < 0.3, rng.random(n), 0.0)
    first = tokens[np.cumsum(turns) - turns]
    return Trajectories(
        group=group,
        prompt_tokens=prompts[group],
        encode_s=np.where(rng.random(n) < 0.3, rng.uniform(0, 0.5), 0.0),
        turns=turns,
        turn_tokens=tokens,
        wait_s=waits,
        extra_tokens=extra,
        generated=unit * np.floor(share * first / unit),
    )


@dataclass
class Script:
    """What is done to a core, and everything that was seen of it."""

    core: Any
    seed: int
    asked: list[float] = field(default_factory=list)
    """Tokens that each trajectory is to write."""
    events: list[tuple[float, int, int, int]] = field(default_factory=list)
    looks: list[list[float]] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """Trajectories on no replica that have not ended, in order."""
    alive: list[int] = field(default_factory=list)
    """Replicas."""
    specs: list[ReplicaSpec] = field(default_factory=list)
    """Of all replicas."""

    def play(self) -> None:
        """Some random actions, and then to the end of all trajectories."""
        self.rng = rng = np.random.default_rng(self.seed)
        self.round_numbers = self.seed % 3 == 0
        for _ in range(rng.integers(1, 4)):
            self.join()
        self.more()
        actions = (self.submit, self.submit, self.abort, self.migrate, self.kill, self.join)
        actions += (self.pause, self.update_weights, self.speculate, self.more)
        weights = np.array([6, 6, 1, 3, 1, 1, 1, 1, 1, 1])
        for _ in range(rng.integers(3, 25)):
            actions[rng.choice(len(actions), p=weights / weights.sum())]()
            pause_s = rng.integers(0, 8) / 4 if self.round_numbers else rng.exponential(1.0)
            stop_on = (
                [EventKind(int(k)) for k in rng.integers(0, 4, 2)] if rng.random() < 0.3 else []
            )
            self.advance(self.core.now_s + float(pause_s), stop_on)
        self.join()
        for r in self.alive:
            self.core.resume(r)
        self.submit(everyone=True)
        self.advance(FAR_S, [])

    def advance(self, until_s: float, stop_on: Sequence[EventKind]) -> None:
        """Let time pass, and look."""
        events = as_tuples(self.core.advance(until_s, stop_on))
        self.events += events
        self.idle += [row for _, kind, row, _ in events if kind == EventKind.LOST]
        self.looks.append([self.core.now_s, *self.core.generated_tokens()])

    def more(self) -> None:
        """Trajectories arrive."""
        given = random_trajectories(self.rng, int(self.rng.integers(1, 25)), self.round_numbers)
        self.idle += [int(row) for row in self.core.add(given)]
        ends = np.cumsum(given.turns)
        self.asked += [float(part.sum()) for part in np.split(given.turn_tokens, ends[:-1])]

    def join(self) -> None:
        """A replica arrives."""
        self.specs.append(random_replica(self.rng, self.round_numbers))
        self.alive.append(self.core.add_replica(self.specs[-1]))

    def submit(self, everyone: bool = False) -> None:
        """Some of the idle ones, or all."""
        count = len(self.idle) if everyone else int(self.rng.integers(0, len(self.idle) + 1))
        self.send([self.idle.pop(0) for _ in range(count)])

    def send(self, rows: list[int]) -> None:
        """To random living replicas, at once or a little later."""
        targets = [int(r) for r in self.rng.choice(self.alive, len(rows))]
        later = self.rng.random() < 0.3
        delay_s = float(self.rng.integers(1, 4)) / 4 if later else 0.0
        self.core.submit(rows, targets, self.core.now_s + delay_s)

    def withdraw(self) -> list[int]:
        """Random ones, on a replica or not, that have not ended."""
        known = len(self.asked)
        rows = self.rng.choice(known, int(self.rng.integers(0, 4)) % (known + 1), replace=False)
        ended = {row for _, kind, row, _ in self.events if kind == EventKind.FINISHED}
        rows = [int(row) for row in rows if row not in ended]
        self.looks.append([float(tokens) for tokens in self.core.abort(rows)])
        return rows

    def abort(self) -> None:
        """They become idle."""
        self.idle += [row for row in self.withdraw() if row not in self.idle]

    def migrate(self) -> None:
        """They go elsewhere with what they have written."""
        rows = [row for row in self.withdraw() if row not in self.idle]
        self.send(rows)

    def kill(self) -> None:
        """A replica dies, unless it is the last."""
        if len(self.alive) > 1:
            self.core.kill(self.alive.pop(int(self.rng.integers(len(self.alive)))))
            self.advance(self.core.now_s, [])

    def pause(self) -> None:
        """A replica stands still for a while."""
        r = int(self.rng.choice(self.alive))
        self.core.pause(r)
        self.advance(self.core.now_s + 0.75, [])
        if self.rng.random() < 0.7:
            self.core.resume(r)

    def update_weights(self) -> None:
        """Of one replica, in place or under a pause."""
        r = int(self.rng.choice(self.alive))
        hold = self.rng.random() < 0.5
        if hold:
            self.core.pause(r)
        self.core.new_weights(r)
        if hold:
            self.core.resume(r)

    def speculate(self) -> None:
        """On or off."""
        r, on = int(self.rng.choice(self.alive)), self.rng.random() < 0.7
        tokens = float(self.rng.integers(4, 12)) / 4 if on else 1.0
        self.core.set_speculation(r, tokens, 1.5 if on else 1.0)


def as_tuples(events: Any) -> list[tuple[float, int, int, int]]:
    """Events of either core."""
    if isinstance(events, list):
        return events
    columns = (events.time_s, events.kind, events.trajectory, events.replica)
    return list(zip(*(column.tolist() for column in columns), strict=True))
