"""Cancel, by coins that can be weighted away, stragglers of groups that will hardly teach anything.

Once nothing waits, a barrier step often ends with a few stragglers of groups whose answers so far
all got one reward.  Such a group teaches nothing unless one of its stragglers differs, and
`value` (`SuccessForecast`) says how likely that is (std), or how much it is worth at most 1 (none).

1. *Candidates* are groups never thrown for, of at least `LEAST_KNOWN` known rewards, all equal, no
   ended member's unknown; whose value is below `THRESHOLD`; and whose unfinished members all run.
2. *When.*  A coin is thrown once and then has fallen, so it waits for more answers as long as that
   costs no time: until without all candidates the step would be over after `LATE` of the time that
   it will take with them.
3. *The coin* keeps a group with probability q = value / THRESHOLD, in [LEAST_KEEP, MOST_KEEP]: the
   extra variance of a weighted sum is about value * (1 - q) / q, so at most THRESHOLD per group,
   and weights are at most 1 / LEAST_KEEP.  One uniform number u is thrown for all groups of a
   tick, and those with u < q are kept: the step ends sooner only if all that hold it up are
   cancelled, which then has the probability 1 - max q and not the product of all 1 - q.  (The
   errors of a tick's groups are then not independent; their expectations are 0 all the same.)
4. *Worth*.  Candidates are ordered by when they would end, last first.  For the first k of them

       gain = mean over scenarios of (end of the step as it is - its end under the throw)
       loss = WORTH * (seconds of the whole step / groups of the step) * sum (1 - q) * value

   where each scenario has a u of its own, the same in every tick.  The k of the largest
   gain - loss is thrown for, if its gain is above `least_gain_s` and above its loss.  So nobody is
   cancelled who would not hold up others.

Told once, in the tick of the throw, both sides: STOP with 1 - q and CONTINUE with q
(`policies.contract`).  A weighted sum of anything that belongs to a trajectory alone is unbiased:
correctness class "modified" (Horvitz and Thompson, JASA 1952; DUET, arXiv 2605.08441, keeps 5 %).
What a trainer computes from the rewards of a whole group is not such a thing: answers that had
ended weigh 1 whether the coin keeps their siblings or not, and have advantage 0 where it does not.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    NO_ROW,
    Bools,
    Floats,
    Ints,
    Normaliser,
    Objective,
    Observation,
)
from steersman.policies.adaptive._ends import loads
from steersman.policies.adaptive.outlook import Outlook

LEAST_KNOWN = 2
"""One answer says little of its prompt, and forecasts of unseen prompts are the population's."""
THRESHOLD = 0.5
"""Value from which a group is left alone: it rather teaches than not.  Where two groups of five are
degenerate, steps took 0.65 of the time with it and 0.68 with 0.3; of 1128 groups that teach 4 and 2
were lost.  Counted per straggler, sums of advantages had 0.3 % and 0.16 % more variance."""
LEAST_KEEP, MOST_KEEP = 0.1, 0.9
"""Both sides are within what the guard lets through (0.05), with a factor of two to spare."""
WORTH = 2.0
"""Time that a group which teaches is worth, in shares of the step per group: half of the groups
teach nothing, so that one that does costs the time of two."""
LATE = 0.1
"""There, thrown for at once (1) steps took 0.84 of the time, five times as many were cancelled, and
49 groups that teach were lost: waiting makes values, and so q, small.  With 0.25 it was 0.75."""
TRIED = 8
"""Prefixes of the candidates that are compared; each costs a pass over all that runs."""


@cache
def _supposed(scenarios: int) -> Floats:
    """(S, 1) throws of the scenarios, evenly spread; what is really thrown is another matter."""
    order = np.random.default_rng(20261131).permutation(scenarios)
    return np.asarray((order[:, None] + 0.5) / scenarios)


@dataclass(frozen=True)
class Coin:
    """One straggler whose group was thrown for."""

    row: int
    keep: bool
    propensity: float
    """Of the side on which it fell."""
    gain_s: float
    """Seconds that the step is expected to end sooner by this tick's coins; 0 of one kept."""
    reason: str


@dataclass
class Sparing:
    """Remembers for which of the open groups it has thrown."""

    _thrown: tuple[int, ...] = field(default=(), init=False)
    """Group ids, ascending; those that are no longer open are forgotten."""

    def throw(
        self,
        observation: Observation,
        forecast: Forecast,
        outlook: Outlook,
        rng: np.random.Generator,
        step_groups: int,
        least_gain_s: float,
    ) -> list[Coin]:
        """The coins of this tick, both sides; `step_groups` is how many groups the step has."""
        ids = observation.groups.group_id
        self._thrown = tuple(ids[np.isin(ids, self._thrown)].tolist())
        if observation.trainer.objective is not Objective.BARRIER or len(observation.queued):
            return []
        groups = np.flatnonzero(self._candidates(observation, forecast))
        if not len(groups) or not _is_late(observation, outlook, groups):
            return []
        value = forecast.success.value
        keep = np.clip(value / THRESHOLD, LEAST_KEEP, MOST_KEEP)
        last_first = _last_first(observation, outlook, groups)
        price_s = _price_s(observation, outlook, step_groups)
        best, best_net_s, best_gain_s = 0, 0.0, 0.0
        supposed = _supposed(len(outlook.rows.length))
        for count in _prefixes(len(groups)):
            some = last_first[:count]
            gain_s = _gain_s(observation, outlook, some, supposed >= keep[some])
            net_s = gain_s - price_s * float(((1.0 - keep[some]) * value[some]).sum())
            if gain_s > least_gain_s and net_s > best_net_s:
                best, best_net_s, best_gain_s = count, net_s, gain_s
        if not best:
            return []
        chosen = np.sort(last_first[:best])
        self._thrown = tuple(sorted((*self._thrown, *ids[chosen].tolist())))
        kept = rng.random() < keep[chosen]
        return _coins(observation, value, keep, chosen, chosen[kept], best_gain_s)

    def _candidates(self, observation: Observation, forecast: Forecast) -> Bools:
        """(g,)"""
        t, g = observation.trajectories, observation.groups
        running = np.bincount(t.group_row[observation.running], minlength=len(g))
        unfinished = np.bincount(t.group_row[t.phase != Phase.ENDED], minlength=len(g))
        silent = (g.rewarded >= LEAST_KNOWN) & (g.rewarded == g.ended)
        silent &= g.reward_low == g.reward_high
        all_run = (unfinished > 0) & (running == unfinished)
        unworthy = forecast.success.value < THRESHOLD
        return np.asarray(silent & all_run & unworthy & ~np.isin(g.group_id, self._thrown))

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"thrown": list(self._thrown)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Sparing":
        """The inverse of `state_dict`."""
        sparing = cls()
        sparing._thrown = tuple(state["thrown"])
        return sparing


def _stragglers(observation: Observation, groups: Ints) -> Ints:
    """Rows that run, of these groups; ascending."""
    running = observation.running
    return running[np.isin(observation.trajectories.group_row[running], groups)]


def _last_first(observation: Observation, outlook: Outlook, groups: Ints) -> Ints:
    """The groups by when their last straggler would have ended at batch 1, latest first."""
    t, rows = observation.trajectories, _stragglers(observation, groups)
    own_s = outlook.rows.chain[:, rows].mean(axis=0) * outlook.model.fixed_s[t.replica_row[rows]]
    end_s = np.zeros(len(observation.groups))
    np.maximum.at(end_s, t.group_row[rows], own_s)
    return groups[np.argsort(-end_s[groups], kind="stable")]


def _is_late(observation: Observation, outlook: Outlook, groups: Ints) -> bool:
    """Whether all that is still to come of the step, or nearly, is theirs."""
    last_s = float(outlook.last_s(outlook.load).mean())
    all_cancelled = np.ones((len(outlook.rows.length), len(groups)), dtype=np.bool_)
    return last_s - _gain_s(observation, outlook, groups, all_cancelled) <= LATE * last_s


def _prefixes(count: int) -> list[int]:
    """Lengths up to `count`, close together where they are small."""
    return sorted({round(length) for length in np.geomspace(1, count, TRIED).tolist()})


def _price_s(observation: Observation, outlook: Outlook, step_groups: int) -> float:
    """Seconds that a group of value 1 may cost."""
    elapsed_s = observation.now_s - observation.trainer.step_started_s
    step_s = max(elapsed_s, 0.0) + float(outlook.last_s(outlook.load).mean())
    return WORTH * step_s / max(step_groups, len(observation.groups))


def _gain_s(observation: Observation, outlook: Outlook, groups: Ints, cancelled: Bools) -> float:
    """Mean over scenarios, in each of which `cancelled` (S, len(groups)) do not go on."""
    t, rows = observation.trajectories, _stragglers(observation, groups)
    column = np.zeros(len(observation.groups), dtype=np.int64)
    column[groups] = np.arange(len(groups))
    goes_on = ~cancelled[:, column[t.group_row[rows]]]
    length, chain = outlook.rows.length.copy(), outlook.rows.chain.copy()
    length[:, rows] *= goes_on
    chain[:, rows] *= goes_on
    left = outlook.rows._replace(length=length, chain=chain)
    here = np.where(t.phase != Phase.ENDED, observation.destination_row, NO_ROW)
    load = loads(left, here, len(observation.replicas), len(observation.groups))
    return float((outlook.last_s(outlook.load) - outlook.last_s(load)).mean())


def _coins(
    observation: Observation, value: Floats, keep: Floats, groups: Ints, kept: Ints, gain_s: float
) -> list[Coin]:
    t, made = observation.trajectories, []
    for row in _stragglers(observation, groups).tolist():
        group = int(t.group_row[row])
        stays, q = bool(np.isin(group, kept)), float(keep[group])
        verdict = "kept" if stays else "cancelled"
        reason = (
            f"{_hope(observation, group, float(value[group]))}; {verdict} by a coin that keeps with"
            f" probability {q:.2f}; coins on {len(groups)} such groups end the step"
            f" {gain_s:.1f} s sooner"
        )
        made.append(Coin(row, stays, q if stays else 1.0 - q, 0.0 if stays else gain_s, reason))
    return made


def _hope(observation: Observation, group: int, value: float) -> str:
    """What is known of the group, and what it may still be good for."""
    g = observation.groups
    known = f"all {int(g.rewarded[group])} known rewards of its group are {g.reward_low[group]:g}"
    if observation.trainer.normaliser is Normaliser.NONE:
        return f"{known}: expected to teach {value:.0%} of what a group can"
    return f"{known}: {value:.0%} chance that it will teach anything"
