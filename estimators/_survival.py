"""How much each trajectory will write (or how many turns it will take), as hazards of two kinds.

1. *By location*: log amount minus the group's location (`_location`), over its predictive
   deviation; a forgetting survival curve over that residual (`_hazard`) makes good whatever the
   normal model gets wrong on average.  A trajectory ages along the curve at the location that was
   believed when it was last *anchored*, anew at each doubling of its age, because that is how
   forecasts use it: fixed location, long horizon.
2. *By age alone*: a second curve over log amount itself, the same for all.  It knows what no
   location can: limits on turns or context, loops that run into the cap.

A group's hazard is a mixture of the two, with a share per length that maximises the likelihood of
what happened (recursive Newton steps); `_outlook` turns it into quantiles and means.
"""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._hazard import Hazard, normal_hazard
from steersman.estimators._location import Location, LocationModel, Prior
from steersman.estimators._lookup import find, has, match
from steersman.estimators._outlook import Grid, Hazards
from steersman.estimators._tobit import Members
from steersman.estimators.contract import State
from steersman.estimators.observation import Bools, Floats, Ints

RESIDUAL_SPAN, RESIDUAL_BINS = (-5.0, 7.0), 120
AGE_SPAN, AGE_BINS = (-1.0, 14.0), 150
"""0.4 to 1.2 million; bins of 10 % amount."""
PRIOR_TAIL_RATE = 1.5
"""Largest prior hazard: where nothing was seen, half of what has come far ends within +60 %."""
RESIDUAL_PRIOR, AGE_PRIOR = 3.0, 1.0
"""Passages through a bin that the prior hazards count for."""
ANCHOR_GROWTH = 0.7
"""Log amount after which a trajectory is anchored anew: a doubling.  At every tick: +3 % pinball
loss on long chains of thought, because survivors' locations creep up with their age."""
SHARE_SMOOTHING = np.array([0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25])
SHARE_PRIOR = 10.0
"""Events' worth of curvature that hold a share where it is."""
SHARE_KEEP = 0.9
SHARE_BOUNDS = (0.02, 0.98)
COMMIT_GROUPS = 16_384
"""Closed groups after which a run commits whose clock stands still: more than any step has.  Of a
step the first to close are the short ones and the last the long ones, so that one of 1,024 groups
that committed 256 at a time swung its level by a factor of 4."""
LEAST_KEPT = 0.2
"""Share of the evidence that doubts leave, however many come within one weight version: what they
doubt is one and the same, and curves without evidence say nothing sensible."""
HEALTH_KEEP = 0.7
"""Of the calibration counts, per commit."""


@dataclass(frozen=True)
class View:
    """One observation as amounts: n trajectories alive, g open groups, m that just ended."""

    clock: int
    trajectory_id: Ints
    """(n,) ascending."""
    group_row: Ints
    log_age: Floats
    group_id: Ints
    """(g,) ascending."""
    prompt_key: Ints
    features: Floats
    ended_id: Ints
    ended_group: Ints
    ended_key: Ints
    ended_log_amount: Floats
    ended_censored: Bools


@dataclass
class _Anchored:
    """Trajectories alive at the last observation; all arrays (n,)."""

    trajectory_id: Ints
    mean: Floats
    deviation: Floats
    since: Floats
    """Log age when anchored."""
    reached: Floats
    """Log age so far."""
    spent: Floats
    """Cumulative hazard in its life so far: at its end exponential when calibrated, whatever it was
    anchored to on the way (time change of a point process)."""

    @classmethod
    def none(cls) -> "_Anchored":
        """Nobody."""
        return cls(np.zeros(0, dtype=np.int64), *(np.zeros(0) for _ in range(5)))

    def match(self, ids: Ints) -> tuple[Ints, Ints]:
        """Own rows and rows of `ids` that are the same trajectory."""
        return match(self.trajectory_id, ids)


@dataclass
class _EndedMembers:
    """Ended trajectories of groups that are still open; all arrays (m,)."""

    group_id: Ints
    key: Ints
    log_amount: Floats
    censored: Bools

    def of(self, rows: Bools) -> "_EndedMembers":
        """A part of them."""
        return _EndedMembers(
            self.group_id[rows], self.key[rows], self.log_amount[rows], self.censored[rows]
        )


@dataclass
class Survival:
    """The model of the module's docstring."""

    memory: float
    """Weight versions after which 63 % of the curves is forgotten."""
    locations: LocationModel
    use_age: bool = True
    residual_curve: Hazard = field(init=False)
    age_curve: Hazard = field(init=False)
    share: Floats = field(init=False)
    """(AGE_BINS,) of the hazard by location."""
    surprises: Floats = field(default_factory=lambda: np.zeros(0), init=False)
    """Of the groups that the last `observe` closed."""
    events: float = field(default=0.0, init=False)
    """Trajectories seen to finish."""

    def __post_init__(self) -> None:
        centres = np.linspace(*RESIDUAL_SPAN, RESIDUAL_BINS, endpoint=False)
        centres += (RESIDUAL_SPAN[1] - RESIDUAL_SPAN[0]) / RESIDUAL_BINS / 2
        self.residual_curve = Hazard(
            *RESIDUAL_SPAN, np.minimum(normal_hazard(centres), PRIOR_TAIL_RATE), RESIDUAL_PRIOR
        )
        self.age_curve = Hazard(*AGE_SPAN, np.full(AGE_BINS, PRIOR_TAIL_RATE), AGE_PRIOR)
        self.share = np.full(AGE_BINS, 0.5 if self.use_age else 1.0)
        self._slope, self._bend, self._bend_kept = (np.zeros(AGE_BINS) for _ in range(3))
        self._anchored, self._mean = _Anchored.none(), np.zeros(0)
        """The second: location of the open groups."""
        self._open_id, self._features = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        none = np.zeros(0, dtype=np.int64)
        self._ended = _EndedMembers(none, none, np.zeros(0), none.astype(np.bool_))
        self._kept = 1.0
        """Share of the evidence that doubts have left since the last commit."""
        self._inside = np.zeros(3)
        """Ended: counted, below q90, between q10 and q90."""

    def observe(self, view: View) -> Location:
        """Age the survivors, count the ended, close groups; says where the open groups stand."""
        if view.clock > self.locations.clock or self.locations.waiting >= COMMIT_GROUPS:
            self._commit(view.clock)
        unseen = self._age(view)
        self._close_groups(view)
        location = self.locations.track(*self._groups(view), self._warm_start(view))
        self._open_id, self._mean, self._features = view.group_id, location.mean, view.features
        self._add_unseen(view, unseen)
        self._anchor(view, location)
        return location

    def hazards(self, location: Location) -> Hazards:
        """Of groups at these locations."""
        a, r = self.age_curve, self.residual_curve
        return Hazards(
            mean=location.mean,
            deviation=location.deviation,
            residual=Grid(r.cumulative(), r.lowest, r.width),
            share=self.share,
            age=Grid((1 - self.share) * a.rate() * a.width, a.lowest, a.width),
        )

    def doubt(self, keep: float) -> None:
        """Keep this share of the evidence; several doubts within one weight version leave at least
        `LEAST_KEPT`, or what the strongest of them leaves."""
        before = self._kept
        self._kept = min(before, max(before * keep, min(LEAST_KEPT, keep)))
        keep = self._kept / before
        if keep >= 1:
            return
        self.residual_curve.scale(keep)
        self.age_curve.scale(keep)
        self._bend_kept *= keep
        self.locations.doubt(keep)

    def health(self) -> dict[str, float]:
        """Coverage of recent ends by what was expected of their hazard all along."""
        counted, below, between = self._inside.tolist()
        return {
            "q90_coverage": below / counted if counted else float("nan"),
            "q10_q90_coverage": between / counted if counted else float("nan"),
        }

    def state_dict(self) -> State:
        """What was learned, and where everyone stood last."""
        a, e = self._anchored, self._ended
        return {
            "locations": self.locations.state_dict(),
            "residual_curve": self.residual_curve.state_dict(),
            "age_curve": self.age_curve.state_dict(),
            "shares": [x.tolist() for x in (self.share, self._slope, self._bend, self._bend_kept)],
            "events": self.events,
            "kept": self._kept,
            "inside": self._inside.tolist(),
            "anchored": [column.tolist() for column in vars(a).values()],
            "ended": [column.tolist() for column in vars(e).values()],
            "open": [self._open_id.tolist(), self._mean.tolist(), self._features.tolist()],
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self.locations.load_state_dict(state["locations"])
        self.residual_curve.load_state_dict(state["residual_curve"])
        self.age_curve.load_state_dict(state["age_curve"])
        self.share, self._slope, self._bend, self._bend_kept = map(np.array, state["shares"])
        self.events, self._inside = state["events"], np.array(state["inside"])
        self._kept = state["kept"]
        ids, *columns = state["anchored"]
        self._anchored = _Anchored(
            np.array(ids, dtype=np.int64), *(np.array(c, dtype=np.float64) for c in columns)
        )
        group_id, key, log_amount, censored = state["ended"]
        self._ended = _EndedMembers(
            np.array(group_id, dtype=np.int64),
            np.array(key, dtype=np.int64),
            np.array(log_amount, dtype=np.float64),
            np.array(censored, dtype=np.bool_),
        )
        open_id, mean, features = state["open"]
        self._open_id = np.array(open_id, dtype=np.int64)
        self._mean = np.array(mean, dtype=np.float64)
        width = -1 if features else 0
        self._features = np.array(features, dtype=np.float64).reshape(len(open_id), width)
        self.surprises = np.zeros(0)

    def _commit(self, clock: int) -> None:
        self._kept = 1.0
        elapsed = max(clock - self.locations.clock, 0)
        keep = float(np.exp(-elapsed / self.memory))
        self.residual_curve.scale(keep)
        self.age_curve.scale(keep)
        self.locations.commit(clock)
        self._inside *= HEALTH_KEEP
        if self.use_age:
            slope = np.convolve(self._slope, SHARE_SMOOTHING, mode="same")
            self._bend_kept = SHARE_KEEP * self._bend_kept + self._bend
            bend = np.convolve(self._bend_kept, SHARE_SMOOTHING, mode="same")
            self.share = np.clip(self.share + slope / (bend + SHARE_PRIOR), *SHARE_BOUNDS)
            self._slope, self._bend = np.zeros(AGE_BINS), np.zeros(AGE_BINS)

    def _age(self, view: View) -> Ints:
        """Let everyone who was alive age to now, or to its end; answers the ended ones that never
        were seen alive."""
        a = self._anchored
        rows, here = a.match(view.trajectory_id)
        ended_rows, ended = a.match(view.ended_id)
        rows, survivors = np.concatenate((rows, ended_rows)), len(rows)
        now = np.concatenate((view.log_age[here], view.ended_log_amount[ended]))
        finished = survivors + np.flatnonzero(~view.ended_censored[ended])
        mean, deviation, before = a.mean[rows], a.deviation[rows], a.reached[rows]
        by_location, by_age = self.residual_curve, self.age_curve
        start, end = (before - mean) / deviation, (now - mean) / deviation
        located, aged = _between(by_location, start, end), _between(by_age, before, now)
        bins = by_age.bin_of(now)
        share = self.share[bins]
        a.spent[rows] += share * located + (1 - share) * aged
        a.reached[rows] = now
        self._count(a.spent[rows[survivors:]], view.ended_censored[ended])
        if self.use_age:
            rates = (
                by_location.rate()[by_location.bin_of(end[finished])] / deviation[finished],
                by_age.rate()[bins[finished]],
            )
            self._weigh(bins, located - aged, finished, *rates)
        by_location.add(start, end, finished)
        by_age.add(before, now, finished)
        self.events += len(finished)
        unseen = np.ones(len(view.ended_id), dtype=np.bool_)
        unseen[ended] = False
        return np.flatnonzero(unseen)

    def _weigh(
        self, bins: Ints, excess: Floats, finished: Ints, located: Floats, aged: Floats
    ) -> None:
        """Slope and curvature of the log likelihood in the shares: sum of log(s h1 + (1 - s) h2)
        over those that finished, less s H1 + (1 - s) H2 over all."""
        at = bins[finished]
        mixed = self.share[at] * located + (1 - self.share[at]) * aged
        ratio = (located - aged) / np.maximum(mixed, 1e-9)
        self._slope += np.bincount(at, weights=ratio, minlength=AGE_BINS)
        self._slope -= np.bincount(bins, weights=excess, minlength=AGE_BINS)
        self._bend += np.bincount(at, weights=ratio**2, minlength=AGE_BINS)

    def _count(self, spent: Floats, censored: Bools) -> None:
        """Calibration: spent hazard is exponential, its quantiles -log(1 - q).  Who was cut off
        before his q90 tells nothing."""
        clear = spent[~censored | (spent > -np.log(0.1))]
        below = clear <= -np.log(0.1)
        self._inside += len(clear), below.sum(), (below & (clear >= -np.log(0.9))).sum()

    def _add_unseen(self, view: View, rows: Ints) -> None:
        """Trajectories that began and ended between two observations."""
        if not len(rows):
            return
        keys = view.ended_key[rows]
        expected = self.locations.expect(self.locations.prior(keys, np.zeros((len(keys), 0))))
        end, finished = view.ended_log_amount[rows], np.flatnonzero(~view.ended_censored[rows])
        residual = (end - expected.mean) / expected.deviation
        first = np.full(len(rows), RESIDUAL_SPAN[0])
        self.residual_curve.add(np.minimum(first, residual), residual, finished)
        self.age_curve.add(np.full(len(rows), AGE_SPAN[0]), end, finished)
        self.events += len(finished)

    def _close_groups(self, view: View) -> None:
        """Hand groups that are no longer open to the locations."""
        e = self._ended
        e = self._ended = _EndedMembers(
            np.concatenate((e.group_id, view.ended_group)),
            np.concatenate((e.key, view.ended_key)),
            np.concatenate((e.log_amount, view.ended_log_amount)),
            np.concatenate((e.censored, view.ended_censored)),
        )
        closed = ~has(view.group_id, e.group_id)
        self.surprises = np.zeros(0)
        if closed.any():
            c, self._ended = e.of(closed), e.of(~closed)
            groups, first, row = np.unique(c.group_id, return_index=True, return_inverse=True)
            features = self._features_of(groups)
            members = Members(row, c.log_amount, c.censored)
            self.surprises = self.locations.close(c.key[first], features, members)

    def _features_of(self, groups: Ints) -> Floats:
        """(g, f) of groups that were open at the last observation; unknown ones are 0."""
        features = np.zeros((len(groups), self._features.shape[1]))
        at, here = match(self._open_id, groups)
        features[here] = self._features[at]
        return features

    def locate(self, view: View) -> Location:
        """Where a view's groups stand, given what was observed; learns nothing."""
        return self.locations.locate(*self._groups(view))

    def _groups(self, view: View) -> tuple[Prior, Members]:
        e = self._ended
        e = e.of(has(view.group_id, e.group_id))
        members = Members(
            np.concatenate((view.group_row, np.searchsorted(view.group_id, e.group_id))),
            np.concatenate((view.log_age, e.log_amount)),
            np.concatenate((np.ones(len(view.log_age), dtype=np.bool_), e.censored)),
        )
        return self.locations.prior(view.prompt_key, view.features), members

    def _warm_start(self, view: View) -> Floats | None:
        """(g,) where the open groups were at the last observation, if all were open then."""
        at = find(self._open_id, view.group_id)
        return self._mean[at] if (at >= 0).all() else None

    def _anchor(self, view: View, location: Location) -> None:
        """Take over who is alive; anchor the new ones, and those who have doubled their age."""
        mean, deviation = location.mean[view.group_row], location.deviation[view.group_row]
        fresh = _Anchored(
            view.trajectory_id, mean, deviation, view.log_age, view.log_age, np.zeros(len(mean))
        )
        old, rows = self._anchored.match(view.trajectory_id)
        fresh.spent[rows] = self._anchored.spent[old]
        keep = view.log_age[rows] - self._anchored.since[old] < ANCHOR_GROWTH
        old, rows = old[keep], rows[keep]
        for name in ("mean", "deviation", "since"):
            column = getattr(fresh, name).copy()
            column[rows] = getattr(self._anchored, name)[old]
            setattr(fresh, name, column)
        self._anchored = fresh


def _between(curve: Hazard, start: Floats, end: Floats) -> Floats:
    """(n,) hazard spent between two points."""
    edges, cumulative = curve.edges, curve.cumulative()
    return np.interp(end, edges, cumulative) - np.interp(start, edges, cumulative)
