"""The one migration that most relieves the replica that would end last, if any is worth it."""

from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.placement._load import Load


@dataclass(frozen=True)
class Move:
    """A trajectory, where it goes, and what is expected of that."""

    row: int
    source: int
    target: int
    gain_s: float
    """Predicted: how much earlier the later of the two replicas ends."""
    cost_s: float


@dataclass
class MoveSearch:
    """Finds moves one after another; each found move is taken into account for the next."""

    observation: Observation
    forecast: Forecast
    load: Load
    handover_s: float
    imbalance: float
    candidates: Ints
    """Rows that may move."""

    def __post_init__(self) -> None:
        replicas = self.observation.replicas
        self._free = np.where(
            replicas.alive, replicas.max_num_seqs - self.observation.inflight(), 0
        )
        t = self.observation.trajectories
        self._tokens = t.prompt_tokens + t.generated_tokens
        capacity = replicas.kv_capacity_tokens
        resident = self.observation.resident_tokens()
        self._kv_room = np.where(capacity > 0, capacity - resident, np.inf).astype(np.float64)

    def next(self) -> Move | None:
        """The best move from the replica that would end last; None: doing nothing is better."""
        load, end = self.load, self.load.end_s
        source = int(np.argmax(np.where(self.observation.replicas.alive, end, -1.0)))
        targets = np.flatnonzero((self._free > 0) & (end < (1 - self.imbalance) * end[source]))
        rows = self.candidates
        rows = rows[self.observation.trajectories.replica_row[rows] == source]
        if not len(rows) or not len(targets):
            return None
        length = self.forecast.length
        prefill = self.forecast.throughput.prefill_token_s[targets]
        cost = self.handover_s + self._tokens[rows][:, None] * prefill
        mean, low = length.mean_remaining_tokens[rows], length.remaining_tokens[rows, 0]
        is_longest = rows == load.longest_row[source]
        rest = np.where(is_longest, load.second[source], load.longest[source])
        gain = self._gain(source, targets, rest, mean, length.upper[rows], mean, cost)
        sure = self._gain(source, targets, rest, low, low, mean, cost)
        fits = self._tokens[rows][:, None] + length.upper[rows][:, None] <= self._kv_room[targets]
        gain = np.where(fits & (sure > 0) & (gain > cost), gain, -np.inf)
        at, to = divmod(int(np.argmax(gain)), len(targets))
        if not np.isfinite(gain[at, to]):
            return None
        move = Move(
            int(rows[at]), source, int(targets[to]), float(gain[at, to]), float(cost[at, to])
        )
        self._take(move, float(rest[at]))
        return move

    def _gain(
        self,
        source: int,
        targets: Ints,
        rest: Floats,
        work: Floats,
        longest: Floats,
        mean: Floats,
        cost: Floats,
    ) -> Floats:
        """(rows, targets) by how much the later of the two ends earlier.

        If a row's remaining length were `longest` for the maximum and `work` for the sum; `rest`
        is the longest of its replica without it, `mean` what the load's sum counts for it.
        """
        load, m, c = self.load, self.load.fixed_s, self.load.per_sequence_s
        others = load.work[source] - mean
        before = m[source] * np.maximum(rest, longest) + c[source] * (others + work)
        left = m[source] * rest + c[source] * others
        there = np.maximum(load.longest[targets], longest[:, None])
        there_work = load.work[targets] + work[:, None]
        arrives = m[targets] * there + c[targets] * there_work + cost
        return np.asarray(before[:, None] - np.maximum(left[:, None], arrives))

    def _take(self, move: Move, rest: float) -> None:
        load, length = self.load, self.forecast.length
        mean, upper = length.mean_remaining_tokens[move.row], length.upper[move.row]
        load.work[move.source] -= mean
        load.work[move.target] += mean
        load.longest[move.source] = rest
        load.longest[move.target] = max(load.longest[move.target], upper)
        # after one departure the ranks below are unknown; the row -1 matches nothing
        load.longest_row[move.source] = -1
        self._free[move.source] += 1
        self._free[move.target] -= 1
        self._kv_room[move.target] -= self._tokens[move.row] + upper
        self.candidates = self.candidates[self.candidates != move.row]
