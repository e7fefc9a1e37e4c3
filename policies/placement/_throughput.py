"""Tokens per second of each replica, and by how much one trajectory more or less changes it."""

from dataclasses import dataclass, field

import numpy as np

from steersman.estimators.forecast import KNEE, Forecast, ThroughputForecast
from steersman.estimators.observation import Bools, Floats, Ints, Observation


@dataclass
class Flow:
    """What r replicas run, kept up to date while decisions are made."""

    model: ThroughputForecast
    alive: Bools
    open: Bools
    """May get something."""
    rank: Ints
    """Order of the replicas' names: ties do not depend on their rows."""
    slots: Ints
    count: Ints
    """In flight, those on their way included."""
    kv: Floats
    """Tokens of their contexts."""
    queue: Ints
    """Requests waiting in the engine."""
    context: Ints
    """(n,) prompt and generated tokens of every trajectory."""
    _now: Floats = field(init=False)
    """(r,) tokens per second."""
    _most: float = field(init=False)
    """What any trajectory could have alone on the best replica, were its context empty."""

    def __post_init__(self) -> None:
        self._now = self._rate(self.count, self.kv)
        one = np.ones(len(self.count))
        self._most = float(np.where(self.open, self._rate(one, 0 * one), 0.0).max())

    @classmethod
    def of(
        cls, observation: Observation, forecast: Forecast, admitted: Bools, queue: Ints
    ) -> "Flow":
        """As observed; only `admitted` replicas get anything."""
        replicas, t = observation.replicas, observation.trajectories
        return cls(
            model=forecast.throughput,
            alive=replicas.alive,
            open=admitted,
            rank=replicas.name_rank,
            slots=np.maximum(replicas.max_num_seqs, 1),
            count=observation.inflight(),
            kv=observation.resident_tokens().astype(np.float64),
            queue=np.where(observation.inflight() > 0, queue, 0),
            context=t.prompt_tokens + t.generated_tokens,
        )

    def rate(self) -> Floats:
        """(r,) tokens per second; 0 of the dead."""
        return np.where(self.alive, self._now, 0.0)

    def rise(self, tokens: int | Ints) -> Floats:
        """(r,) by how much one more with so long a context raises it; 0 where it cannot run.

        (m, r) for tokens (m, 1).
        """
        capacity, kv = self.model.kv_capacity_tokens, self.kv + tokens
        fits = (capacity <= 0) | (kv <= capacity) | (self.count == 0)
        runs = self.open & fits & (self.count < self.slots) & (self.queue == 0)
        more = self._rate(self.count + 1, kv) - self._now
        return np.where(runs, np.maximum(more, 0.0), 0.0)

    def fall(self, replica: Ints, tokens: Ints) -> Floats:
        """(m,) by how much it sinks on `replica` where one leaves, with so long a context each."""
        less = self._rate(self.count - 1, self.kv - tokens[:, None])
        return np.asarray(self._now[replica] - less[np.arange(len(replica)), replica])

    def fill(self, tokens: Ints, share: float) -> tuple[Ints, Floats]:
        """`best` for each in turn, and `add`: replicas and rises, up to the first that waits."""
        from steersman.policies.placement._waterfall import by_rise  # numba loads slowly

        m = self.model
        model = np.stack((m.fixed_s, m.sequence_s, m.token_s, m.knee_s, m.kv_capacity_tokens))
        targets, rises = by_rise(
            tokens, float(share), self._most, model, KNEE, self.open, self.rank, self.slots,
            self.queue, self.count, self.kv, self._now,
        )  # fmt: skip
        taken = targets >= 0
        return targets[taken], rises[taken]

    def best(self, tokens: int, share: float) -> tuple[int, float]:
        """Replica with the largest rise, and the rise; -1 if below `share` of the ideal.

        An idle fleet's best replica is always taken.
        """
        rise = self.rise(tokens)
        target = self.first(rise)
        largest = float(rise[target])
        if largest <= 0 or (largest < share * self._most and largest < share * self._ideal(tokens)):
            return -1, 0.0
        return target, largest

    def first(self, value: Floats) -> int:
        """The replica of the largest value; the first by name of those."""
        ties = np.flatnonzero(value == value.max())
        return int(ties[np.argmin(self.rank[ties])])

    def move(self, source: int, target: int, tokens: int) -> None:
        """One leaves `source` for `target`."""
        self._change(source, -1, -tokens)
        self._change(target, 1, tokens)

    def _change(self, replica: int, trajectories: int, tokens: int) -> None:
        self.count[replica] += trajectories
        self.kv[replica] += tokens
        self._now[replica] = self._rate(self.count, self.kv)[replica]

    def _ideal(self, tokens: int) -> float:
        """Tokens per second that it would have alone on the best replica."""
        one = np.ones(len(self.count))
        return float(np.where(self.open, self._rate(one, one * tokens), 0.0).max())

    def _rate(self, count: Ints | Floats, kv: Floats) -> Floats:
        """n / (k1 kv + k3 n + k4), with the forecast's surcharge above the KV knee."""
        seconds = self.model.iteration_s(np.asarray(count, dtype=np.float64), kv)
        return np.asarray(np.minimum(count, self.slots) / np.maximum(seconds, 1e-9))
