"""Speculation in a replay: what each replica drafts, what that costs, what its counters show.

The cost model is that of `estimators.speculation`: with K drafted tokens an iteration writes E(K)
tokens of each sequence, computes K + 1 times what one of the batch costs, and takes the drafter's
seconds K times and a verification's once.  Counters hold expected values: each iteration drafts K
tokens of every running sequence, of which position i is accepted with the probability that all up
to it are.
"""

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.observation import Floats, Ints
from steersman.estimators.speculation import expected_tokens
from steersman.mechanisms.simulated.core import SimulatedCore


class Drafting:
    """All replicas' drafters."""

    def __init__(self, core: SimulatedCore, plan: FleetPlan) -> None:
        self._core, self._draft_token_s = core, plan.draft_token_s
        self._verify_s = plan.verify_s
        self._acceptance = np.array(plan.acceptance, dtype=np.float64)
        self.tokens = np.zeros(plan.replicas, dtype=np.int64)
        """(r,) drafted at present."""
        self._counted = np.zeros(plan.replicas)
        """(r,) `sequences_run` as far as it is in the counts."""
        self._drafted = np.zeros((plan.replicas, len(plan.acceptance)))
        self._accepted = self._drafted.copy()
        if plan.draft_tokens:
            self.set(np.arange(plan.replicas), np.full(plan.replicas, plan.draft_tokens))

    @property
    def most(self) -> int:
        """Tokens that can be drafted."""
        return len(self._acceptance)

    def set(self, replicas: Ints, tokens: Ints) -> None:
        """`replicas` (m,) draft `tokens` (m,) from now on."""
        self._count(self._core.state().sequences_run)
        self.tokens[replicas] = tokens
        for replica in replicas.tolist():
            self._tell(replica)

    def change_acceptance(self, acceptance: Floats) -> None:
        """(k,) from now on, at every replica."""
        self._count(self._core.state().sequences_run)
        self._acceptance = acceptance
        for replica in np.flatnonzero(self.tokens).tolist():
            self._tell(replica)

    def counts(self, sequences_run: Floats) -> tuple[Ints, Ints]:
        """(r, k) drafted and accepted by position since the start."""
        self._count(sequences_run)
        return np.rint(self._drafted).astype(np.int64), np.rint(self._accepted).astype(np.int64)

    def _count(self, sequences_run: Floats) -> None:
        if not self.most:
            return
        new = (sequences_run - self._counted)[:, None]
        new = new * (np.arange(self.most) < self.tokens[:, None])
        self._drafted += new
        self._accepted += new * np.cumprod(self._acceptance)
        self._counted = sequences_run

    def _tell(self, replica: int) -> None:
        tokens = int(self.tokens[replica])
        written = float(expected_tokens(self._acceptance[None, :])[0, tokens])
        draft_s = tokens * self._draft_token_s + (self._verify_s if tokens else 0.0)
        self._core.set_speculation(replica, written, tokens + 1.0, draft_s)
