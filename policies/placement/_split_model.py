"""What a tail pool of m replicas for q groups would have saved, on the groups of past steps."""

import numpy as np

from steersman.estimators.observation import Floats, Ints
from steersman.policies.placement._pools import FleetSpeed
from steersman.policies.placement._step_book import Groups


class SplitModel:
    """T(q, m) over T(0, 0), the mean over some steps."""

    def __init__(
        self, steps: list[Groups], speed: FleetSpeed, replicas: int, tail_share: float
    ) -> None:
        self.replicas, self.groups = replicas, len(steps[-1])
        self._steps = [_Step(step, speed, replicas, tail_share) for step in steps]
        self._steps = [step for step in self._steps if step.most]
        self.most = max((step.most for step in self._steps), default=0)
        """Groups that the tail pool can get."""

    def share(self, m: int) -> Floats:
        """(most + 1,) of q = 0, 1, ..., for 0 < m < replicas."""
        q = np.arange(self.most + 1)
        shares = [step.share(np.minimum(q, step.most), m) for step in self._steps]
        return np.asarray(np.mean(shares, axis=0)) if shares else np.ones(1)

    def best(self, m: int) -> tuple[int, float]:
        """The best q >= 1 with this m, and its share; call it only with candidates."""
        share = self.share(m)[1:]
        at = int(np.argmin(share))
        return at + 1, float(share[at])


class _Step:
    """T(q, m) over T(0, 0) on the groups of one step, the latest expected first."""

    def __init__(self, groups: Groups, speed: FleetSpeed, replicas: int, share: float) -> None:
        order = np.lexsort((groups.group_id, -groups.expected))
        self._speed, self._replicas = speed, replicas
        self.most = min(int((groups.expected >= 1 - share).sum()), len(groups) - 1)
        longest = groups.longest[order].astype(np.float64)
        # longest of the first q, and of those after them
        self._first = np.concatenate(([0.0], np.maximum.accumulate(longest)))
        self._after = np.append(np.maximum.accumulate(longest[::-1])[::-1], 0.0)
        self._tokens = np.concatenate(([0.0], np.cumsum(groups.tokens[order])))
        self._context = np.concatenate(([0.0], np.cumsum(groups.context[order])))

    def share(self, q: Ints, m: int) -> Floats:
        """(k,) for 0 < m < replicas."""
        tail = self._pool_s(self._first[q], self._tokens[q], self._context[q], m)
        tokens, context = self._tokens[-1] - self._tokens[q], self._context[-1] - self._context[q]
        bulk = self._pool_s(self._after[q], tokens, context, self._replicas - m)
        all_of_it = self._first[-1:], self._tokens[-1:], self._context[-1:]
        uniform = np.maximum(self._pool_s(*all_of_it, self._replicas), 1e-9)
        return np.asarray(np.maximum(tail, bulk) / uniform)

    def _pool_s(self, longest: Floats, tokens: Floats, context: Floats, replicas: int) -> Floats:
        return self._speed.pool_s(longest, tokens, context, np.array([float(replicas)]))
