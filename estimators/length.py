"""Remaining length: a log-length location per prompt, and a survival curve of what is left.

log(length) = level + offset of the prompt + residual.

1. *Level* and total variance: a survival curve with forgetting (`_hazard`) of log length itself.
2. *Offset*: normal prior N(0, tau^2) plus the prompt's finished trajectories (earlier steps and
   this one), plus every sibling that is still alive, as a right-censored observation: a few Newton
   steps on the Tobit likelihood (Tobin 1958).  Leaving the alive out would call every prompt short
   until its long trajectories have ended.
3. *Residual*: a second curve, over residuals divided by their predictive deviation.  A trajectory
   adds exposure from tick to tick at the location that was believed then, so the curve is learned
   exactly as it is used, and makes good what the location gets wrong on average.
4. *Quantile* q of a trajectory of age a: solve S(L) = (1 - q) S(a), cap it, subtract a.

Stop decisions, restarts and token caps censor; they never count as a length.  It is wrong when the
lengths of one prompt have two modes (short and long), and for a prompt whose habit just changed.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._hazard import SPAN, Hazard, normal_hazard
from steersman.estimators._prompts import PromptTable
from steersman.estimators.contract import LengthEstimator, State
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

NEWTON_STEPS = 4
"""Leave an error below 1e-6 (3: 0.003) at 10,000 trajectories, where each costs 0.4 ms."""
PROMPT_SHARE = 0.5
"""Share of the variance of log length that is between prompts, the rest is within.  TailSieve
(arXiv 2608.22788) found 0.65.  The curve makes good an error on average, so that it costs mainly
sharpness; prompts that are new and prompts that are well known then err in opposite directions."""
STALE_SHIFT, STALE_KEEP = 0.2, 0.3
"""When the level has moved by the first since the residuals' curve was last cut, this share of the
curve is kept: what it holds was learned around another centre (in a run's first step above all)."""
LEVEL_BEFORE_DATA, DEVIATION_BEFORE_DATA = 6.0, 1.0
DRIFT_PER_STEP = 0.002
"""Variance of log length that a prompt's offset gains per trainer step (weights move on)."""
MEAN_NODES = np.array([0.0469, 0.2308, 0.5, 0.7692, 0.9531])
MEAN_WEIGHTS = np.array([0.1185, 0.2393, 0.2844, 0.2393, 0.1185])
"""Gauss-Legendre on (0, 1): the mean as an average of quantiles."""


@dataclass
class _Location:
    """Where log length is expected, per trajectory: mean and predictive deviation."""

    mean: Floats
    stretch: Floats
    """Predictive deviation over the residuals' own (1: the offset is known exactly)."""

    def residual(self, log_tokens: Floats) -> Floats:
        return (log_tokens - self.mean) / self.stretch

    def tokens(self, residual: Floats) -> Floats:
        return np.asarray(np.exp(np.minimum(self.mean + residual * self.stretch, SPAN)))


@dataclass
class SurvivalLength:
    """The estimator of the module's docstring."""

    memory_steps: float = 6.0
    """Trainer steps after which the survival curve has forgotten 63 %; small follows drift."""
    max_prompts: int = 50_000
    """Prompts remembered, the longest unseen forgotten first; 32 bytes each."""

    _lengths: Hazard = field(default_factory=lambda: Hazard(centre=LEVEL_BEFORE_DATA), init=False)
    _residuals: Hazard = field(default_factory=lambda: Hazard(lowest=-SPAN / 2), init=False)
    _prompts: PromptTable = field(init=False)
    _step: int = field(default=0, init=False)
    _level: float = field(default=LEVEL_BEFORE_DATA, init=False)
    _cut_level: float = field(default=LEVEL_BEFORE_DATA, init=False)
    """Level at the residuals' last cut."""
    _deviation: float = field(default=DEVIATION_BEFORE_DATA, init=False)
    """Of log length over all trajectories."""
    _seen_id: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)
    """Trajectories of the last observation, with their age and location then."""
    _seen: Floats = field(default_factory=lambda: np.zeros((3, 0)), init=False)

    def __post_init__(self) -> None:
        self._prompts = PromptTable(self.max_prompts)

    def observe(self, observation: Observation) -> None:
        """Age the survivors, count the ended, remember where everyone stands now."""
        self._forget(observation.trainer.step)
        self._age(observation)
        self._learn_ended(observation)
        t = observation.trajectories
        alive = t.phase != Phase.ENDED
        location = self._locate(observation)
        self._seen_id = t.trajectory_id[alive]
        self._seen = np.stack((_log(t.generated_tokens), location.mean, location.stretch))[:, alive]

    def forecast(self, observation: Observation) -> LengthForecast:
        """Quantiles and mean of what is left; uniform over the cap while nothing has finished."""
        t = observation.trajectories
        left = np.maximum(t.max_new_tokens - t.generated_tokens, 0).astype(np.float64)
        left[t.phase == Phase.ENDED] = 0.0
        if self._lengths.events.sum() < 1.0:
            return LengthForecast(left[:, None] * np.array(QUANTILES), left * 0.5)
        location = self._locate(observation)
        cumulative, edges = self._residuals.cumulative(), self._residuals.edges
        spent = np.interp(location.residual(_log(t.generated_tokens)), edges, cumulative)

        def quantile(q: float) -> Floats:
            tokens = location.tokens(np.interp(spent - math.log1p(-q), cumulative, edges))
            more = np.ceil(tokens) - t.generated_tokens
            return np.asarray(np.clip(more, np.minimum(left, 1.0), left))

        levels = {q: quantile(q) for q in (*QUANTILES, *MEAN_NODES.tolist())}
        mean = sum(w * levels[q] for w, q in zip(MEAN_WEIGHTS, MEAN_NODES.tolist(), strict=True))
        # the weights add up to 1 only up to rounding
        return LengthForecast(
            np.stack([levels[q] for q in QUANTILES], axis=1), np.minimum(mean, left)
        )

    def reset_on_drift(self, keep: float) -> None:
        """Forget all but `keep` of the curves and of every prompt's weight."""
        self._lengths.scale(keep)
        self._residuals.scale(keep)
        self._prompts.count *= keep

    def state_dict(self) -> State:
        """The curves, the prompts, the scale, and where everyone stood last."""
        return {
            "step": self._step,
            "scale": [self._level, self._deviation, self._cut_level],
            "lengths": [self._lengths.events.tolist(), self._lengths.exposure.tolist()],
            "residuals": [self._residuals.events.tolist(), self._residuals.exposure.tolist()],
            "prompt_keys": self._prompts.keys.tolist(),
            "prompt_count": self._prompts.count.tolist(),
            "prompt_mean": self._prompts.mean.tolist(),
            "prompt_last_step": self._prompts.last_step.tolist(),
            "seen_id": self._seen_id.tolist(),
            "seen": self._seen.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._step = int(state["step"])
        self._level, self._deviation, self._cut_level = state["scale"]
        self._lengths.events, self._lengths.exposure = np.array(state["lengths"])
        self._residuals.events, self._residuals.exposure = np.array(state["residuals"])
        self._prompts = PromptTable(
            self.max_prompts,
            np.array(state["prompt_keys"], dtype=np.int64),
            np.array(state["prompt_count"], dtype=np.float64),
            np.array(state["prompt_mean"], dtype=np.float64),
            np.array(state["prompt_last_step"], dtype=np.int64),
        )
        self._seen_id = np.array(state["seen_id"], dtype=np.int64)
        self._seen = np.array(state["seen"], dtype=np.float64).reshape(3, -1)

    def _forget(self, step: int) -> None:
        if step > self._step:
            keep = math.exp(-(step - self._step) / self.memory_steps)
            self._lengths.scale(keep)
            self._residuals.scale(keep)
        self._step = max(step, self._step)

    def _age(self, observation: Observation) -> None:
        """Exposure of those that were alive at the last observation and still are."""
        t = observation.trajectories
        seen, rows = _match(self._seen_id, t.trajectory_id[t.phase != Phase.ENDED])
        now = _log(t.generated_tokens[t.phase != Phase.ENDED][rows])
        self._expose(self._seen[:, seen], now)

    def _expose(self, before: Floats, now: Floats) -> None:
        location = _Location(before[1], before[2])
        self._lengths.add_exposure(before[0], now)
        self._residuals.add_exposure(location.residual(before[0]), location.residual(now))

    def _learn_ended(self, observation: Observation) -> None:
        """Exposure since they were last seen, their events, and their prompts' means."""
        e = observation.ended
        if not len(e):
            return
        length = _log(e.generated_tokens)
        order = np.argsort(e.trajectory_id)
        seen, rows = _match(self._seen_id, e.trajectory_id[order])
        before = np.zeros((3, len(e)))
        before[:, order[rows]] = self._seen[:, seen]
        self._lengths.add_exposure(before[0], length)
        self._lengths.add_events(length[~e.censored])
        self._refresh_scale()
        offset, precision = self._prior(e.prompt_key)
        new = before[2] == 0.0
        before[1] = np.where(new, self._level + offset, before[1])
        before[2] = np.where(new, self._stretch(1 / precision), before[2])
        location = _Location(before[1], before[2])
        end = location.residual(length)
        self._residuals.add_exposure(location.residual(before[0]), end)
        self._residuals.add_events(end[~e.censored])
        self._remember_prompts(observation, before[1])

    def _remember_prompts(self, observation: Observation, location: Floats) -> None:
        """Fold lengths into their prompts; a censored one as its expectation beyond the cut."""
        e, within = observation.ended, self._within
        length = _log(e.generated_tokens)
        beyond = location + within * normal_hazard((length - location) / within)
        value = np.where(e.censored, np.maximum(beyond, length), length)
        self._prompts.add(e.prompt_key, value, self._step, DRIFT_PER_STEP / within**2)

    def _refresh_scale(self) -> None:
        if self._lengths.events.sum() < 1.0:
            return
        low, middle, high = self._lengths.quantiles(np.array([0.25, 0.5, 0.75])).tolist()
        self._level = middle
        self._deviation = min(max((high - low) / 1.349, 0.2), 2.0)
        if abs(middle - self._cut_level) > STALE_SHIFT:
            self._residuals.scale(STALE_KEEP)
            self._cut_level = middle

    @property
    def _within(self) -> float:
        """Deviation of log length among the trajectories of one prompt."""
        return self._deviation * math.sqrt(1 - PROMPT_SHARE)

    def _prior(self, keys: Ints) -> tuple[Floats, Floats]:
        """(m,) offset of each prompt and its precision, from finished trajectories alone."""
        p = self._prompts
        offset, precision = (
            np.zeros(len(keys)),
            np.full(len(keys), 1 / (PROMPT_SHARE * self._deviation**2)),
        )
        rows = p.find(keys)
        known = np.flatnonzero(rows >= 0)
        rows = rows[known]
        age = self._step - p.last_step[rows]
        count = np.maximum(p.count[rows], 1e-6)
        seen = 1.0 / (self._within**2 / count + DRIFT_PER_STEP * age)
        precision[known] += seen
        offset[known] = seen * (p.mean[rows] - self._level) / precision[known]
        return offset, precision

    def _locate(self, observation: Observation) -> _Location:
        """(n,) location of every trajectory's log length, its siblings alive counted."""
        t, g = observation.trajectories, observation.groups
        prior, prior_precision = self._prior(g.prompt_key)
        alive = np.flatnonzero((t.phase != Phase.ENDED) & (t.generated_tokens > 0))
        group, log_age = t.group_row[alive], _log(t.generated_tokens[alive])
        offset, precision, s = prior.copy(), prior_precision, self._within
        for _ in range(NEWTON_STEPS if len(alive) else 0):
            z = (log_age - self._level - offset[group]) / s
            hazard = normal_hazard(z)
            pull = np.bincount(group, weights=hazard / s, minlength=len(g))
            curvature = hazard * (hazard - z) / s**2
            precision = prior_precision + np.bincount(group, curvature, minlength=len(g))
            step = ((prior - offset) * prior_precision + pull) / precision
            offset += np.clip(step, -1.5, 1.5)
        return _Location(
            self._level + offset[t.group_row], self._stretch(1 / precision)[t.group_row]
        )

    def _stretch(self, variance: Floats) -> Floats:
        return np.asarray(np.sqrt(1.0 + variance / self._within**2))


def _log(tokens: Ints) -> Floats:
    return np.log(np.maximum(tokens, 1).astype(np.float64))


def _match(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Rows of the ids that two sorted arrays share."""
    if not len(left):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    at = np.minimum(np.searchsorted(left, right), len(left) - 1)
    rows = np.flatnonzero(left[at] == right)
    return at[rows], rows


PLUGIN: type[LengthEstimator] = SurvivalLength
