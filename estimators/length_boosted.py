"""The survival forecast of `length`, corrected by gradient-boosted trees that see what it ignores.

1. `SurvivalLength` learns and forecasts.
2. Trajectories are remembered in the middle of their lives (`_snapshots`): the forecast quantiles,
   the age, the group's finished (mean, largest, number) and alive, the prompt's length.
3. When one ends, log(written since / forecast quantile) is the target of each quantile.  What was
   cut off would have written more: how much is drawn from its own forecast beyond the cut, by a
   hash of its id.  Dropping the cut off would teach short lengths.
4. When a step begins, the rows of the last `WINDOW` steps are fitted in a thread (`_boosting`); the
   correction holds from the next such step on, which waits for the thread if need be.  So answers
   depend on the observations alone, never on how fast the thread was.

Trees recalibrate by group and age what one curve for all cannot.  Corrections are relative to the
survival forecast, shrunk and cross-fitted, so that weak evidence costs little.

After histogram gradient boosting (LightGBM, Ke et al. 2017; scikit-learn), fed with survival
forecasts; ranks are what schedulers need (vllm-ltr, NeurIPS 2024).
"""

from dataclasses import dataclass, field, replace

import numpy as np

from steersman.estimators._boosting import UNKNOWN, Background, Training, finished_siblings
from steersman.estimators._snapshots import Rows, Snapshots, uniform
from steersman.estimators.contract import LengthEstimator, State
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.length import SurvivalLength
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Bools, Floats, Ints, Observation

WINDOW = 6
"""Steps in a fit; ten were not better."""
ALARM = 0.5
"""Evidence kept below which what the trees have learned is dropped: an alarm, more than a doubt."""
DIGITS = 3
"""Of features: a thousandth of a log token, so that the saved rows stay short."""
SPENT = np.log(-np.log1p(-np.array(QUANTILES)))
"""Log cumulative hazard at the quantiles."""
FURTHEST = 20.0
"""Largest log hazard of a draw; forecasts whose quantiles coincide at the cap give more."""
MEAN_WEIGHTS = np.array([0.3, 0.4, 0.3])
"""Swanson's rule: the mean of a skewed distribution from its 10 %, 50 % and 90 % points."""
DRAW = 1 << 40
"""Salt: beyond all ages, so that the draws have nothing to do with which rows were kept."""


@dataclass
class BoostedLength:
    """The estimator of the module's docstring."""

    memory_steps: float = 6.0
    """Of the survival forecast: weight versions after which 63 % are forgotten."""
    max_prompts: int = 1_000_000
    """Prompts remembered, the longest unseen forgotten first."""
    refit_every: int = 1
    """Steps from one fit of the trees to the next."""

    _base: SurvivalLength = field(init=False)
    _snapshots: Snapshots = field(default_factory=Snapshots, init=False)
    _steps: list[Training] = field(init=False)
    """What was resolved in each of the last steps; the last one is still open."""
    _clock: int | None = field(default=None, init=False)
    """Newest step or weight version seen."""
    _begun: int = field(default=0, init=False)
    """Times it advanced.  In the first step forecasts tell nothing, nor do errors of theirs."""
    _coming: "_Fit | None" = field(default=None, init=False)
    """What is being fitted."""
    _holds: "_Fit | None" = field(default=None, init=False)
    """What corrects the forecasts now."""
    _seen: tuple[Observation, LengthForecast, Floats] | None = field(default=None, init=False)
    """The last observation, its survival forecast, the features of its alive rows."""

    def __post_init__(self) -> None:
        if self.refit_every < 1:
            raise InvalidInputError(f"refit_every is {self.refit_every}; valid: 1 or more")
        self._base = SurvivalLength(memory_steps=self.memory_steps, max_prompts=self.max_prompts)
        self._steps = [Training.none()]

    def observe(self, observation: Observation) -> None:
        """Let the survival model learn, take targets from what ended, remember who is alive."""
        clock = max(observation.trainer.step, observation.trainer.weight_version)
        if self._clock is None:
            self._clock = clock
        if clock > self._clock:
            self._begin(clock)
        self._base.observe(observation)
        resolved = self._snapshots.resolve(observation.ended)
        if resolved is not None:
            self._steps[-1] = self._steps[-1].add(_targets(*resolved))
        forecast = self._base.forecast(observation)
        alive = np.flatnonzero(observation.trajectories.phase != Phase.ENDED)
        features = _features(observation, forecast, alive)
        if self._begun:
            self._snapshots.take(observation, alive, features)
        self._seen = observation, forecast, features

    def forecast(self, observation: Observation) -> LengthForecast:
        """As `SurvivalLength` says, corrected once something is fitted."""
        alive = np.flatnonzero(observation.trajectories.phase != Phase.ENDED)
        if self._seen is not None and self._seen[0] is observation:
            _, forecast, features = self._seen
        else:
            forecast = self._base.forecast(observation)
            features = _features(observation, forecast, alive)
        if self._holds is None or not len(alive):
            return forecast
        factor = self._holds.fit.result().log_factor(features)
        return _corrected(observation, forecast, alive, features[:, : len(QUANTILES)] + factor)

    def surprises(self) -> Floats:
        """Of the survival model."""
        return self._base.surprises()

    def reset_on_drift(self, keep: float) -> None:
        """The survival model doubts; at an alarm the trees and their rows are dropped."""
        self._base.reset_on_drift(keep)
        if keep < ALARM:
            self._steps, self._coming, self._holds = [Training.none()], None, None

    def health(self) -> dict[str, float]:
        """Of the survival model, and the rows that the trees may learn from."""
        rows = sum(len(step) for step in self._steps)
        return {**self._base.health(), "boosting_rows": float(rows)}

    def state_dict(self) -> State:
        """The survival model, and the rows that the trees are grown from anew."""
        return {
            "base": self._base.state_dict(),
            "snapshots": self._snapshots.state_dict(),
            "steps": [step.state_dict() for step in self._steps],
            "clocks": [self._clock, self._begun],
            "fits": [fit and fit.before for fit in (self._coming, self._holds)],
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned; the trees grow in the background."""
        self._base.load_state_dict(state["base"])
        self._snapshots.load_state_dict(state["snapshots"])
        self._steps = [Training.from_state(step) for step in state["steps"]]
        self._clock, self._begun = state["clocks"]
        self._coming, self._holds = (
            None if before is None else self._fit(before) for before in state["fits"]
        )
        self._seen = None

    def _begin(self, clock: int) -> None:
        """A step begins: what was fitted holds, and what the last steps told is fitted."""
        self._clock = clock
        self._begun += 1
        self._steps = [*self._steps, Training.none()][-(WINDOW + 2 * self.refit_every + 1) :]
        if self._begun % self.refit_every == 0:
            self._holds, self._coming = self._coming, self._fit(self._begun)

    def _fit(self, before: int) -> "_Fit | None":
        """Of the steps that ended before so many had begun."""
        last = len(self._steps) - 1 - (self._begun - before)
        rows = Training.none()
        for step in self._steps[max(last - WINDOW, 0) : max(last, 0)]:
            rows = rows + step
        return _Fit(before, Background(rows)) if rows.suffices() else None


@dataclass(frozen=True)
class _Fit:
    """A correction in the making."""

    before: int
    """It rests on the steps that had ended when so many had begun."""
    fit: Background


def _features(observation: Observation, forecast: LengthForecast, alive: Ints) -> Floats:
    """(len(alive), 9) log quantiles of what remains, log age, finished siblings relative to the
    median, their number, the alive, log prompt length."""
    t = observation.trajectories
    remaining = np.log(np.maximum(forecast.remaining_tokens[alive], 1.0))
    log_age = np.log(np.maximum(t.generated_tokens[alive], 1))
    total = np.logaddexp(log_age, remaining[:, 1])
    siblings = finished_siblings(observation)[t.group_row[alive]]
    known = siblings[:, 2:3] > 0
    siblings[:, :2] = np.where(known, siblings[:, :2] - total[:, None], UNKNOWN)
    prompt = np.log(np.maximum(t.prompt_tokens[alive], 1))
    return np.round(np.column_stack((remaining, log_age, siblings, prompt)), DIGITS)


def _targets(rows: Rows, more: Ints, cut: Bools) -> Training:
    """Of n resolved snapshots: how far the truth lay from each forecast quantile."""
    quantiles = rows.features[:, : len(QUANTILES)]
    written = np.log(np.maximum(more, 1))
    drawn = -np.log1p(-uniform(rows.trajectory_id[cut], DRAW))
    beyond = _log_amount(np.exp(_log_hazard(written[cut], quantiles[cut])) + drawn, quantiles[cut])
    written[cut] = np.clip(beyond, written[cut], np.log(np.maximum(rows.left[cut], 1)))
    return Training(
        rows.features,
        np.round(written[:, None] - quantiles, DIGITS),
        rows.group_id,
        uniform(rows.trajectory_id, rows.age + 2 * DRAW),
    )


def _log_hazard(log_amount: Floats, quantiles: Floats) -> Floats:
    """(n,) of a Weibull curve, in two pieces, through the (n, 3) log quantiles."""
    off = log_amount - quantiles[:, 1]
    hazard = SPENT[1] + off / _slope(off < 0, quantiles)
    return np.asarray(np.clip(hazard, -FURTHEST, FURTHEST))


def _log_amount(hazard: Floats, quantiles: Floats) -> Floats:
    """The inverse, of the hazard itself."""
    off = np.log(np.maximum(hazard, np.exp(-FURTHEST))) - SPENT[1]
    return np.asarray(quantiles[:, 1] + off * _slope(off < 0, quantiles))


def _slope(lower: Bools, quantiles: Floats) -> Floats:
    """Log amount per log hazard on either side of the median."""
    slopes = np.maximum(np.diff(quantiles, axis=1), 1e-3) / np.diff(SPENT)
    return np.asarray(np.where(lower, slopes[:, 0], slopes[:, 1]))


def _corrected(
    observation: Observation, forecast: LengthForecast, alive: Ints, quantiles: Floats
) -> LengthForecast:
    """With these log quantiles for the rows `alive`, and the mean moved along."""
    t = observation.trajectories
    left = np.maximum(t.max_new_tokens - t.generated_tokens, 0)[alive].astype(np.float64)
    least = np.minimum(left, 1.0)
    tokens, mean = forecast.remaining_tokens.copy(), forecast.mean_remaining_tokens.copy()
    before = tokens[alive] @ MEAN_WEIGHTS
    amounts = np.ceil(np.exp(np.sort(quantiles, axis=1)))
    tokens[alive] = np.clip(amounts, least[:, None], left[:, None])
    ratio = (tokens[alive] @ MEAN_WEIGHTS) / np.maximum(before, 0.1)
    mean[alive] = np.clip(mean[alive] * ratio, least, left)
    return replace(forecast, remaining_tokens=tokens, mean_remaining_tokens=mean)


PLUGIN: type[LengthEstimator] = BoostedLength
