"""A fleet that drafts: acceptance decays until the drafter is refreshed, batches swing by step.

Every step all replicas begin with `FULL` sequences, which finish until one is left.  Each weight
version and every tick the drafter matches the model a little less; at moments of its own (not at
version changes) it is refreshed, and acceptance jumps.  Replicas differ a little.  What was drafted
is drawn; what a choice of K earns is computed from the true acceptance, without noise.
"""

from dataclasses import dataclass, field

import numpy as np
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.acceptance import DiscountedAcceptance
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.estimators.speculation import best_draft_tokens, speed_up

REPLICAS, FULL, DEEPEST = 4, 64, 8
FIXED_S, PER_SEQUENCE_S, DRAFT_TOKEN_S = 0.012, 0.00015, 0.0003
"""At 64 sequences K = 1 pays from an acceptance of .46, at 1 from .04."""
TICK_S, STEP_TICKS = 0.25, 120
REFRESH_TICKS = 500
"""Mean time between two refreshes of the drafter: about four steps."""
LOSS_PER_VERSION, LOSS_PER_TICK, FRESH = 0.25, 0.0015, 0.8
"""Logits of acceptance lost since the last refresh, at which it was `FRESH`: .8 becomes .5 or so
within four steps."""
PROBE_TICKS = 45
"""After so many ticks without a full draft one iteration drafts in full: K = 0 teaches nothing, and
K = 1 nothing of the second position.  The replicas take turns."""

GEOMETRIC = np.zeros(DEEPEST)
FADING = np.linspace(0.8, -2.0, DEEPEST)
"""Logits by position on top: a drafter that loses its thread."""
COPYING = np.linspace(-1.2, 2.5, DEEPEST)
"""A draft copied from an earlier text: what starts right stays right."""


@dataclass
class World:
    """The fleet of the module's docstring, one tick at a time."""

    shape: np.ndarray
    seed: int
    version: int = 0
    tick: int = 0
    lost: float = 0.0
    draws: np.random.Generator = field(init=False)
    fate: np.random.Generator = field(init=False)
    """Apart from `draws`, so that the same seed has the same world whatever is chosen."""
    offset: np.ndarray = field(init=False)
    """(r, 1) how much better, in logits, each replica's text is drafted."""
    counters: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.draws, self.fate = np.random.default_rng(self.seed).spawn(2)
        self.offset = self.fate.normal(0.0, 0.15, (REPLICAS, 1))
        self.counters = np.zeros((2, REPLICAS, DEEPEST), dtype=np.int64)

    def acceptance(self) -> np.ndarray:
        """(r, k) the truth now."""
        logit = np.log(FRESH / (1 - FRESH)) - self.lost + self.shape + self.offset
        return 1 / (1 + np.exp(-logit))

    def batch(self) -> np.ndarray:
        """(r,) full for half a step, then falling to 1; some replicas are earlier than others."""
        left = 1 - (self.tick % STEP_TICKS) / STEP_TICKS - 0.1 * np.arange(REPLICAS) / REPLICAS
        return np.maximum(np.floor(FULL * np.minimum(1.0, (2 * np.maximum(left, 0)) ** 2)), 1.0)

    def seen(self) -> Observation:
        """What the controller is shown."""
        return observation(
            trajectory_table([]),
            replica_table(
                REPLICAS,
                drafted_at=self.counters[0].copy(),
                accepted_at=self.counters[1].copy(),
                weight_version=np.full(REPLICAS, self.version),
            ),
            now_s=self.tick * TICK_S,
            trainer=TrainerSignal(weight_version=self.version),
        )

    def decode(self, row: int, drafted: int, iterations: int) -> None:
        """Count what `iterations` of `drafted` positions propose and accept."""
        going = int(self.batch()[row]) * iterations
        self.counters[0, row, :drafted] += going
        for position, chance in enumerate(self.acceptance()[row, :drafted]):
            going = int(self.draws.binomial(going, chance))
            self.counters[1, row, position] += going

    def step(self) -> None:
        """The world goes on."""
        self.tick += 1
        self.lost += LOSS_PER_TICK
        if self.tick % STEP_TICKS == 0:
            self.version += 1
            self.lost += LOSS_PER_VERSION
        if self.fate.random() < 1 / REFRESH_TICKS:
            self.lost = 0.0


def verify_s(batch: float, drafted: int) -> float:
    """Seconds of one iteration with so many drafted positions."""
    return FIXED_S + PER_SEQUENCE_S * (drafted + 1) * batch + DRAFT_TOKEN_S * drafted


@dataclass(frozen=True)
class Earned:
    """Mean speed relative to plain decoding, over replicas and time."""

    chosen: float
    """What the estimator's K earned, probes included."""
    oracle: float
    """What the best K of every moment would have earned."""
    fixed: np.ndarray
    """(k+1,) what every constant K would have."""


def run(shape: np.ndarray, seed: int, steps: int) -> Earned:
    """Let the estimator choose K at every tick and replica."""
    world, estimator = World(shape, seed), DiscountedAcceptance(positions=DEEPEST)
    costs = np.full(REPLICAS, FIXED_S), np.full(REPLICAS, PER_SEQUENCE_S), DRAFT_TOKEN_S
    since_full = PROBE_TICKS * np.arange(REPLICAS) // REPLICAS
    chosen, oracle, fixed = [], [], []
    for _ in range(steps * STEP_TICKS):
        seen = world.seen()
        estimator.observe(seen)
        believed, batch = estimator.forecast(seen).acceptance, world.batch()
        drafted, _ = best_draft_tokens(believed, batch, *costs, DEEPEST)
        true_speed = speed_up(world.acceptance(), batch, *costs)
        earned = true_speed[np.arange(REPLICAS), drafted]
        for row in range(REPLICAS):
            since_full[row] = 0 if drafted[row] == DEEPEST else since_full[row] + 1
            time_s = TICK_S
            if since_full[row] > PROBE_TICKS:
                since_full[row] = 0
                probe_s = verify_s(batch[row], DEEPEST)
                world.decode(row, DEEPEST, 1)
                time_s -= probe_s
                earned[row] += (probe_s / TICK_S) * (true_speed[row, DEEPEST] - earned[row])
            k = int(drafted[row])
            world.decode(row, k, round(time_s / verify_s(batch[row], k)))
        chosen.append(earned)
        oracle.append(true_speed.max(axis=1))
        fixed.append(true_speed)
        world.step()
    return Earned(float(np.mean(chosen)), float(np.mean(oracle)), np.mean(fixed, axis=(0, 1)))
