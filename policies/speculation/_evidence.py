"""What drafting has really earned: tokens per verification, and speed, from the engines' counters.

The acceptance forecast tells of drafts that were made.  What counts is what comes of *asking* for
K tokens: the drafter may find none, or a shorter one, and weights may have moved on.  So the tokens
accepted at each position are held against how often one was asked for there; of an engine that does
not tell that, how often one was found.  The sums, over all replicas, fade with the iterations that
ask for a position (what deep drafts gave is not forgotten while shallow ones are made) and with
news that contradict them; new weights leave little of them, and so does every further probe.
Position by position the share accepted is drawn towards the forecast by the weight of one draft:
sixteen that all fail are believed.

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
from steersman.estimators.observation import Floats, Observation
from steersman.estimators.speculation import to_depth
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

    tried: Floats = field(default_factory=lambda: np.zeros(0))
    """(k,) sequence-iterations that were asked to draft so deep, and in which all before was
    accepted; faded, of all replicas."""
    accepted: Floats = field(default_factory=lambda: np.zeros(0))
    """(k,) tokens accepted there."""
    speed: Floats = field(default_factory=lambda: np.zeros((0, 7)))
    """(r, 7) faded sums by replica: drafts asked, tokens accepted, iterations, their plain seconds
    and their seconds; then of plain iterations the forecast seconds and the seconds."""
    _names: tuple[str, ...] = ()
    _last: Floats = field(default_factory=lambda: np.zeros((0, 4)))
    """(r, 4 + 3k) counters."""

    def follow(self, observation: Observation, forecast: Forecast) -> None:
        """Take in an observation."""
        r = observation.replicas
        depth = int(r.max_draft_tokens.max(initial=0))
        now = _counters(observation, depth)
        if self._names != r.names or self._last.shape != now.shape:
            self._begin(r.names, now, depth)
            return
        grown = now - self._last
        self._last = now
        good = r.alive & (grown >= 0).all(axis=1) & (grown[:, ITERATIONS] > 0)
        good &= grown[:, BUSY_S] > 0
        grown = np.where(good[:, None], grown, 0.0)
        asked, drafted, accepted = np.split(grown[:, 4:], 3, axis=1)
        asked = np.maximum(asked, drafted)
        self._watch(observation, forecast, grown, asked[:, 0], accepted.sum(axis=1))
        drafts = asked[:, 0] > 0
        if drafts.any():
            tries, known = _by_position(asked.sum(axis=0), accepted.sum(axis=0))
            faded = np.exp(-grown[drafts, ITERATIONS].mean() / MEMORY_ITERATIONS)
            believable = self._believable(float(tries[0]), float(known[0]))
            keep = np.where(tries > 0, faded, 1.0) * believable
            self.tried = keep * self.tried + tries
            self.accepted = keep * self.accepted + known

    def forget(self, keep_drafts: float = 0.0) -> None:
        """Begin anew, with so many drafts of what was known of each position; how fast plain
        iterations are stays known."""
        keep = np.minimum(keep_drafts / np.maximum(self.tried, 1e-9), 1.0)
        self.tried, self.accepted = keep * self.tried, keep * self.accepted
        self.speed[:, :USUAL_S] = 0.0

    def forget_speed(self, row: int) -> None:
        """Of one replica with drafts."""
        self.speed[row, :USUAL_S] = 0.0

    @property
    def proven(self) -> bool:
        """Whether drafts enough have been verified since the last beginning."""
        return len(self.tried) > 0 and bool(self.tried[0] >= (1.0 - 1e-9) * PROOF)

    def acceptance(self, forecast: Forecast) -> Floats:
        """(r, k) probability that asking for position j gives it, given those before it."""
        believed = acceptance_to(forecast, len(self.tried))
        return np.asarray((self.accepted + PRIOR_DRAFTS * believed) / (self.tried + PRIOR_DRAFTS))

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
        known = float(self.tried[0])
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
        if len(self.tried) != depth:
            self.tried, self.accepted = np.zeros(depth), np.zeros(depth)

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
            "tried": self.tried.tolist(),
            "accepted": self.accepted.tolist(),
            "speed": self.speed.tolist(),
            "last": self._last.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Evidence":
        """The inverse of `state_dict`."""
        names, depth = tuple(state["names"]), len(state["tried"])

        def matrix(name: str, width: int) -> Floats:
            return np.array(state[name], dtype=np.float64).reshape(len(names), width)

        tried, accepted = (
            np.array(state[name], dtype=np.float64) for name in ("tried", "accepted")
        )
        last = matrix("last", 4 + 3 * depth)
        return cls(tried, accepted, matrix("speed", 7), names, last)


def _by_position(asked: Floats, accepted: Floats) -> tuple[Floats, Floats]:
    """(k,) tries of each position and tokens accepted of them, from (k,) sequence-iterations that
    were asked to draft so deep and (k,) tokens accepted there."""
    tries = asked.copy()
    going_on = asked[1:] / np.maximum(asked[:-1], 1e-9)
    tries[1:] = np.minimum(accepted[:-1] * going_on, asked[1:])
    return tries, np.minimum(accepted, tries)


def _counters(observation: Observation, depth: int) -> Floats:
    """(r, 4 + 3 depth) iterations and so on, then asked, drafted and accepted by position."""
    r = observation.replicas
    columns = np.stack((r.iterations, r.busy_s, r.sequences_run, r.prefill_tokens), axis=1)
    by_position = [to_depth(each, depth) for each in (r.asked_at, r.drafted_at, r.accepted_at)]
    return np.concatenate((columns, *by_position), axis=1)
