"""Remaining tokens and turns of every live trajectory, calibrated under censoring and drift.

Hierarchical location of log length (level + prompt + visit, by censored likelihood) with a
forgetting survival curve over the residuals, mixed with a survival curve over age alone
(`_survival` has the algorithm, `_location` the hierarchy).  Early in a step the finished are the
short ones: whoever is alive counts as "longer than this", so nobody looks short for having short
siblings only so far.  Stops, restarts, deferrals and caps censor; they never count as a length.

After Seer (arXiv 2511.14617: samples of a prompt share their length), Tobin 1958 (censored
regression), Kaplan & Meier 1958.  The rank of prompts, not their exact length, is what schedulers
need (vllm-ltr, NeurIPS 2024); both come out of the same posterior.

Turns, where trajectories have several, are forecast by a second model of the same kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._location import BETWEEN, WITHIN, Location, LocationModel
from steersman.estimators._outlook import outlook
from steersman.estimators._prompts import PromptTable
from steersman.estimators._survival import Survival, View
from steersman.estimators.contract import LengthEstimator, State
from steersman.estimators.forecast import QUANTILES, LengthForecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation

ALIKE_BEFORE_DATA = BETWEEN / (BETWEEN + WITHIN)
"""Correlation of siblings' log lengths while nothing has finished."""
HALF_TURN = 0.5
"""A trajectory that has finished k turns is in turn k + 1: it takes more than k + 1/2."""


@dataclass
class SurvivalLength:
    """The estimator of the module's docstring."""

    memory_steps: float = 6.0
    """Weight versions after which the curves have forgotten 63 %; small follows drift."""
    max_prompts: int = 1_000_000
    """Prompts remembered, the longest unseen forgotten first; 48 bytes each."""
    use_history: bool = True
    """Whether a prompt's earlier steps count."""
    use_siblings: bool = True
    """Whether the group's own members count, finished and alive."""
    use_age: bool = True
    """Whether the curve over age alone is mixed in."""

    _tokens: Survival = field(init=False)
    _turns: Survival = field(init=False)
    _seen: tuple[Observation, Location, Location] | None = field(default=None, init=False)
    """The last observation, and where its groups stand in tokens and turns."""
    _has_turns: bool = field(default=False, init=False)
    """Whether any trajectory has taken more than one turn."""

    def __post_init__(self) -> None:
        self._tokens, self._turns = self._survival(), self._survival()
        # compiled now, not within the first decision, whose time is limited
        one = np.zeros(1)
        outlook(
            self._tokens.hazards(Location.of(one, one, one + 1.0, 0.0)),
            one.astype(np.int64),
            one,
            one,
        )

    def observe(self, observation: Observation) -> None:
        """Age the survivors, count the ended, remember where everyone stands now."""
        tokens = turns = self._tokens.observe(_view_of_tokens(observation))
        self._has_turns |= bool(
            observation.trajectories.turns.any() or (observation.ended.turns > 1).any()
        )
        if self._has_turns:
            turns = self._turns.observe(_view_of_turns(observation))
        self._seen = observation, tokens, turns

    def forecast(self, observation: Observation) -> LengthForecast:
        """Quantiles and mean of what is left; uniform over the cap while nothing has finished."""
        t = observation.trajectories
        alive = np.flatnonzero(t.phase != Phase.ENDED)
        left = np.maximum(t.max_new_tokens - t.generated_tokens, 0).astype(np.float64)
        left[t.phase == Phase.ENDED] = 0.0
        tokens, mean = left[:, None] * np.array(QUANTILES), left * 0.5
        alike = np.full(len(observation.groups), ALIKE_BEFORE_DATA)
        if self._tokens.events >= 1.0 and len(alive):
            location = self._location(observation, self._tokens, _view_of_tokens)
            total, expected = outlook(
                self._tokens.hazards(location),
                t.group_row[alive],
                _log(t.generated_tokens[alive]),
                _log(t.max_new_tokens[alive]),
            )
            more = np.ceil(total) - t.generated_tokens[alive, None]
            least, most = np.minimum(left[alive], 1.0), left[alive]
            alike = location.common
            tokens[alive] = np.clip(more, least[:, None], most[:, None])
            mean[alive] = np.clip(expected, least, most)
        turns = self._remaining_turns(observation, alive)
        return LengthForecast(tokens, mean, turns, alike)

    @property
    def prompts(self) -> PromptTable:
        """What is remembered of each prompt's lengths, to look at."""
        return self._tokens.locations.prompts

    def surprises(self) -> Floats:
        """Standardised innovations of the groups that closed last: log length against forecast."""
        return self._tokens.surprises

    def reset_on_drift(self, keep: float) -> None:
        """Forget all but `keep` of the curves, doubt level and prompts accordingly."""
        self._tokens.doubt(keep)
        self._turns.doubt(keep)

    def health(self) -> dict[str, float]:
        """Coverage of past forecasts, and the deviations of log length as learned."""
        model = self._tokens.locations
        return {
            **self._tokens.health(),
            "prompt_deviation": float(np.sqrt(model.between)),
            "sibling_deviation": float(np.sqrt(model.within)),
        }

    def state_dict(self) -> State:
        """What was learned, and where everyone stood last."""
        return {
            "tokens": self._tokens.state_dict(),
            "turns": self._turns.state_dict(),
            "has_turns": self._has_turns,
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._tokens.load_state_dict(state["tokens"])
        self._turns.load_state_dict(state["turns"])
        self._has_turns = bool(state["has_turns"])
        self._seen = None

    def _survival(self) -> Survival:
        model = LocationModel(self.max_prompts, self.use_history, self.use_siblings)
        return Survival(self.memory_steps, model, self.use_age)

    def _remaining_turns(self, observation: Observation, alive: Ints) -> Floats:
        t = observation.trajectories
        turns = np.zeros((len(t), len(QUANTILES)))
        turns[alive] = 1.0
        if self._turns.events >= 1.0 and len(alive):
            location = self._location(observation, self._turns, _view_of_turns)
            age = np.log(t.turns[alive] + HALF_TURN)
            total, _ = outlook(self._turns.hazards(location), t.group_row[alive], age, age)
            turns[alive] = np.maximum(np.round(total) - t.turns[alive, None], 1.0)
        return turns

    def _location(
        self,
        observation: Observation,
        survival: Survival,
        view: Callable[[Observation], View],
    ) -> Location:
        """Known already if the observation was the last one observed."""
        if self._seen is not None and self._seen[0] is observation:
            return self._seen[1] if survival is self._tokens else self._seen[2]
        return survival.locate(view(observation))


def _view_of_tokens(observation: Observation) -> View:
    t, e = observation.trajectories, observation.ended
    alive = np.flatnonzero(t.phase != Phase.ENDED)
    return _view(observation, alive, _log(t.generated_tokens[alive]), _log(e.generated_tokens))


def _view_of_turns(observation: Observation) -> View:
    t, e = observation.trajectories, observation.ended
    alive = np.flatnonzero(t.phase != Phase.ENDED)
    age, ended = np.log(t.turns[alive] + HALF_TURN), np.log(np.maximum(e.turns, HALF_TURN))
    return _view(observation, alive, age, ended)


def _view(observation: Observation, alive: Ints, log_age: Floats, log_ended: Floats) -> View:
    t, g, e = observation.trajectories, observation.groups, observation.ended
    return View(
        clock=max(observation.trainer.step, observation.trainer.weight_version),
        trajectory_id=t.trajectory_id[alive],
        group_row=t.group_row[alive],
        log_age=log_age,
        group_id=g.group_id,
        prompt_key=g.prompt_key,
        features=g.features,
        ended_id=e.trajectory_id,
        ended_group=e.group_id,
        ended_key=e.prompt_key,
        ended_log_amount=log_ended,
        ended_censored=e.censored,
    )


def _log(tokens: Ints) -> Floats:
    return np.log(np.maximum(tokens, 1).astype(np.float64))


PLUGIN: type[LengthEstimator] = SurvivalLength
