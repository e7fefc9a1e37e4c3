"""Where log amounts are expected: common level + prompt + visit, learned under censoring.

log amount = level + offset of the prompt + effect of the visit + residual, all normal.  A prompt's
offset has the variance `between`, and gains `OFFSET_DRIFT` per weight version that it is not seen;
siblings share a visit's effect (variance `visit`); the residual's variance `within` is the prompt's
own, shrunk to the common one.  An unseen prompt's offset is a ridge regression on its features.

Groups that are open inform the present *level* and their own location at once, with their alive
members as censored.  Groups that closed are kept until the next `commit`; only then level, prompts
and the three variances are updated: early closers are the short ones, so that learning from each
alone would chase the step's own course.  The variances are moments (what the squared innovations
exceed their known noise by, weighted by precision), blended in slowly.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._prompts import PromptTable
from steersman.estimators._tobit import Members, posterior, squared_residuals
from steersman.estimators.contract import State
from steersman.estimators.observation import Floats, Ints

OFFSET_DRIFT = 0.002
"""Variance per weight version; 0.03 a step of random walk and more were simulated: flat optimum."""
LEVEL_DRIFT = 0.01
"""Variance of the level per weight version: a step of 0.1, as a policy shift of 10 % length."""
OWN_SPREAD = 8.0
"""Members after which a prompt's own residual variance weighs as much as the common one."""
VISIT_KEEP = 0.8
"""Share of the evidence on that variance that each later visit keeps."""
RIDGE = 10.0
"""Prior precision of a feature's weight: 0.3 log tokens per unit is a lot."""
FEATURES_KEEP = 0.95
LEVEL_BEFORE_DATA, LEVEL_VARIANCE = 6.0, 4.0
"""About 400 tokens, give or take a factor of 7."""
WITHIN, BETWEEN, VISIT = 0.3, 0.4, 0.05
"""Variances before data, in the middle of what published runs show (0.1-0.3, 0.1-0.9, 0-0.05)."""
BLEND, BLEND_GROUPS, FIRST_BLEND = 0.3, 100.0, 0.9
"""Weight of one commit's variances: BLEND at most, less for fewer groups; but the k-th commit's at
least FIRST_BLEND / k, so that the first ones count about equally."""
VISIT_SHARE = 0.1
"""Largest part of what differs between groups that is ascribed to visits before any prompt has
come again: the middle of what published runs show."""
WITHIN_BOUNDS, BETWEEN_BOUNDS, VISIT_LEAST = (0.001, 4.0), (0.001, 4.0), 0.0005
"""Deviations of 3 % (answers of one form) and of a factor of 7."""
EM_ROUNDS = 4
"""Times that one commit's variances are estimated, each time with the last round's: with the ones
before data alone, the first commits of a run with alike siblings believe twice their deviation."""


@dataclass(frozen=True)
class Prior:
    """(g,) what is expected of groups before their members say anything."""

    offset: Floats
    variance: Floats
    """Of offset and visit effect together."""
    within: Floats


@dataclass(frozen=True)
class Location:
    """(g,) where each group's log amounts lie."""

    mean: Floats
    deviation: Floats
    """Predictive: of one member's log amount about `mean`."""
    common: Floats
    """Share of that deviation's square which is doubt about the group: its members have it in
    common."""
    level: float
    """The common level, with what all open groups say."""

    @classmethod
    def of(cls, mean: Floats, variance: Floats, within: Floats, level: float) -> "Location":
        """With `variance` of the location and `within` of the members about it."""
        total = within + variance
        return cls(mean, np.sqrt(total), variance / total, level)


@dataclass
class _Closed:
    """Groups that closed and are not committed."""

    keys: Ints
    features: Floats
    prior: Prior
    members: Members
    pseudo: Floats
    """(g,) the likelihood alone as one normal observation of offset + visit + level ..."""
    noise: Floats
    """... and its variance."""

    def state_dict(self) -> State:
        """As lists."""
        p, m = self.prior, self.members
        return {
            "keys": self.keys.tolist(),
            "features": self.features.tolist(),
            "prior": [p.offset.tolist(), p.variance.tolist(), p.within.tolist()],
            "members": [m.group.tolist(), m.log_amount.tolist(), m.censored.tolist()],
            "pseudo": self.pseudo.tolist(),
            "noise": self.noise.tolist(),
        }

    @classmethod
    def from_state(cls, state: State) -> "_Closed":
        """The inverse of `state_dict`."""
        keys, features = np.array(state["keys"], dtype=np.int64), state["features"]
        group, log_amount, censored = state["members"]
        return cls(
            keys,
            np.array(features, dtype=np.float64).reshape(len(keys), len(features[0])),
            Prior(*(np.array(column, dtype=np.float64) for column in state["prior"])),
            Members(np.array(group), np.array(log_amount), np.array(censored, dtype=np.bool_)),
            np.array(state["pseudo"]),
            np.array(state["noise"]),
        )


@dataclass
class LocationModel:
    """The model of the module's docstring."""

    max_prompts: int
    use_history: bool = True
    use_siblings: bool = True
    level: float = LEVEL_BEFORE_DATA
    level_variance: float = LEVEL_VARIANCE
    within: float = WITHIN
    between: float = BETWEEN
    visit: float = VISIT
    clock: int = 0
    commits: int = 0
    present_level: float = LEVEL_BEFORE_DATA
    """With what the open and the uncommitted groups say."""
    prompts: PromptTable = field(init=False)
    _gram: Floats = field(default_factory=lambda: np.zeros((0, 0)), init=False)
    _moment: Floats = field(default_factory=lambda: np.zeros(0), init=False)
    _closed: list[_Closed] = field(default_factory=list, init=False)
    _closed_sums: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    """Information that they hold on the level, and that times where they put it."""

    def __post_init__(self) -> None:
        self.prompts = PromptTable(self.max_prompts)

    @property
    def waiting(self) -> int:
        """Closed groups that the next commit will learn from."""
        return sum(len(closed.keys) for closed in self._closed)

    def prior(self, keys: Ints, features: Floats) -> Prior:
        """Of groups of these prompts."""
        count = len(keys)
        offset = self._from_features(features) if self.use_history else np.zeros(count)
        variance, within = np.full(count, self.between), np.full(count, self.within)
        if self.use_history:
            rows = self.prompts.find(keys)
            known = np.flatnonzero(rows >= 0)
            rows, p = rows[known], self.prompts
            offset[known], variance[known] = p["offset"][rows], self._aged(rows)
            own = self.within * OWN_SPREAD + p["squares"][rows]
            within[known] = own / (OWN_SPREAD + p["count"][rows])
        return Prior(offset, variance + self.visit, within)

    def locate(self, prior: Prior, members: Members) -> Location:
        """Of any groups, at the present level."""
        if not self.use_siblings:
            return self.expect(prior)
        level = self.present_level
        mean, variance = posterior(level + prior.offset, prior.variance, prior.within, members)
        return Location.of(mean, variance, prior.within, level)

    def track(self, prior: Prior, members: Members, start: Floats | None) -> Location:
        """Of all open groups, which also tell the present level.

        `start` (g,) is where they were a moment ago, if all were known.
        """
        if not self.use_siblings:
            return self.expect(prior)
        mean, variance = posterior(
            self.present_level + prior.offset, prior.variance, prior.within, members, start
        )
        innovation, noise = _innovations(self.present_level, prior, mean, variance)
        level = self.present_level = self._level_now(innovation, noise, prior.variance)
        mean, variance = posterior(
            level + prior.offset, prior.variance, prior.within, members, mean
        )
        return Location.of(mean, variance, prior.within, level)

    def expect(self, prior: Prior) -> Location:
        """Of groups whose members say nothing."""
        level = self.present_level
        return Location.of(level + prior.offset, prior.variance, prior.within, level)

    def close(self, keys: Ints, features: Floats, members: Members) -> Floats:
        """Take (g,) groups that have ended; answers their standardised innovations."""
        closed = self._closing(keys, features, members)
        self._keep(closed)
        innovation = closed.pseudo - closed.prior.offset - self.present_level
        return np.asarray(innovation / np.sqrt(closed.prior.variance + closed.noise))

    def _close_again(self, parts: list[_Closed]) -> None:
        """With what is believed now."""
        again = [self._closing(c.keys, c.features, c.members) for c in parts]
        self._closed, self._closed_sums = [], (0.0, 0.0)
        for closed in again:
            self._keep(closed)

    def _keep(self, closed: _Closed) -> None:
        self._closed.append(closed)
        weight = 1 / (closed.prior.variance + closed.noise)
        information, total = self._closed_sums
        total += float((weight * (closed.pseudo - closed.prior.offset)).sum())
        self._closed_sums = information + float(weight.sum()), total

    def _closing(self, keys: Ints, features: Floats, members: Members) -> _Closed:
        prior = self.prior(keys, features)
        level = self.present_level
        located = posterior(level + prior.offset, prior.variance, prior.within, members)
        innovation, noise = _innovations(level, prior, *located)
        pseudo = level + prior.offset + innovation
        return _Closed(keys, features, prior, members, pseudo, noise)

    def commit(self, clock: int) -> None:
        """Learn from what has closed; `clock` is the weight version (or step) that begins."""
        elapsed = max(clock - self.clock, 0)
        parts = [closed for closed in self._closed if len(closed.keys)]
        if parts:
            none, level = np.zeros(0), self.level
            variances = self.within, self.between, self.visit
            self._close_again([_merged(parts)])
            for _ in range(EM_ROUNDS):
                self.level = self.present_level = self._level_now(none, none, none)
                self._learn_variances(variances)
                self.level = level
                self._close_again(self._closed)
            self._close_again(parts)
            level = self._level_now(none, none, none)
            information = sum(float((1 / (c.prior.variance + c.noise)).sum()) for c in self._closed)
            self.level_variance = 1 / (1 / self.level_variance + information)
            self.level = self.present_level = level
            for closed in self._closed:
                self._learn_prompts(closed, self._squared_residuals(closed))
            self.commits += 1
        self._closed, self._closed_sums = [], (0.0, 0.0)
        self.level_variance = min(self.level_variance + LEVEL_DRIFT * elapsed, LEVEL_VARIANCE)
        self.clock = max(clock, self.clock)
        self.prompts.evict()

    def doubt(self, keep: float) -> None:
        """Widen what is believed of the level and of every prompt by 1 / keep."""
        self.level_variance = min(
            self.level_variance / max(keep, 1e-3) + 0.1 * (1 - keep), LEVEL_VARIANCE
        )
        p = self.prompts.columns
        p["variance"] = np.minimum(p["variance"] / max(keep, 1e-3), self.between)
        self.prompts.columns["count"] *= keep
        self.prompts.columns["squares"] *= keep

    def state_dict(self) -> State:
        """Everything learned."""
        return {
            "scalars": [self.level, self.level_variance, self.within, self.between, self.visit],
            "clocks": [self.clock, self.commits],
            "present_level": self.present_level,
            "prompts": self.prompts.state_dict(),
            "gram": self._gram.tolist(),
            "moment": self._moment.tolist(),
            "closed": [closed.state_dict() for closed in self._closed],
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self.level, self.level_variance, self.within, self.between, self.visit = state["scalars"]
        self.clock, self.commits = state["clocks"]
        self.present_level = state["present_level"]
        self.prompts.load_state_dict(state["prompts"])
        self._moment = np.array(state["moment"], dtype=np.float64)
        self._gram = np.array(state["gram"], dtype=np.float64).reshape(2 * [len(self._moment)])
        self._closed, self._closed_sums = [], (0.0, 0.0)
        for closed in state["closed"]:
            self._keep(_Closed.from_state(closed))

    def _level_now(self, innovation: Floats, noise: Floats, variance: Floats) -> float:
        """Mean of the level, by all open and uncommitted groups.

        `innovation` is relative to `present_level`; uncommitted groups carry absolute figures.
        """
        weight = 1 / (variance + noise)
        information = 1 / self.level_variance + float(weight.sum())
        total = self.level / self.level_variance
        total += float((weight * (innovation + self.present_level)).sum())
        return (total + self._closed_sums[1]) / (information + self._closed_sums[0])

    def _squared_residuals(self, c: _Closed) -> Floats:
        """(m,) of the members, from where the committed level puts their groups."""
        mean, variance = posterior(
            self.level + c.prior.offset, c.prior.variance, c.prior.within, c.members
        )
        return squared_residuals(mean, variance, c.prior.within, c.members)

    def _learn_variances(self, before: tuple[float, float, float]) -> None:
        """Blend what the closed groups say into what was believed `before`."""
        within, between, visit = np.zeros(2), np.zeros(2), np.zeros(2)
        """Each: sum of weighted moments, sum of weights."""
        for c in self._closed:
            residuals = self._squared_residuals(c)
            within += residuals.sum(), len(residuals)
            clear = np.flatnonzero(c.noise < 1.0)
            noise, off = c.noise[clear], c.pseudo[clear] - self.level
            weight = 1 / (self.between + self.visit + noise) ** 2
            strange = off - self._from_features(c.features[clear])
            between += (weight * (strange**2 - noise)).sum(), weight.sum()
            rows = self.prompts.find(c.keys[clear])
            known = rows >= 0
            rows, noise, off = rows[known], noise[known], off[known]
            aged = self._aged(rows)
            weight = 1 / (aged + self.visit + noise) ** 2
            again = (off - self.prompts["offset"][rows]) ** 2
            visit += (weight * (again - noise - aged)).sum(), weight.sum()
        blend = max(
            min(BLEND, BLEND * self.waiting / BLEND_GROUPS), FIRST_BLEND / (1 + self.commits)
        )
        self.within = _blended(before[0], within, blend, *WITHIN_BOUNDS)
        if between[1] > 0 and visit[1] <= 0:  # no prompt came again: the two cannot be told apart
            self.visit = min(before[2], VISIT_SHARE * max(float(between[0] / between[1]), 0.0))
        between[0] -= self.visit * between[1]
        self.between = _blended(before[1], between, blend, *BETWEEN_BOUNDS)
        self.visit = _blended(self.visit, visit, blend, VISIT_LEAST, self.between)

    def _learn_prompts(self, c: _Closed, residuals: Floats) -> None:
        off = c.pseudo - self.level
        self._learn_features(c, off)
        offset = self._from_features(c.features)
        self.prompts.add(c.keys, offset, np.full(len(offset), self.between), self.clock)
        p, rows = self.prompts, self.prompts.find(c.keys)
        aged = self._aged(rows)
        gain = aged / (aged + self.visit + c.noise)
        p["offset"][rows] += gain * (off - p["offset"][rows])
        p["variance"][rows] = (1 - gain) * aged
        p["last_seen"][rows] = self.clock
        for name, weights in (("count", np.ones(len(residuals))), ("squares", residuals)):
            new = np.bincount(c.members.group, weights=weights, minlength=len(rows))
            p[name][rows] = VISIT_KEEP * p[name][rows] + new

    def _aged(self, rows: Ints) -> Floats:
        """(m,) variance of these prompts' offsets now."""
        unseen = self.clock - self.prompts["last_seen"][rows]
        variance = self.prompts["variance"][rows] + OFFSET_DRIFT * unseen
        return np.asarray(np.minimum(variance, self.between))

    def _learn_features(self, c: _Closed, off: Floats) -> None:
        width = c.features.shape[1]
        if not width:
            return
        if len(self._moment) != width:
            self._gram, self._moment = np.zeros((width, width)), np.zeros(width)
        weighted = c.features / (self.between + self.visit + c.noise)[:, None]
        self._gram = FEATURES_KEEP * self._gram + weighted.T @ c.features
        self._moment = FEATURES_KEEP * self._moment + weighted.T @ off

    def _from_features(self, features: Floats) -> Floats:
        """(g,) offset that the features alone tell."""
        width = features.shape[1] if features.ndim == 2 else 0
        if not width or width != len(self._moment):
            return np.zeros(len(features))
        weights = np.linalg.solve(self._gram + RIDGE * np.eye(width), self._moment)
        return np.asarray(features @ weights)


def _merged(parts: list[_Closed]) -> _Closed:
    """As if they had closed together; of prompts with fewer features, the others are 0."""
    width = max(c.features.shape[1] for c in parts)
    first = np.cumsum([0, *(len(c.keys) for c in parts)])
    prior, members = [c.prior for c in parts], [c.members for c in parts]
    return _Closed(
        np.concatenate([c.keys for c in parts]),
        np.concatenate(
            [np.pad(c.features, ((0, 0), (0, width - c.features.shape[1]))) for c in parts]
        ),
        Prior(
            *(
                np.concatenate(column)
                for column in zip(*(vars(p).values() for p in prior), strict=True)
            )
        ),
        Members(
            np.concatenate([m.group + at for m, at in zip(members, first, strict=False)]),
            np.concatenate([m.log_amount for m in members]),
            np.concatenate([m.censored for m in members]),
        ),
        np.concatenate([c.pseudo for c in parts]),
        np.concatenate([c.noise for c in parts]),
    )


def _innovations(
    level: float, prior: Prior, mean: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """(g,) what the members alone say beyond level and offset, and that figure's variance."""
    precision = np.maximum(1 / variance - 1 / prior.variance, 1e-9)
    expected = level + prior.offset
    alone = (mean / variance - expected / prior.variance) / precision
    return alone - expected, 1 / precision


def _blended(old: float, sums: Floats, blend: float, lowest: float, highest: float) -> float:
    """A variance, moved towards the weighted moment by `blend` of their distance in logs: what was
    believed before data may be off by a factor of ten, and a tenth of it would still be all."""
    if sums[1] <= 0:
        return old
    new = min(max(float(sums[0] / sums[1]), lowest), highest)
    return min(float(old ** (1 - blend) * new**blend), highest)
