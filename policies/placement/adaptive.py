"""Adaptive: plans everything jointly on scenarios of what may come, and learns what really pays.

*Every tick.*  The lengths of all that is unfinished are drawn jointly, siblings alike
(`adaptive.draws`).  In each scenario a replica that runs its trajectories to the end takes
M * longest + c * sum L + k * sum K (`adaptive._ends`).  What waits is assigned, or held back
(`adaptive.admission`), and what runs is moved (`adaptive.relief`), so that the mean of when the
last replica ends is least.  The trainer's default is always a candidate; another plan must beat it
by `margin`, a move must gain at least `least_gain_s`.  Isolation of tails, balance of unlike
hardware, siblings kept together and memory kept free all come out of that one minimum.

*Every few seconds*, while something waits, plans are compared in the simulator beside the ticks
(`observation.advice`): how much of the KV cache may be promised, or all at once after all.

*Every step* a conservative bandit (`adaptive.bandit`) chooses which mechanisms may act in it
(`adaptive.arms`), by what steps really took against what the default would have been expected to
take for the same lengths (`adaptive.steps`).

*Trust.*  Forecasts that put those last who end first (`adaptive.trust`), or replicas at another
speed than they have (`adaptive.pace`), are not used: what waits goes by arrival, nothing is moved.

*Allow* says what may happen to samples.  "exact": only placing and moving.  "corrected": besides,
the latest groups of a step may be put off to the next (`_deferral`), where newer weights write
their rest.  "modified": besides, stragglers of groups that will hardly teach anything are cancelled
at random, with known probabilities and weights (`adaptive.sparing`).  Correctness class: exact, as
allowed by default.

A stream wants whole groups soon and fresh: groups begin by AReaL's staleness budget
(`staleness_admission`), and nothing is moved.

After TailSieve (arXiv 2608.22788) and its exact collapse, Seer (arXiv 2511.14617: probes, here an
order by upper quantiles), conservative bandits (Wu et al. 2016); common random numbers: Glasserman
and Yao 1992.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from steersman.estimators.errors import UnknownNameError
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Advice, Ints, Objective, Observation
from steersman.policies.adaptive import arms, steps
from steersman.policies.adaptive._warm import warm
from steersman.policies.adaptive.acts import coin_fell, deferrals, migration, placements
from steersman.policies.adaptive.admission import (
    DEFAULT,
    GATHER_MARGIN,
    assignments,
    fits_at_once,
    gathered,
    held,
)
from steersman.policies.adaptive.bandit import StackBandit
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.outlook import Outlook
from steersman.policies.adaptive.pace import Pace
from steersman.policies.adaptive.plans import HELD, PLANS, Order, Plan
from steersman.policies.adaptive.putting_off import putting_off
from steersman.policies.adaptive.relief import moves
from steersman.policies.adaptive.sharing import Sharing
from steersman.policies.adaptive.sparing import Sparing
from steersman.policies.adaptive.steps import StepBook
from steersman.policies.adaptive.trust import Trust
from steersman.policies.contract import Drafts, PlacementPolicy, Range
from steersman.policies.decision import Decision, StackChoice
from steersman.policies.placement._homes import Homes
from steersman.policies.placement.staleness_admission import StalenessAdmission
from steersman.policies.placement.sticky_least_inflight import home_or_fewest
from steersman.policies.speculation.critical_path import CriticalPath

NAME = "adaptive"
LEARNED = "learned"
ALLOWED = ("exact", "corrected", "modified")
USUAL = next(plan for plan in HELD if plan.promise == 4.0)
"""Where nobody has looked ahead.  Of 2.5, 3, 4, 5 and 6 times the KV cache, 4 is best for agents,
whose contexts evict each other from 5 on, and within 1 % of the best for single turns."""


@dataclass
class Adaptive:
    """Few options; the defaults were tried on all workloads of the tournament."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT
    TUNABLE: ClassVar[Mapping[str, Range]] = {
        "margin": Range(0.0, 0.1),
        "max_moves": Range(0, 16, integer=True),
        "least_gain_s": Range(0.01, 5.0, log=True),
        "rest_s": Range(2.0, 60.0, log=True),
    }

    allow: Literal["exact", "corrected", "modified"] = "exact"
    margin: float = 0.01
    """Share of the expected end by which a plan must beat the default; 1: the default always."""
    max_moves: int = 8
    """Migrations per tick; 0: nothing is moved."""
    least_gain_s: float = 0.05
    """Seconds, costs paid, that a move must gain."""
    rest_s: float = 5.0
    """Seconds a trajectory rests after a move."""
    defer_share: float = 0.25
    """Largest share of a step's groups that is put off, where `allow` lets it; 0: none."""
    gather: bool = False
    """Leave replicas idle where that makes the others faster by more than they would do.  On two
    engines that share two cores it gained 3 % and made putting off rare, which gains more."""
    hold: bool = True
    """Keep here what no slot is free for; False: always all at once."""
    stack: str = LEARNED
    """What may act in a step: learned, that is, the bandit chooses; or one of its arms for ever."""
    loss_bound: float = 0.01
    """Loss against always playing the default that learning may cost, as a share of the time."""

    _homes: Homes = field(default_factory=Homes, init=False)
    _contexts: Contexts = field(default_factory=Contexts, init=False)
    _trust: Trust = field(default_factory=Trust, init=False)
    _pace: Pace = field(default_factory=Pace, init=False)
    _sharing: Sharing = field(default_factory=Sharing, init=False)
    _sparing: Sparing = field(default_factory=Sparing, init=False)
    _open: tuple[str, ...] = field(default=(), init=False)
    """Replicas that the step is gathered on; empty: all."""
    _advised: str = field(default=USUAL.name, init=False)
    """Plan of this step for what is held."""
    _step_groups: int = field(default=0, init=False)
    """Most groups of this step seen at once."""
    _book: StepBook = field(default_factory=StepBook, init=False)
    _bandit: StackBandit = field(init=False)
    _arm: str = field(default=arms.FULL, init=False)
    _stream: StalenessAdmission = field(default_factory=StalenessAdmission, init=False)
    _drafts: CriticalPath = field(default_factory=CriticalPath, init=False)
    _weighed: dict[str, float] = field(default_factory=dict, init=False)
    _chosen: StackChoice | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for name, known in (("allow", ALLOWED), ("stack", (LEARNED, *arms.ARMS))):
            if getattr(self, name) not in known:
                raise UnknownNameError(name, getattr(self, name), known)
        if self.stack != LEARNED:
            self._arm = self.stack
        warm()
        self._bandit = StackBandit(
            tuple(arms.ARMS),
            features=steps.FEATURES,
            prior_log_cost=arms.PROMISED,
            prior_deviation=arms.DOUBT,
            loss_bound=self.loss_bound,
            opening_steps=0,
            level_deviation=arms.LEVEL_DOUBT,
            quiet_steps=arms.QUIET_STEPS,
        )

    @classmethod
    def correctness_with(cls, options: Mapping[str, Any]) -> CorrectnessClass:
        """As `allow` says."""
        return CorrectnessClass[str(options.get("allow", "exact")).upper()]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """To be compared in the simulator, while something is held back."""
        return PLANS if self.hold and arms.ARMS[self._arm].admit else ()

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Learn from what happened, then place what waits or look after what runs."""
        self._weighed, self._chosen = {}, None
        homes = self._homes.update(observation)
        if not observation.replicas.alive.any():
            return []
        if observation.trainer.objective is Objective.STREAM:
            chosen = self._stream.decide(observation, forecast, rng)
            return [msgspec.structs.replace(decision, policy=NAME) for decision in chosen]
        self._contexts.learn(observation)
        trusted = self._trust.follow(observation, forecast)
        trusted &= self._pace.follow(observation, forecast)
        self._sharing.follow(observation, forecast)
        outlook = Outlook.of(observation, forecast, self._contexts)
        self._follow_step(observation, outlook, rng)
        outlook = self._gathered(observation, outlook)
        arm = arms.ARMS[self._arm]
        if len(observation.queued):
            if not arm.admit:
                return home_or_fewest(observation, homes, rng, NAME)
            return self._admit(observation, forecast, outlook, trusted, homes, rng)
        if not arm.move or not trusted:
            return []
        return (
            self._spare(observation, forecast, outlook, rng)
            or self._put_off(observation, forecast, outlook)
            or self._move(observation, forecast, outlook)
        )

    def draft(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> Drafts:
        """For whom it pays, see `speculation.critical_path`."""
        return self._drafts.decide(observation, forecast, rng)

    def chosen(self) -> StackChoice | None:
        """What may act in the step that the last tick began."""
        return self._chosen

    def alternatives(self) -> Mapping[str, float]:
        """What the last tick compared."""
        return self._weighed

    def _follow_step(
        self, observation: Observation, outlook: Outlook, rng: np.random.Generator
    ) -> None:
        before, context = self._book.step, np.array(self._book.context)
        log_cost = self._book.follow(observation, outlook, self._contexts)
        if self._book.step != before:
            self._open, self._step_groups, self._advised = (), 0, USUAL.name
        here = int((observation.groups.step == observation.trainer.step).sum())
        self._step_groups = max(self._step_groups, here, observation.trainer.groups_wanted)
        if self.stack != LEARNED or self._book.step == before:
            return
        if log_cost is not None:
            self._bandit.learn(self._arm, context, log_cost)
        now = steps.features(observation, outlook.model, outlook.final)
        self._book.context = now.tolist()
        choice = self._bandit.choose(now, rng)
        self._arm = choice.arm
        self._chosen = StackChoice(
            choice.arm, choice.propensity, choice.reason, dict(choice.expected)
        )

    def _gathered(self, observation: Observation, outlook: Outlook) -> Outlook:
        """Only for the replicas that the step is gathered on."""
        if not self._open:
            return outlook
        open_ = np.isin(np.array(observation.replicas.names), self._open)
        if not (open_ & observation.replicas.alive).any():
            self._open = ()
            return outlook
        living = int(observation.replicas.alive.sum())
        return outlook.only(open_, self._sharing.speed_up(len(self._open), living))

    def _admit(
        self,
        observation: Observation,
        forecast: Forecast,
        outlook: Outlook,
        trusted: bool,
        homes: Ints,
        rng: np.random.Generator,
    ) -> list[Decision]:
        if trusted and self.gather and not self._open:
            outlook = self._gather(observation, forecast, outlook)
        if not fits_at_once(observation, outlook, USUAL.promise):
            plan = self._plan(observation)
            if plan.hold:
                return self._held(observation, forecast, outlook, plan, trusted)
            return home_or_fewest(observation, homes, rng, NAME)
        if trusted:
            made = assignments(observation, forecast, outlook)
            self._weighed = {name: plan.end_s for name, plan in made.items()}
            best = min(made.values(), key=lambda plan: plan.end_s)
            if self._open or best.end_s < (1 - self.margin) * made[DEFAULT].end_s:
                gain_s = made[DEFAULT].end_s - best.end_s
                reason = f"{best.name}: the step would end {gain_s:.1f} s before the default's"
                return placements(observation, best.rows, best.target, NAME, reason)
        return home_or_fewest(observation, homes, rng, NAME)

    def _gather(self, observation: Observation, forecast: Forecast, outlook: Outlook) -> Outlook:
        """Close replicas for the rest of the step, if the others are the faster for it."""
        if self._sharing.speed_up(1, len(outlook.model.open)) > 1 - GATHER_MARGIN:
            return outlook
        made = assignments(observation, forecast, outlook)
        end_s = min(plan.end_s for plan in made.values())
        found = gathered(observation, forecast, outlook, self._sharing, end_s)
        if found is None:
            return outlook
        names = np.array(observation.replicas.names)
        self._open = tuple(names[found[0].model.open].tolist())
        return found[0]

    def _plan(self, observation: Observation) -> Plan:
        """What looking ahead has found best for this step, or the usual."""
        if not self.hold:
            return PLANS[0]
        advice = observation.advice
        if advice is not None and advice.step == observation.trainer.step:
            self._advised = self._best(advice)
        advised = next(plan for plan in PLANS if plan.name == self._advised)
        return USUAL if self._has_tools() else advised

    def _best(self, advice: Advice) -> str:
        """The plan that is better than the usual by more than the margin and the draws' doubt."""
        mean = dict(zip(advice.plans, advice.mean_s.tolist(), strict=True))
        error = dict(zip(advice.plans, advice.error_s.tolist(), strict=True))
        self._weighed = mean
        best = min((plan.name for plan in PLANS if plan.name in mean), key=lambda name: mean[name])
        gain_s = mean[USUAL.name] - mean[best]
        doubt_s = 2.0 * max(error[best], error[USUAL.name])
        return best if gain_s > max(self.margin * mean[USUAL.name], doubt_s) else USUAL.name

    def _has_tools(self) -> bool:
        """The simulator is not told of tools' waits and answers: its advice is not for agents."""
        return self._contexts.stretch > 1.2 or self._contexts.growth > 1.2

    def _held(
        self,
        observation: Observation,
        forecast: Forecast,
        outlook: Outlook,
        plan: Plan,
        trusted: bool,
    ) -> list[Decision]:
        if not trusted:
            plan = Plan(plan.name, True, Order.ARRIVAL, plan.promise)
        rows, target = held(observation, forecast, outlook, plan)
        reason = f"{plan.name}, {plan.order.value} first: a slot is free where the end is soonest"
        return placements(observation, rows, target, NAME, reason)

    def _move(
        self, observation: Observation, forecast: Forecast, outlook: Outlook
    ) -> list[Decision]:
        t, running = observation.trajectories, observation.running
        movable = running[observation.now_s - t.moved_s[running] >= self.rest_s]
        found = moves(observation, forecast, outlook, movable, self.max_moves, self.least_gain_s)
        if found:
            now_s = float(outlook.last_s(outlook.load).mean())
            after_s = now_s - sum(move.gain_s for move in found)
            self._weighed = {"nothing moved": now_s, f"{len(found)} moved": after_s}
        return [migration(observation, move, NAME) for move in found]

    def _spare(
        self,
        observation: Observation,
        forecast: Forecast,
        outlook: Outlook,
        rng: np.random.Generator,
    ) -> list[Decision]:
        if self.allow != "modified":
            return []
        groups, least_s = self._step_groups, self.least_gain_s
        coins = self._sparing.throw(observation, forecast, outlook, rng, groups, least_s)
        return [coin_fell(observation, coin, NAME) for coin in coins]

    def _put_off(
        self, observation: Observation, forecast: Forecast, outlook: Outlook
    ) -> list[Decision]:
        if self.allow == "exact":
            return []
        found = putting_off(
            observation, forecast, outlook, self._step_groups, self.defer_share, self.least_gain_s
        )
        if found is None:
            return []
        self._weighed = {"waiting for all": found.gain_s, "putting off": found.cost_s}
        return deferrals(observation, found, self._step_groups, NAME)

    def state_dict(self) -> dict[str, Any]:
        """Everything learned or remembered."""
        return {
            "homes": self._homes.state_dict(),
            "contexts": self._contexts.state_dict(),
            "trust": self._trust.state_dict(),
            "pace": self._pace.state_dict(),
            "sharing": self._sharing.state_dict(),
            "sparing": self._sparing.state_dict(),
            "open": list(self._open),
            "advised": self._advised,
            "step_groups": self._step_groups,
            "book": self._book.state_dict(),
            "bandit": self._bandit.state_dict(),
            "arm": self._arm,
            "stream": self._stream.state_dict(),
            "drafts": self._drafts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace it."""
        self._homes = Homes.from_state(state["homes"])
        self._contexts = Contexts.from_state(state["contexts"])
        self._trust = Trust.from_state(state["trust"])
        self._pace = Pace.from_state(state["pace"])
        self._sharing = Sharing.from_state(state["sharing"])
        self._sparing = Sparing.from_state(state["sparing"])
        self._open, self._step_groups = tuple(state["open"]), int(state["step_groups"])
        self._advised = state["advised"]
        self._book = StepBook.from_state(state["book"])
        self._bandit.load_state_dict(state["bandit"])
        self._arm = state["arm"] if self.stack == LEARNED else self.stack
        self._stream.load_state_dict(state["stream"])
        self._drafts.load_state_dict(state["drafts"])


PLUGIN: type[PlacementPolicy] = Adaptive
