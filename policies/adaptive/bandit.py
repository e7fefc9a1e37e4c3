"""Choose one arm (a stack of mechanisms) for each trainer step: a conservative, forgetting bandit.

`choose` before a step, `learn` after it.  What is learned is each arm's log cost less the
default's, in the context of the workload (`_bandit_model`): only differences decide, what all arms
share is tracked and left out.  `choose` changes nothing but the generator it is given.  It

1. plays the default for `opening_steps`, so that there is a level to compare with;
2. strikes out what is not safe (conservative bandits, Wu et al. 2016).  The *balance* is what may
   still be lost: `ALLOWANCE` steps, plus `loss_bound` per step, plus what arms gained, less what
   they lost, at most `MOST_BALANCE`.  Gains and losses are the believed ones plus one deviation, so
   that luck earns nothing.  An arm is safe if its expected loss, a deviation added, is not positive
   or within the balance;
3. takes the safe arm believed fastest, and the last one again where that is within `MARGIN`;
4. with probability `LOOK` takes another look instead, if one pays: its worth (`_bandit_looks`) over
   the next `memory_steps` steps exceeds what it is believed to cost;
5. with a small probability any other safe arm, each at a rate at which it is believed to cost
   `FLOOR_COST` per step at most; the default at least every `first_look_steps`, then every 4 times
   as many, 16 times ... after the start or an alarm until its rate, `DEFAULT_COST`, is reached.
   What looks decided is checked again.

The probability of the arm taken is known exactly: it is a function of state and context.

When the played arms surprise again and again (`_bandit_alarm`), half of what is believed of every
arm is forgotten, and 4 tries them anew.

Thompson sampling among the arms whose look pays, probabilities from 512 fixed draws, was as good on
fixed worlds and slower after a change of 15 % (p90 10 against 6 to 8 steps); among all safe arms it
never settled.  A longer burn-in after a switch is not there: arms here begin and end with a step.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Bools, Floats
from steersman.policies.adaptive._bandit_alarm import Alarm
from steersman.policies.adaptive._bandit_looks import worth_of_looks
from steersman.policies.adaptive._bandit_model import ArmModel

PRIOR_DEVIATION = 0.1
"""Of an arm's log cost about what its model promises."""
LARGEST_FEATURE = 3.0
"""Features are about -1 to 1; beyond 3 they are clipped."""
ALLOWANCE, MOST_BALANCE = 0.25, 1.0
"""In steps: what may be lost before anything was earned, and the most that gains can save up."""
CAUTION = 1.0
"""Deviations added to an expected loss and to what was lost.  With .5, simulated runs lost up to 2
steps beyond the bound; with 1.5 a gain of 30 % is found so late that regret nearly doubles."""
MARGIN = 0.01
"""Log cost; less is not worth a switch."""
LOOK = 0.8
"""Probability of a look that pays: high, and yet both arms have a known chance."""
MOST_FLOOR = 1.0 / 25.0
"""Per step, of a look whether it pays or not."""
FLOOR_COST, DEFAULT_COST = 0.0005, 0.0005
"""Log cost per step that such looks may cost, at all other arms together and at the default."""
LOOK_GROWTH = 4.0
"""Factor of the wait for each further such look at the default."""
FORGOTTEN = 0.5
"""Share of what is believed of the arms, at an alarm."""
NEVER = -1
"""Age of an arm that was not played."""


@dataclass(frozen=True)
class Choice:
    """The arm of one step."""

    arm: str
    propensity: float
    """Probability, in (0, 1], with which this arm is chosen in this state and context."""
    reason: str
    """One sentence for a person."""
    expected: Mapping[str, float]
    """By arm: believed log cost less the default's, in this context."""


@dataclass
class StackBandit:
    """The bandit of the module's docstring.

    The loss against always playing the default shall stay below `loss_bound` per step, plus
    `ALLOWANCE`, plus one step under the worst arm; `MOST_BALANCE` in the place of `ALLOWANCE` after
    gains.  That holds as far as the balance is right.  It is believed and not known: in simulated
    worlds where the default is best, noise 5 %, the median run kept the bound and the worst of
    48 exceeded it by half a step.
    """

    arms: tuple[str, ...]
    """Distinct names; the first is the default, the trainer's own rule."""
    features: int = 0
    """Length of the context, at most 5; each feature about -1 to 1, 0 where not known."""
    prior_log_cost: Mapping[str, float] = field(default_factory=dict)
    """By arm: log cost less the default's that its model promises, e.g. -0.05; else 0."""
    prior_deviation: Mapping[str, float] = field(default_factory=dict)
    """By arm: how far off that may be, as a deviation; else `PRIOR_DEVIATION`."""
    loss_bound: float = 0.01
    """Expected loss against the default per step, as a share of a step's cost."""
    opening_steps: int = 2
    """Under the default before anything else.  0 where the reference is good to a few percent: then
    the arm whose prior is best begins, and a step far above the reference tells as much."""
    level_deviation: float = 0.1
    """Of the default's own log cost: how good the reference is said to be."""
    quiet_steps: int = 0
    """At the start, without looks at other arms than the one believed best, unless an alarm comes:
    a run that ends sooner could not make use of what looks tell."""
    first_look_steps: float = 10.0
    """Steps until the first look at the default that need not pay, on average."""
    memory_steps: float = 30.0
    """Steps after which evidence on the played arm has faded to 1/e, and that a look pays for."""

    _balance: float = field(default=ALLOWANCE, init=False)
    _ages: list[int] = field(default_factory=list, init=False)
    """(k,) steps since each arm was played."""
    _last: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)
    _opened: int = field(default=0, init=False)
    """Steps under the default, up to `opening_steps`."""
    _checks: int = field(default=0, init=False)
    """Returns to the default since the start or the last alarm."""
    _alarm: Alarm = field(default_factory=Alarm, init=False)

    def __post_init__(self) -> None:
        good = {
            "two or more distinct arms": len(set(self.arms)) == len(self.arms) >= 2,
            "0 <= features <= 5": 0 <= self.features <= 5,
            "loss_bound > 0": self.loss_bound > 0,
            "opening_steps >= 0": self.opening_steps >= 0,
            "quiet_steps >= 0": self.quiet_steps >= 0,
            "level_deviation > 0": self.level_deviation > 0,
            "first_look_steps >= 1": self.first_look_steps >= 1,
            "memory_steps >= 2": self.memory_steps >= 2,
            "prior deviations > 0": all(d > 0 for d in self.prior_deviation.values()),
            "finite priors": all(math.isfinite(m) for m in self.prior_log_cost.values()),
        }
        for rule, holds in good.items():
            if not holds:
                raise InvalidInputError(f"adaptive bandit: {self}; valid: {rule}")
        for name in (*self.prior_log_cost, *self.prior_deviation):
            self._index(name)
        mean = np.array([self.prior_log_cost.get(arm, 0.0) for arm in self.arms])
        deviation = [self.prior_deviation.get(arm, PRIOR_DEVIATION) for arm in self.arms]
        mean[0], deviation[0] = 0.0, self.level_deviation
        width = 1 + self.features
        self._model = ArmModel(mean, np.array(deviation), width, self.memory_steps)
        self._ages = [NEVER] * len(self.arms)

    def choose(self, context: Floats, rng: np.random.Generator) -> Choice:
        """The arm of the next step, in this (features,) context; one draw."""
        x = self._row(context)
        mean, deviation = self._model.differences(x)
        chance, best, look = self._chances(x, mean, deviation)
        arm = int(np.searchsorted(np.cumsum(chance), rng.random() * chance.sum(), side="right"))
        arm = min(arm, int(np.flatnonzero(chance)[-1]))
        return Choice(
            arm=self.arms[arm],
            propensity=float(chance[arm]),
            reason=self._reason(arm, best, look, mean, deviation),
            expected=dict(zip(self.arms, mean.tolist(), strict=True)),
        )

    def learn(self, arm: str, context: Floats, log_cost: float) -> None:
        """Take in a whole step under `arm`: log(its seconds / reference seconds).

        Steps that were not chosen here count too.  One that is not finite is left out.
        """
        played, x = self._index(arm), self._row(context)
        if not math.isfinite(log_cost):
            return
        if self._alarm.see(self._model.surprise(played, x, log_cost)):
            self._model.forget(FORGOTTEN)
            self._checks = 0
        self._model.update(played, x, log_cost)
        mean, deviation = self._model.differences(x)
        loss = math.expm1(mean[played] + CAUTION * deviation[played])
        self._balance = min(self._balance + self.loss_bound - loss, MOST_BALANCE)
        if played == 0:
            self._opened = min(self._opened + 1, self.opening_steps)
            self._checks += self._last != 0
        self._ages = [age if age == NEVER else age + 1 for age in self._ages]
        self._ages[played] = 0
        self._last = played
        self._steps += 1

    def health(self) -> Mapping[str, float]:
        """Noise of a step's log cost, alarms, balance in steps, and steps learned from."""
        return {
            "noise": math.sqrt(self._model.variance),
            "level": float(self._model.mean[0]),
            "alarms": float(self._alarm.count),
            "balance_steps": self._balance,
            "steps": float(self._steps),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that was learned; its size depends on the arms and features alone."""
        return {
            "arms": list(self.arms),
            "features": self.features,
            "model": self._model.state_dict(),
            "alarm": asdict(self._alarm),
            "balance": self._balance,
            "ages": list(self._ages),
            "last": self._last,
            "steps": self._steps,
            "opened": self._opened,
            "checks": self._checks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was learned, by a bandit with the same arms and features."""
        if state["arms"] != list(self.arms) or state["features"] != self.features:
            raise InvalidInputError(
                f"the state is of arms {state['arms']} with {state['features']} features; "
                f"this bandit has {list(self.arms)} with {self.features}"
            )
        self._model.load_state_dict(state["model"])
        self._alarm = Alarm(**state["alarm"])
        self._balance, self._ages = float(state["balance"]), list(state["ages"])
        self._last, self._steps = state["last"], state["steps"]
        self._opened, self._checks = state["opened"], state["checks"]

    def _chances(self, x: Floats, mean: Floats, deviation: Floats) -> tuple[Floats, int, int]:
        """(k,) probabilities, the arm believed best, and the one whose look pays (or the best)."""
        chance = np.zeros(len(self.arms))
        if self._opened < self.opening_steps:
            chance[0] = 1.0
            return chance, 0, 0
        expected_loss = np.expm1(mean + CAUTION * deviation + 0.5 * deviation**2)
        safe = expected_loss <= max(self._balance + self.loss_bound, 0.0)
        safe[0] = True
        best = int(np.argmin(np.where(safe, mean, np.inf)))
        if safe[self._last] and mean[self._last] <= mean[best] + MARGIN:
            best = self._last
        if self._steps < self.quiet_steps and not self._alarm.count:
            chance[best] = 1.0
            return chance, best, best
        extra = mean - mean[best]
        value = np.where(safe, self.memory_steps * worth_of_looks(self._model, x) - extra, 0.0)
        value[best] = 0.0
        look = int(np.argmax(value)) if value.max() > 0.0 else best
        chance[best] = 1.0
        if look != best:
            chance[best], chance[look] = 1.0 - LOOK, LOOK
        floor = np.where(chance > 0.0, 0.0, self._floors(extra, safe))
        return chance * (1.0 - floor.sum()) + floor, best, look

    def _floors(self, extra: Floats, safe: Bools) -> Floats:
        """(k,) probability of a look whether it pays or not, by what it is believed to cost."""
        cost = np.maximum(extra, 1e-9)
        rate = np.where(safe, np.minimum(MOST_FLOOR, FLOOR_COST / (len(cost) - 1) / cost), 0.0)
        settled = min(MOST_FLOOR, DEFAULT_COST / float(cost[0]))
        growths = min(self._checks, 10)  # far beyond any settled rate
        rate[0] = max(settled, 1.0 / (self.first_look_steps * LOOK_GROWTH**growths))
        return rate

    def _reason(self, arm: int, best: int, look: int, mean: Floats, deviation: Floats) -> str:
        name, default = self.arms[arm], self.arms[0]
        if self._opened < self.opening_steps:
            return f"{name} first: what others cost is measured against it"
        if arm != best:
            why = "it may change the choice" if arm == look else "to check what was decided"
            age = self._ages[arm]
            if age == NEVER:
                return f"{name} is tried for the first time: {why}"
            return f"{name} is tried again, {why}: its last look is {age + 1} steps old"
        verb = "kept" if arm == self._last else "taken"
        if arm == 0:
            return f"no arm that may be risked is believed to beat {default}; {verb}"
        percent, within = -100.0 * math.expm1(mean[arm]), 100.0 * deviation[arm]
        word = "faster" if percent >= 0 else "slower"
        return (
            f"{name} is believed {abs(percent):.0f} % {word} than {default} "
            f"(±{within:.0f} %); {verb}"
        )

    def _index(self, arm: str) -> int:
        if arm not in self.arms:
            raise UnknownNameError("arm", arm, self.arms)
        return self.arms.index(arm)

    def _row(self, context: Floats) -> Floats:
        if np.shape(context) != (self.features,):
            raise InvalidInputError(
                f"a context of shape {np.shape(context)}; valid: ({self.features},)"
            )
        known = np.nan_to_num(context, nan=0.0, posinf=LARGEST_FEATURE, neginf=-LARGEST_FEATURE)
        return np.concatenate(([1.0], np.clip(known, -LARGEST_FEATURE, LARGEST_FEATURE)))
