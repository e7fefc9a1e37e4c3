"""How fast the simulator is: a whole step of many trajectories, steered by a cheap policy.

The workload: groups of 16 with a prompt each, log-normal lengths with a cap, on replicas like one
GPU with an 8B model.  Everything is on: iterations that grow with batch and context, the knee, KV
capacity with preemptions, prefill with the prefix cache.  Nothing is submitted by hand: every
`TICK_S` of virtual time a policy refills the replicas from one queue, least loaded first, as a
controller would; its time counts.  `seconds` are CPU seconds of this process, so that other
processes do not count; building the workload and compiling are not in them.
"""

import math
import resource
import sys
import time
from dataclasses import dataclass

import numpy as np

from steersman.estimators.observation import Ints
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import EventKind, Events, ReplicaSpec, Trajectories

TICK_S = 0.5
GROUP_SIZE = 16
MEDIAN_TOKENS, SPREAD, CAP_TOKENS = 1000.0, 0.9, 8192.0
"""Of the log-normal lengths; the mean is about 1.5 times the median."""
SHORTEST_PROMPT, LONGEST_PROMPT = 100, 800
SLOTS = 64
"""Trajectories that the policy keeps on each replica."""
REPLICA = ReplicaSpec(
    fixed_s=0.012,
    sequence_s=0.00015,
    token_s=2e-8,
    knee_s=0.02,
    prefill_token_s=2e-5,
    max_num_seqs=SLOTS,
    kv_capacity_tokens=140_000.0,  # `SLOTS` contexts of mean size fill most: some are preempted
)


@dataclass(frozen=True)
class Run:
    """What one run took, and what was done in it."""

    seconds: float
    policy_seconds: float
    """The policy's part of `seconds`."""
    compile_seconds: float
    """Loading the compiled core: compiling it, or reading numba's cache."""
    peak_mb: float
    """Largest memory of the whole process so far."""
    trajectories: int
    replicas: int
    ticks: int
    finished: int
    preemptions: int
    tokens: float
    makespan_s: float
    """Virtual."""


def run(trajectories: int, replicas: int, seed: int = 0) -> Run:
    """One step of `trajectories` on `replicas`."""
    compile_s = warm_up()
    core = SimulatedCore()
    for _ in range(replicas):
        core.add_replica(REPLICA)
    rows = core.add(workload(trajectories, seed))
    policy = Refill(rows, replicas)
    started = time.process_time()
    ticks = finished = 0
    makespan_s = 0.0
    while finished < trajectories:
        who, where = policy.decide()
        if len(who):
            core.submit(who, where)
        events = core.advance(core.now_s + TICK_S)
        ended = policy.learn(events)
        if ended:
            finished, makespan_s = finished + ended, float(events.time_s[-1])
        ticks += 1
    seconds = time.process_time() - started
    return Run(
        seconds=seconds,
        policy_seconds=policy.seconds,
        compile_seconds=compile_s,
        peak_mb=_peak_mb(),
        trajectories=trajectories,
        replicas=replicas,
        ticks=ticks,
        finished=finished,
        preemptions=int(core.state().preemptions.sum()),
        tokens=float(core.generated_tokens().sum()),
        makespan_s=makespan_s,
    )


def workload(trajectories: int, seed: int) -> Trajectories:
    """Trajectories in groups of `GROUP_SIZE`, one turn each."""
    rng = np.random.default_rng(seed)
    group = np.arange(trajectories) // GROUP_SIZE
    prompts = rng.integers(SHORTEST_PROMPT, LONGEST_PROMPT, trajectories // GROUP_SIZE + 1)
    tokens = MEDIAN_TOKENS * np.exp(SPREAD * rng.standard_normal(trajectories))
    tokens = np.clip(np.rint(tokens), 1.0, CAP_TOKENS)
    return Trajectories.of_one_turn(tokens, group, prompts[group].astype(np.float64))


class Refill:
    """Keeps `SLOTS` trajectories on every replica, from one queue, the least loaded first."""

    def __init__(self, rows: Ints, replicas: int) -> None:
        self._rows, self._taken = rows, 0
        self._load = np.zeros(replicas, dtype=np.int64)
        self.seconds = 0.0

    def decide(self) -> tuple[Ints, Ints]:
        """Rows to submit, and their replicas."""
        started = time.process_time()
        free = SLOTS - self._load
        where = np.repeat(np.arange(len(free)), free)
        rank = np.arange(len(where)) - np.repeat(np.cumsum(free) - free, free)
        count = min(len(where), len(self._rows) - self._taken)
        level = self._load[where] + rank  # of the replica, before this one is there
        where = where[np.argsort(level, kind="stable")[:count]]
        who = self._rows[self._taken : self._taken + count]
        self._taken += count
        self._load += np.bincount(where, minlength=len(free))
        self.seconds += time.process_time() - started
        return who, where

    def learn(self, events: Events) -> int:
        """Trajectories that ended."""
        started = time.process_time()
        left = events.replica[events.kind == EventKind.FINISHED]
        self._load -= np.bincount(left, minlength=len(self._load))
        self.seconds += time.process_time() - started
        return len(left)


def warm_up() -> float:
    """Compile what `run` uses; returns the CPU seconds it took."""
    started = time.process_time()
    core = SimulatedCore()
    rows = core.add(Trajectories.of_one_turn([1.0]))
    core.submit(rows, [core.add_replica(REPLICA)])
    core.advance(math.inf)
    core.state()
    core.generated_tokens()
    return time.process_time() - started


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # kilobytes on Linux
