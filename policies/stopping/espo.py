"""Stop a trajectory whose tokens keep falling short of the likeliest ones, as a failure.

ESPO (arXiv 2605.29860).  The regret of a token is the log-probability of the likeliest token less
that of the one drawn.  Per token, g~ = clip((regret - mean) / sqrt(variance), +-c) and
z <- .9 z + .1 g~; a trajectory is stopped when z > beta * max(V, 0.2), with V the critic's value.
Mean and variance are moving averages (.99) over rollouts, frozen during one; after each,
beta <- clip(beta + .1 (share stopped - .25)), from 7.  Nothing is stopped during a warm-up.
A stopped trajectory is an absorbing failure.

**The trainer must give it the reward of a failed one** (ESPO: -1).  Then the samples are unbiased
for the task in which being stopped is failing: correctness class modified.  A trainer that scores
the cut answer, or leaves it out, has a bias that no weight repairs (empirical); in the paper that
cost 2.6 points of 46 on AIME24, and stopping at random as often cost 3.9.  2.7 % of what was
stopped there would have been right.

Seen from outside the engine:

- Log-probabilities must be streamed; where they are not, nothing is stopped.  What arrives is the
  mean regret of the m tokens since the last observation, which moves z as m tokens of that regret
  do: z <- .9^m z + (1 - .9^m) g~.  z is thus looked at once per observation and not at its highest
  point between two, the clip bounds a mean, and a stop comes up to an observation late.  beta makes
  up for the rate, not for the delay.
- The variance is that of a token, the mean of m (regret - mean)^2 over observations of m tokens, as
  if a trajectory's tokens were independent; what trajectories differ by is in it m times.
- V is the forecast probability that a sample of the prompt passes.  It does not look at the state
  of the one trajectory, so all siblings share a threshold, and hard prompts have the lower one.
- The paper's warm-up waits for its critic (forced to end after a tenth of the run).  Ours counts
  steps whose regret was seen.
- The first hundred rollouts weigh alike in the moving averages; by .99 from the start the first
  one alone would stand for most of them.

`keep_probability` (the idea of DUET, arXiv 2605.08441, which keeps 5 %): a running trajectory that
crosses the threshold survives with this probability and is then left alone.  Both sides of the coin
are decisions, said once in the tick of the throw: a stop of propensity 1 - keep_probability, after
which the answer weighs 0, and a continue of propensity keep_probability, after which it weighs the
inverse.  Weighted sums are then unbiased for the task without stopping, and the stopped need no
reward.  The paper keeps none: 0, no draw, weights of 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.policies.contract import StoppingPolicy
from steersman.policies.decision import Action, Decision
from steersman.policies.stopping._memory import Memory

NAME = "espo"
SMOOTHING = 0.9
"""Of z, per token."""
MEMORY = 0.99
"""Of mean and variance, per rollout."""
TINY = 1e-8
"""Added to the variance (the paper's delta)."""
UNDECIDED, STOPPED, SURVIVES = 0.0, 1.0, 2.0
"""Fates of a trajectory."""


@dataclass
class _Rollout:
    """Sums over one trainer step."""

    chunks: float = 0.0
    """Observations of a trajectory that wrote something."""
    tokens: float = 0.0
    regret: float = 0.0
    """Summed over tokens; so is the next."""
    square: float = 0.0
    ended: int = 0
    """Trajectories that ended and whose regret was seen."""
    stopped: int = 0


@dataclass
class Espo:
    """The defaults are the paper's, where it is known to us; `clip` and the bounds are not."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    target_rate: float = 0.25
    """Share of the trajectories of a step that shall be stopped."""
    beta: float = 7.0
    """Threshold at the start, in standard deviations of a token's regret per unit of value."""
    beta_gain: float = 0.1
    """Change of beta per step and unit of (share stopped - target).  It is slow: while nothing is
    stopped beta falls by .025 a step, so that a run of a hundred steps sees little of it."""
    beta_low: float = 0.1
    """beta stays above it, so that z of an average trajectory (0) is never over the threshold."""
    beta_high: float = 50.0
    """beta stays below it: a step in which all is stopped by mistake must not end stopping."""
    clip: float = 10.0
    """Largest |g~|; above `beta`, or prompts of value 1 could not be stopped at the start."""
    use_value: bool = True
    """Whether the threshold grows with the prompt's probability to pass; the paper's regret alone
    gained less (44.8 against 46.3 on AIME24)."""
    value: float = 0.5
    """V where `use_value` is off."""
    value_floor: float = 0.2
    """Least V; also where V is not known."""
    warmup_steps: int = 10
    """Steps with streamed regret before anything is stopped; at least 1, to know the mean."""
    keep_probability: float = 0.0
    """Probability that what crosses the threshold goes on all the same: 0, or in [0.05, 0.95],
    since the guard drops coins with a rarer side."""

    _memory: Memory = field(default_factory=lambda: Memory.of("z", "fate", "heard"), init=False)
    _rollout: _Rollout = field(default_factory=_Rollout, init=False)
    _step: int = field(default=-1, init=False)
    _rollouts: int = field(default=0, init=False)
    """Rollouts that are over and had regret; 0: mean and variance are not known."""
    _beta: float = field(default=0.0, init=False)
    _mean: float = field(default=0.0, init=False)
    _variance: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        good = {
            "0 < target_rate < 1": 0.0 < self.target_rate < 1.0,
            "keep_probability is 0, or 0.05 to 0.95": self.keep_probability == 0.0
            or 0.05 <= self.keep_probability <= 0.95,
            "0 < beta_low <= beta <= beta_high": 0 < self.beta_low <= self.beta <= self.beta_high,
            "clip > 0": self.clip > 0,
            "value_floor > 0": self.value_floor > 0,
            "warmup_steps >= 1": self.warmup_steps >= 1,
        }
        for condition, holds in good.items():
            if not holds:
                raise ValueError(condition)
        self._beta = self.beta

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Stop whatever runs and has crossed the threshold, or throw a coin over it."""
        self._count_ended(observation)
        if observation.trainer.step != self._step:
            self._close_rollout()
            self._step = observation.trainer.step
        t = observation.trajectories
        wrote = self._memory.follow(t)
        news = np.flatnonzero((wrote > 0) & np.isfinite(t.regret))
        self._hear(news, wrote[news], t.regret[news])
        if self._rollouts < self.warmup_steps:
            return []
        value = forecast.success.pass_probability[t.group_row] if self.use_value else self.value
        threshold = np.broadcast_to(self._beta * np.fmax(value, self.value_floor), len(t))
        crossed = news[self._memory.columns["z"][news] > threshold[news]]
        fate, running = self._memory.columns["fate"], observation.running
        if self.keep_probability > 0:  # over what runs, or it could not be told at once
            told = self._draw_fates(np.intersect1d(crossed, running), rng)
        else:
            self._draw_fates(crossed, rng)
            told = running[fate[running] == STOPPED]
        return [self._decision(observation, row, threshold[row]) for row in told.tolist()]

    def _count_ended(self, observation: Observation) -> None:
        """Before the memory forgets whoever has left."""
        ended = observation.ended
        at, known = self._memory.rows(ended.trajectory_id)
        at, cut = at[known], ended.censored[known]
        heard = self._memory.columns["heard"][at] > 0
        self._rollout.ended += int(heard.sum())
        stopped: Bools = self._memory.columns["fate"][at] == STOPPED
        self._rollout.stopped += int((heard & stopped & cut).sum())

    def _hear(self, rows: Ints, wrote: Ints, regret: Floats) -> None:
        r, columns = self._rollout, self._memory.columns
        columns["heard"][rows] = 1.0
        r.chunks += len(rows)
        r.tokens += float(wrote.sum())
        r.regret += float((wrote * regret).sum())
        r.square += float((wrote * regret**2).sum())
        if self._rollouts:
            scaled = (regret - self._mean) / math.sqrt(self._variance + TINY)
            kept = SMOOTHING**wrote
            news = (1.0 - kept) * np.clip(scaled, -self.clip, self.clip)
            columns["z"][rows] = kept * columns["z"][rows] + news

    def _draw_fates(self, rows: Ints, rng: np.random.Generator) -> Ints:
        """The rows whose fate was open."""
        fate = self._memory.columns["fate"]
        rows = rows[fate[rows] == UNDECIDED]
        fate[rows] = STOPPED
        if self.keep_probability > 0:
            fate[rows[rng.random(len(rows)) < self.keep_probability]] = SURVIVES
        return rows

    def _decision(self, observation: Observation, row: int, threshold: float) -> Decision:
        z, keep = self._memory.columns["z"][row], self.keep_probability
        spared = self._memory.columns["fate"][row] == SURVIVES
        verdict = "spared by the coin" if spared else "stopped as failed"
        return Decision(
            trajectory_id=int(observation.trajectories.trajectory_id[row]),
            action=Action.CONTINUE if spared else Action.STOP,
            policy=NAME,
            reason=f"regret {z:.2f}, threshold {threshold:.2f}: {verdict}",
            propensity=keep if spared else 1.0 - keep,
            row=row,
        )

    def _close_rollout(self) -> None:
        r, self._rollout = self._rollout, _Rollout()
        if r.ended and self._rollouts >= self.warmup_steps:
            error = r.stopped / r.ended - self.target_rate
            beta = self._beta + self.beta_gain * error
            self._beta = min(max(beta, self.beta_low), self.beta_high)
        if not r.tokens:
            return
        mean = r.regret / r.tokens
        spread = r.square - 2 * mean * r.regret + mean**2 * r.tokens
        self._rollouts += 1
        weight = max(1.0 - MEMORY, 1.0 / self._rollouts)
        self._mean += weight * (mean - self._mean)
        self._variance += weight * (max(spread, 0.0) / r.chunks - self._variance)

    def state_dict(self) -> dict[str, Any]:
        """The rollout's sums, the statistics, beta, and what is known of each trajectory."""
        return {
            "memory": self._memory.state_dict(),
            "rollout": vars(self._rollout).copy(),
            "step": self._step,
            "rollouts": self._rollouts,
            "beta": self._beta,
            "mean": self._mean,
            "variance": self._variance,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory = Memory.from_state(state["memory"])
        self._rollout = _Rollout(**state["rollout"])
        self._step, self._rollouts = int(state["step"]), int(state["rollouts"])
        self._beta, self._mean = float(state["beta"]), float(state["mean"])
        self._variance = float(state["variance"])


PLUGIN: type[StoppingPolicy] = Espo
