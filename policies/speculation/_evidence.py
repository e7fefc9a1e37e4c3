"""What drafting has really earned: tokens per verification, and speed, from the engines' counters.

The acceptance forecast tells of drafts that were made.  What counts is what comes of *asking* for
K tokens: the drafter may find none, or a shorter one, and weights may have moved on.  So between
two observations every replica's drafting sequences are counted by position (asked), against the
tokens accepted there.  The sums, over all replicas, fade with the iterations and with news that
contradict them, begin anew with new weights, and nearly so with every further probe.  Position by
position the share accepted is drawn towards the forecast by the weight of one draft: sixteen that
all fail are believed.

By replica, the *speed* of the sequences that draft, relative to plain decoding:

    (1 + accepted / asked) * plain seconds / seconds,

the plain ones being forecast for the same iterations, times what this replica's plain iterations
lately took against their forecast.  Below 1 by more than a standard error of the tokens, drafting
is a loss, whatever any model says.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.policies.speculation._drafts import acceptance_to

MEMORY_ITERATIONS = 64.0
"""Iterations after which 63 % is forgotten: a collapse shows within a few ticks."""
PROOF = 16.0
"""Drafts that prove acceptance.  One trajectory takes as many iterations for them, after which the
throughput estimator has a sample too."""
SURPRISE = 4.0
"""Deviations of a tick's news from what is known that leave it whole; of what is z of them off
(`SURPRISE` / z)^4 is left.  As in the acceptance estimator: tokens of one text are alike."""
PRIOR_DRAFTS = 1.0
"""Drafts that the forecast weighs."""
MOST_USUAL = 2.0
"""Bound of the factor by which a replica is slower, or faster, than its plain forecast."""
ITERATIONS, BUSY_S, SEQUENCES, PREFILL = range(4)
ASKED, ACCEPTED, TICKED, PLAIN_S, TOOK_S, USUAL_S, USUAL_TOOK_S = range(7)


@dataclass
class Evidence:
    """Follows one run; k is the deepest draft that any engine can be told."""

    asked: Floats = field(default_factory=lambda: np.zeros(0))
    """(k,) sequence-iterations that were asked to draft so deep, faded; of all replicas."""
    accepted: Floats = field(default_factory=lambda: np.zeros(0))
    """(k,) tokens accepted there."""
    speed: Floats = field(default_factory=lambda: np.zeros((0, 7)))
    """(r, 7) faded sums by replica: drafts asked, tokens accepted, iterations, their plain seconds
    and their seconds; then of plain iterations the forecast seconds and the seconds."""
    _names: tuple[str, ...] = ()
    _last: Floats = field(default_factory=lambda: np.zeros((0, 4)))
    """(r, 4 + 2k) counters."""
    _share: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """(r, k) share of each replica's sequences that draft so deep, when there were any last."""

    def follow(self, observation: Observation, forecast: Forecast, drafting: Ints) -> None:
        """Take in an observation; (n,) `drafting` says what is drafted for each trajectory."""
        r = observation.replicas
        depth = int(r.max_draft_tokens.max(initial=0))
        now = np.concatenate((_counters(observation), _wide(r, depth)), axis=1)
        if self._names != r.names or self._last.shape != now.shape:
            self._begin(r.names, now, depth)
            return
        grown = now - self._last
        self._last = now
        self._share = _shares(observation, drafting, self._share)
        good = r.alive & (grown >= 0).all(axis=1) & (grown[:, ITERATIONS] > 0)
        good &= grown[:, BUSY_S] > 0
        grown = np.where(good[:, None], grown, 0.0)
        drafted, accepted = grown[:, 4 : 4 + depth], grown[:, 4 + depth :]
        asked = np.maximum(grown[:, [SEQUENCES]] * self._share, drafted)
        self._watch(observation, forecast, grown, asked[:, 0], accepted.sum(axis=1))
        drafts = asked[:, 0] > 0
        if drafts.any():
            new_asked, new_accepted = asked.sum(axis=0), accepted.sum(axis=0)
            keep = np.exp(-grown[drafts, ITERATIONS].mean() / MEMORY_ITERATIONS)
            keep *= self._believable(float(new_asked[0]), float(new_accepted[0]))
            self.asked = keep * self.asked + new_asked
            self.accepted = keep * self.accepted + new_accepted

    def forget(self, keep_drafts: float = 0.0) -> None:
        """Begin anew, with so many drafts of what was known; how fast plain iterations are stays
        known."""
        keep = min(keep_drafts / max(self.asked.max(initial=0.0), 1e-9), 1.0)
        self.asked, self.accepted = keep * self.asked, keep * self.accepted
        self.speed[:, :USUAL_S] = 0.0

    def forget_speed(self, row: int) -> None:
        """Of one replica with drafts."""
        self.speed[row, :USUAL_S] = 0.0

    @property
    def proven(self) -> bool:
        """Whether drafts enough have been verified since the last beginning."""
        return len(self.asked) > 0 and bool(self.asked[0] >= (1.0 - 1e-9) * PROOF)

    def acceptance(self, forecast: Forecast) -> Floats:
        """(r, k) probability that asking for position j gives it, given those before it."""
        believed = acceptance_to(forecast, len(self.asked))
        if not len(self.asked) or self.asked[0] <= 0:
            return believed
        tries = self.asked.copy()
        going_on = self.asked[1:] / np.maximum(self.asked[:-1], 1e-9)
        tries[1:] = np.minimum(self.accepted[:-1] * going_on, tries[1:])
        known = np.minimum(self.accepted, tries)
        return np.asarray((known + PRIOR_DRAFTS * believed) / (tries + PRIOR_DRAFTS))

    def drafts(self, row: int) -> float:
        """Asked for on one replica since the last beginning, faded."""
        return float(self.speed[row, ASKED])

    def speeds(self, least_iterations: float) -> Floats:
        """(r,) of the sequences that draft, as high as chance may hide; NaN where fewer iterations,
        faded, tell of it."""
        s = self.speed
        drafts = np.maximum(s[:, ASKED], 1e-9)
        gained = s[:, ACCEPTED] / drafts
        # as of geometric runs
        tokens = 1.0 + gained + np.sqrt(gained * (1.0 + gained) / drafts)
        relative = tokens * self._plain_s() / np.maximum(s[:, TOOK_S], 1e-12)
        return np.where(s[:, TICKED] >= least_iterations, relative, np.nan)

    def lost_s(self, iterations: float = np.inf) -> Floats:
        """(r,) seconds that so many iterations with drafts, or those there were, lately took beyond
        plain ones, whatever was gained."""
        share = np.minimum(iterations / np.maximum(self.speed[:, TICKED], 1e-9), 1.0)
        return np.asarray(share * np.maximum(self.speed[:, TOOK_S] - self._plain_s(), 0.0))

    def _plain_s(self) -> Floats:
        usual = self.speed[:, USUAL_TOOK_S] / np.maximum(self.speed[:, USUAL_S], 1e-12)
        known = self.speed[:, USUAL_S] > 0
        factor = np.where(known, np.clip(usual, 1.0 / MOST_USUAL, MOST_USUAL), 1.0)
        return np.asarray(factor * self.speed[:, PLAIN_S])

    def _believable(self, asked: float, accepted: float) -> float:
        """Share of what is known that such news of the first position leave."""
        if not self.proven:
            return 1.0
        known = float(self.asked[0])
        chance = min(max(float(self.accepted[0]) / known, 1.0 / known), 1.0 - 1.0 / known)
        variance = chance * (1.0 - chance) * asked * (1.0 + asked / known)
        excess = accepted - chance * asked
        return min(1.0, SURPRISE**2 * variance / max(excess**2, 1e-12)) ** 2

    def _begin(self, names: tuple[str, ...], now: Floats, depth: int) -> None:
        """Other replicas, or deeper drafts: counters begin here, and speeds that are known stay."""
        old = {name: row for row, name in enumerate(self._names)}
        rows = np.array([old.get(name, -1) for name in names], dtype=np.int64)
        speed = np.zeros((len(names), self.speed.shape[1]))
        speed[rows >= 0] = self.speed[rows[rows >= 0]]
        self.speed, self._names, self._last = speed, names, now
        self._share = np.zeros((len(names), depth))
        if len(self.asked) != depth:
            self.asked, self.accepted = np.zeros(depth), np.zeros(depth)

    def _watch(
        self,
        observation: Observation,
        forecast: Forecast,
        grown: Floats,
        asked: Floats,
        accepted: Floats,
    ) -> None:
        r, f = observation.replicas, forecast.throughput
        n = grown[:, ITERATIONS]
        batch = grown[:, SEQUENCES] / np.maximum(n, 1.0)
        plain_s = f.iteration_s(batch, r.kv_cache_usage * r.kv_capacity_tokens) * n
        plain_s = np.nan_to_num(plain_s + f.prefill_token_s * grown[:, PREFILL])
        known = (f.samples > 0) & (n > 0)
        drafts = known & (asked > 0)
        plain = known & ~drafts
        new = np.stack((asked, accepted, n, plain_s, grown[:, BUSY_S]), axis=1)
        keep = np.exp(-n / MEMORY_ITERATIONS)[:, None]
        self.speed[drafts, :USUAL_S] *= keep[drafts]
        self.speed[drafts, :USUAL_S] += new[drafts]
        self.speed[plain, :USUAL_S] = 0.0  # it drafts no more
        self.speed[plain, USUAL_S:] *= keep[plain]
        self.speed[plain, USUAL_S:] += new[plain, PLAIN_S : TOOK_S + 1]

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "names": list(self._names),
            "asked": self.asked.tolist(),
            "accepted": self.accepted.tolist(),
            "speed": self.speed.tolist(),
            "last": self._last.tolist(),
            "share": self._share.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Evidence":
        """The inverse of `state_dict`."""
        names, depth = tuple(state["names"]), len(state["asked"])

        def matrix(name: str, width: int) -> Floats:
            return np.array(state[name], dtype=np.float64).reshape(len(names), width)

        asked, accepted = (
            np.array(state[name], dtype=np.float64) for name in ("asked", "accepted")
        )
        last, share = matrix("last", 4 + 2 * depth), matrix("share", depth)
        return cls(asked, accepted, matrix("speed", 7), names, last, share)


def _counters(observation: Observation) -> Floats:
    r = observation.replicas
    columns = (r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens)
    return np.stack(columns, axis=1).astype(np.float64)


def _wide(r: Any, depth: int) -> Floats:
    """(r, 2 depth) drafted and accepted by position."""
    out = np.zeros((len(r), 2, depth))
    for kind, counts in enumerate((r.drafted_at, r.accepted_at)):
        kept = counts[:, :depth]
        out[:, kind, : kept.shape[1]] = kept
    return out.reshape(len(r), 2 * depth)


def _shares(observation: Observation, drafting: Ints, before: Floats) -> Floats:
    """(r, k) share of the running sequences that draft so deep; as before where none runs."""
    rows, (replicas, depth) = observation.running, before.shape
    at = observation.trajectories.replica_row[rows]
    deep = np.clip(drafting[rows], 0, depth)
    cell = np.bincount(at * (depth + 1) + deep, minlength=replicas * (depth + 1))
    count = cell.reshape(replicas, depth + 1)
    least = np.cumsum(count[:, ::-1], axis=1)[:, ::-1]  # that draft 0, 1, ... or more
    some: Bools = least[:, :1] > 0
    return np.where(some, least[:, 1:] / np.maximum(least[:, :1], 1), before)
