"""How many drafted tokens are accepted: discounted counts by position, shrunk twice.

Between two observations an engine adds d_i drafts that reach position i and a_i tokens accepted
there.  A token is accepted only if all before it are, so what position i is tried on is a_(i-1);
of those drafts only the share d_i / d_(i-1) is long enough to go on (taken as independent of what
was accepted; exact while all drafts are equally long).  Tries and acceptances add up by replica and
position; both fade as

- the replica drafts on: e-fold every `memory_drafts` drafts, at the positions that are drafted;
- its weights change: the drafter imitates the old ones, so each change leaves `keep_per_version`
  (however many versions it skips: an engine that restarts goes back and catches up at once);
- news contradict them, as after a refresh of the drafter: what is z deviations off leaves the share
  (`SURPRISE` / z)^4, z by replica or of the whole fleet's news, whichever is larger: replicas that
  drafted nothing doubt with the others.  The power lets go at once of what is clearly over.

Whoever stops drafting therefore loses its evidence with the versions, and `samples` says so.

Two steps of shrinkage, each a Beta prior of given weight:

1. the living fleet's pooled counts, position by position: position i is drawn towards position i-1
   (geometric acceptance unless the counts say otherwise), the first one towards `PRIOR_ACCEPTANCE`.
   Beyond the deepest drafted position the last one repeats;
2. each replica's own counts are drawn towards the fleet's figures.

Dead replicas, and counters that stand still or run backwards (paused, stale, restarted), teach
nothing; what was learned before a restart stays, because it belongs to the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from steersman.estimators._replica_columns import ReplicaColumns
from steersman.estimators.contract import AcceptanceEstimator, State
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import AcceptanceForecast
from steersman.estimators.observation import Bools, Floats, Ints, Observation
from steersman.estimators.speculation import to_depth

PRIOR_ACCEPTANCE, PRIOR_TRIES = 0.7, 10.0
"""Beta(7, 3) before anything was drafted: common drafters accept .6 to .8.  Ten tries' weight also
draws each position towards the one before it."""
FLEET_TRIES = 100.0
"""Tries of its own at which a replica weighs as much as the fleet: replicas share model and drafter
and differ by what they write, a deviation of about .05 = sqrt(.7 * .3 / 100)."""
SURPRISE = 4.0
"""Deviations of one observation from what was believed that leave the evidence whole.  Tokens of
one text are alike: their counts vary about twice as much as independent ones, so it is below 3."""
DEEPEST = 32
"""Positions kept: engines draft 1 to 16, and at an acceptance of .95 a fifth of the drafts gets so
far."""
HEALTH_KEEP = 0.99
"""Share of the health's sums that the next observation with drafts leaves: the last hundred."""


def _empty() -> ReplicaColumns:
    nothing = np.zeros(DEEPEST)
    return ReplicaColumns(
        {
            "counters": np.full((2, DEEPEST), np.nan),  # drafted, accepted as last seen
            "version": np.array(np.nan),
            "tries": nothing,
            "accepted": nothing,
        }
    )


@dataclass
class DiscountedAcceptance:
    """The estimator of the module's docstring."""

    positions: int = 8
    """Draft positions answered at least; more where the engines have drafted deeper."""
    memory_drafts: float = 2000.0
    """Drafts of a replica after which 63 % is forgotten; fewer follow a new drafter sooner."""
    keep_per_version: float = 0.5
    """Share of the evidence that a change of the weights leaves."""

    _replicas: ReplicaColumns = field(default_factory=_empty, init=False)
    _health: Floats = field(default_factory=lambda: np.zeros(3), init=False)
    """Fading sums: drafted tokens, |predicted - accepted| tokens, predicted - accepted tokens."""

    def __post_init__(self) -> None:
        if not 1 <= self.positions <= DEEPEST:
            raise InvalidInputError(f"positions is {self.positions}; valid: 1 to {DEEPEST}")
        if self.memory_drafts <= 0:
            raise InvalidInputError(f"memory_drafts is {self.memory_drafts}; valid: above 0")
        if not 0 <= self.keep_per_version <= 1:
            raise InvalidInputError(f"keep_per_version is {self.keep_per_version}; valid: 0 to 1")

    def observe(self, observation: Observation) -> None:
        """Age the evidence, then take the counters' differences since the last observation."""
        table, mine = observation.replicas, self._replicas
        mine.align(table.names)
        self._age(np.where(table.alive, table.weight_version, np.nan))
        now = np.stack(
            (to_depth(table.drafted_at, DEEPEST), to_depth(table.accepted_at, DEEPEST)), axis=1
        )
        added = now - mine["counters"]
        forward = table.alive & (added >= 0).all(axis=(1, 2))
        mine["counters"] = np.where(table.alive[:, None, None], now, np.nan)
        rows = np.flatnonzero(forward & (added[:, 0, 0] > 0))
        if len(rows):
            drafted = added[rows, 0]
            accepted = np.minimum(added[rows, 1], drafted)
            believed = self._acceptance(table.alive, DEEPEST)[rows]
            self._judge(believed, drafted, accepted)
            self._learn(rows, believed, drafted, accepted)

    def forecast(self, observation: Observation) -> AcceptanceForecast:
        """Acceptance by position; of a replica that never drafted, the fleet's."""
        table = observation.replicas
        self._replicas.align(table.names)
        width = min(max(self.positions, table.drafted_at.shape[1]), DEEPEST)
        return AcceptanceForecast(
            self._acceptance(table.alive, width), self._replicas["tries"][:, 0].copy()
        )

    def reset_on_drift(self, keep: float) -> None:
        """Keep this share of the evidence."""
        self._scale(np.full(len(self._replicas), keep))

    def health(self) -> Mapping[str, float]:
        """Share of the drafted tokens by which the forecast missed the accepted ones, lately:
        absolute by observation (chance included), and signed (above 0: too hopeful)."""
        drafted, missed, bias = self._health.tolist()
        known = drafted > 0
        return {
            "accepted_share_error": missed / drafted if known else np.nan,
            "accepted_share_bias": bias / drafted if known else np.nan,
        }

    def state_dict(self) -> State:
        """Counters, versions and evidence by replica."""
        return {"replicas": self._replicas.state_dict(), "health": self._health.tolist()}

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned."""
        self._replicas.load_state_dict(state["replicas"])
        self._health = np.array(state["health"], dtype=np.float64)

    def _age(self, version: Floats) -> None:
        """(r,) weight versions, NaN where unknown."""
        before, known = self._replicas["version"], ~np.isnan(version)
        changed = known & ~np.isnan(before) & (version != before)
        self._scale(np.where(changed, self.keep_per_version, 1.0))
        self._replicas["version"] = np.where(known, version, before)

    def _scale(self, share: Floats) -> None:
        for name in ("tries", "accepted"):
            self._replicas[name] = self._replicas[name] * share[:, None]

    def _learn(self, rows: Ints, believed: Floats, drafted: Floats, accepted: Floats) -> None:
        """(m, DEEPEST) what was believed of the replicas `rows`, and the counts that they added."""
        going_on = drafted[:, 1:] / np.maximum(drafted[:, :-1], 1.0)
        tries = drafted.copy()
        tries[:, 1:] = np.minimum(accepted[:, :-1] * going_on, drafted[:, 1:])
        tries = np.maximum(tries, accepted)
        mine = self._replicas
        excess = (accepted - tries * believed).sum(axis=1)
        doubt = 1.0 + tries / (mine["tries"][rows] + FLEET_TRIES)
        variance = (tries * believed * (1.0 - believed) * doubt).sum(axis=1)
        share = np.full(len(mine), _believable(excess.sum(), variance.sum()))
        share[rows] = np.minimum(share[rows], _believable(excess, variance))
        self._scale(share)
        # what shallow drafts tell nothing of stays: else who drafts little forgets that more paid
        kept = np.exp(-drafted[:, :1] / self.memory_drafts)
        kept = np.where(drafted > 0, kept, 1.0)
        for name in ("tries", "accepted"):
            mine[name][rows] *= kept
        mine["tries"][rows] += tries
        mine["accepted"][rows] += accepted

    def _judge(self, acceptance: Floats, drafted: Floats, accepted: Floats) -> None:
        """Hold what was believed before against what came."""
        excess = float((drafted * np.cumprod(acceptance, axis=1) - accepted).sum())
        news = np.array([float(drafted.sum()), abs(excess), excess])
        self._health = self._health * HEALTH_KEEP + news

    def _acceptance(self, alive: Bools, width: int) -> Floats:
        """(r, width) the two steps of shrinkage."""
        tries, accepted = (self._replicas[name][:, :width] for name in ("tries", "accepted"))
        pooled_tries, pooled = tries[alive].sum(axis=0), accepted[alive].sum(axis=0)
        fleet, before = np.empty(width), PRIOR_ACCEPTANCE
        for i in range(width):
            before = (pooled[i] + PRIOR_TRIES * before) / (pooled_tries[i] + PRIOR_TRIES)
            fleet[i] = before
        return np.asarray((accepted + FLEET_TRIES * fleet) / (tries + FLEET_TRIES))


def _believable(excess: Floats, variance: Floats) -> Floats:
    """Share of the evidence that is left by news which exceed it by so much."""
    return np.asarray(np.minimum(1.0, SURPRISE**2 * variance / np.maximum(excess**2, 1e-30)) ** 2)


PLUGIN: type[AcceptanceEstimator] = DiscountedAcceptance
