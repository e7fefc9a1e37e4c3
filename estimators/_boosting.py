"""Gradient-boosted corrections of quantile forecasts, with a background thread to fit them in.

Target: log of what was still written minus log of its forecast quantile; a quantile model of that
would be 0 everywhere if the forecast could not be bettered.  Rows are split into `FOLDS` by group;
each fold's model is grown without it, answers are averages over the models, times `TRUST`, plus
the shift that makes the residuals outside the fold have the right quantile (cross-conformal, Barber
et al. 2021).  Few small trees (scikit-learn's histogram gradient boosting): rows are thousands,
noise is large.
"""

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from steersman.estimators._snapshots import uniform
from steersman.estimators.contract import State
from steersman.estimators.forecast import QUANTILES
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

FOLDS, TRUST = 3, 0.7
"""Of trust 0.5, 0.7, 1: more gains on long chains of thought and loses on short answers."""
TREES, LEAVES, LEAF_ROWS = 30, 8, 200
"""Half the size of the usual; 60 trees of 15 leaves lost 2-3 % pinball against these."""


FEWEST = 500
"""Rows below which nothing is fitted.  Chosen by judgement: other values were not tried."""
STEP_ROWS = 2000
"""Of one step: a fit of six such steps takes half a second."""
_ONE_FIT = threading.Lock()
"""scikit-learn sets the process's warning filters while it fits: two at once mix them up."""
UNKNOWN = -20.0
"""Below every log length: trees can tell it apart, and NaN throughout a column they refuse."""


@dataclass(frozen=True)
class Training:
    """n rows to grow trees from."""

    features: Floats
    """(n, f)"""
    excess: Floats
    """(n, 3) log of what was written since, less the log of each forecast quantile."""
    group_id: Ints
    priority: Floats
    """(n,) in [0, 1), a hash: of too many rows the lowest stay, a fair sample."""

    @classmethod
    def none(cls) -> "Training":
        """No row."""
        return cls(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=np.int64), np.zeros(0))

    def __len__(self) -> int:
        return len(self.priority)

    def __add__(self, other: "Training") -> "Training":
        if not len(self):
            return other
        if not len(other):
            return self
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Training(*(np.concatenate(pair) for pair in pairs))

    def add(self, other: "Training") -> "Training":
        """Both, but `STEP_ROWS` at most."""
        both = self + other
        kept = np.sort(np.argsort(both.priority, kind="stable")[:STEP_ROWS])
        return Training(*(column[kept] for column in vars(both).values()))

    @property
    def fold(self) -> Ints:
        """(n,) 0 .. FOLDS - 1, the same for a group's rows."""
        return (uniform(self.group_id) * FOLDS).astype(np.int64)

    def suffices(self) -> bool:
        """Whether there are enough rows, in every fold."""
        smallest = np.bincount(self.fold, minlength=FOLDS).min()
        return len(self) >= FEWEST and bool(10 * smallest >= len(self))

    def state_dict(self) -> State:
        """As lists."""
        return {name: column.tolist() for name, column in vars(self).items()}

    @classmethod
    def from_state(cls, state: State) -> "Training":
        """The inverse of `state_dict`."""
        if not state["priority"]:
            return cls.none()
        return cls(
            np.array(state["features"], dtype=np.float64),
            np.array(state["excess"], dtype=np.float64),
            np.array(state["group_id"], dtype=np.int64),
            np.array(state["priority"], dtype=np.float64),
        )


@dataclass(frozen=True)
class Correction:
    """By quantile: the folds' models and the shift."""

    models: list[list[Any]]
    shifts: list[float]

    def log_factor(self, features: Floats) -> Floats:
        """(n, 3) what to add to the log of the forecast quantiles of what remains."""
        pairs = zip(self.models, self.shifts, strict=True)
        return np.stack([_answer(models, features) + shift for models, shift in pairs], axis=1)


def fit(rows: Training) -> Correction:
    """As the module's docstring says."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    models, shifts, features, fold = [], [], rows.features, rows.fold
    with threadpool_limits(1, user_api="openmp"):  # the other cores have their own work
        for column, level in enumerate(QUANTILES):
            y, outside = rows.excess[:, column], np.zeros(len(rows))
            grown_here = []
            for number in range(FOLDS):
                own = fold == number
                model = grown(features[~own], y[~own], level)
                outside[own] = _answer([model], features[own])
                grown_here.append(model)
            models.append(grown_here)
            shifts.append(_widening(float(np.quantile(y - outside, level)), level))
    return Correction(models, shifts)


def grown(features: Floats, target: Floats, level: float) -> Any:
    """One quantile model.  Its own subsampling has a fixed seed: same rows, same model."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=level,
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=min(LEAF_ROWS, max(len(target) // 20, 1)),
        early_stopping=False,
        random_state=0,
    )
    with _ONE_FIT:
        return model.fit(features, target)


def finished_siblings(observation: Observation) -> Floats:
    """(g, 4) mean and largest log length of each group's ended members, their number (0: the others
    are `UNKNOWN`), and the number of those alive."""
    t, count = observation.trajectories, len(observation.groups)
    over = t.phase == Phase.ENDED
    length = np.log(np.maximum(t.generated_tokens[over], 1))
    row = t.group_row[over]
    number = np.bincount(row, minlength=count)
    mean = np.bincount(row, weights=length, minlength=count) / np.maximum(number, 1)
    largest = np.full(count, -np.inf)
    np.maximum.at(largest, row, length)
    unknown = number == 0
    mean[unknown] = largest[unknown] = UNKNOWN
    alive = np.bincount(t.group_row[~over], minlength=count)
    return np.column_stack((mean, largest, number, alive))


class Background:
    """A fit in a thread of its own, which ends with it and is joined before the object goes."""

    def __init__(self, rows: Training) -> None:
        self._answers: list[Correction] = []
        self._errors: list[Exception] = []
        thread = threading.Thread(
            target=_run, args=(rows, self._answers, self._errors), name="steersman-length-fit"
        )
        thread.start()
        self._join = weakref.finalize(self, thread.join)

    def result(self) -> Correction:
        """Waits if need be; raises what the fit raised."""
        self._join()
        if self._errors:
            raise self._errors[0]
        return self._answers[0]


def _run(rows: Training, answers: list[Correction], errors: list[Exception]) -> None:
    try:
        answers.append(fit(rows))
    except Exception as error:
        errors.append(error)


def _widening(shift: float, level: float) -> float:
    """The shift, but towards the median 0: where the quantile is the cap, nothing exceeds it, so
    that coverage beyond the level is right."""
    if level == 0.5:
        return shift
    return max(shift, 0.0) if level > 0.5 else min(shift, 0.0)


def _answer(models: list[Any], features: Floats) -> Floats:
    total = np.sum([model.predict(features) for model in models], axis=0)
    return np.asarray(TRUST * total / len(models))
