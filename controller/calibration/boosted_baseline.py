"""Gradient-boosted quantiles of the remaining length on plain features, no survival model.

Trajectories are remembered in the middle of their lives (`_snapshots`); what each still wrote is
the target, those cut off before their cap are dropped, as is common.  At each new step, three
quantile models (scikit-learn) are refitted on the rows completed in the last `STEPS` steps.

Features: log age, log of what the cap leaves, mean log length and number of the prompt's completed
trajectories before this step, mean, largest and number of the group's completed log lengths, number
of its members alive.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.controller.calibration.plain import Plain, within_cap
from steersman.estimators._boosting import UNKNOWN, finished_siblings, grown
from steersman.estimators._snapshots import Snapshots
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

STEPS = 6
FEWEST = 300
"""Rows from which a fit is worth anything; before, the cap's quantiles are answered."""


@dataclass
class BoostedBaseline(Plain):
    """The baseline of the module's docstring."""

    _snapshots: Snapshots = field(default_factory=Snapshots, init=False)
    _rows: list[tuple[int, Floats, Floats]] = field(default_factory=list, init=False)
    """Step of completion, features (n, f), log of the tokens still written (n,)."""
    _prompts: dict[int, tuple[float, int]] = field(default_factory=dict, init=False)
    """Sum and number of the completed log lengths before this step."""
    _news: list[tuple[int, float]] = field(default_factory=list, init=False)
    """Prompt and log length of this step's completed ones."""
    _models: list[Any] = field(default_factory=list, init=False)
    _step: int = field(default=0, init=False)

    def observe(self, observation: Observation) -> None:
        """Remember, complete, and refit at a new step."""
        if observation.trainer.step > self._step:
            self._begin(observation.trainer.step)
        resolved = self._snapshots.resolve(observation.ended)
        if resolved is not None:
            rows, more, cut = resolved
            target = np.log(np.maximum(more[~cut], 1))
            self._rows.append((self._step, rows.features[~cut], target))
        e = observation.ended
        whole = np.flatnonzero(~e.censored)
        lengths = np.log(np.maximum(e.generated_tokens[whole], 1))
        self._news += zip(e.prompt_key[whole].tolist(), lengths.tolist(), strict=True)
        alive = np.flatnonzero(observation.trajectories.phase != Phase.ENDED)
        self._snapshots.take(observation, alive, self._features(observation, alive))

    def forecast(self, observation: Observation) -> LengthForecast:
        """Uniform over the cap while nothing is fitted."""
        t = observation.trajectories
        tokens = (t.max_new_tokens - t.generated_tokens)[:, None] * np.array(QUANTILES)
        alive = np.flatnonzero(t.phase != Phase.ENDED)
        if self._models and len(alive):
            x = self._features(observation, alive)
            tokens[alive] = np.exp(np.stack([m.predict(x) for m in self._models], axis=1))
        return within_cap(observation, tokens)

    def _begin(self, step: int) -> None:
        for key, length in self._news:
            total, count = self._prompts.get(key, (0.0, 0))
            self._prompts[key] = (total + length, count + 1)
        self._news = []
        self._rows = [row for row in self._rows if row[0] > self._step - STEPS]
        self._step = step
        if sum(len(target) for _, _, target in self._rows) >= FEWEST:
            x = np.concatenate([features for _, features, _ in self._rows])
            y = np.concatenate([target for _, _, target in self._rows])
            self._models = [grown(x, y, level) for level in QUANTILES]

    def _features(self, observation: Observation, alive: Ints) -> Floats:
        t, g = observation.trajectories, observation.groups
        known = [self._prompts.get(key, (UNKNOWN, 0)) for key in g.prompt_key.tolist()]
        total, count = np.array(known, dtype=np.float64).reshape(-1, 2).T
        siblings = finished_siblings(observation)
        by_group = np.column_stack((total / np.maximum(count, 1), count, siblings))
        left = np.maximum(t.max_new_tokens - t.generated_tokens, 1)
        own = np.log(np.column_stack((np.maximum(t.generated_tokens, 1), left)))
        return np.concatenate((own[alive], by_group[t.group_row[alive]]), axis=1)
