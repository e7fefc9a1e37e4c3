"""Four times that no scheduling can beat, for one step on a given fleet.

- *longest*: the longest trajectory alone on the fastest replica;
- *work*: all tokens at the best rate that any batch size has, contexts free of charge;
- *average*: every replica pays M per iteration and the longest trajectory's tokens need that many
  iterations on some replica, while each token costs c (and its context) once somewhere:
  (M Lmax + sum of work) / R is the least mean of what R replicas need (arXiv 2608.22788 uses the
  sum over batch sizes; for an affine iteration time it collapses to this);
- *memory*: every token holds its context in the KV cache for one iteration, and an iteration takes
  at least M + c: the area needed over the area there is.

Efficiency is the largest of them over what was achieved, at most 1.  Mixed hardware counts by its
speeds.  A prefill, a hand-over, a barrier within the step are not in the bounds.
"""

from dataclasses import dataclass

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.observation import Ints


@dataclass(frozen=True)
class Bounds:
    """Seconds."""

    longest_s: float
    work_s: float
    average_s: float
    memory_s: float

    @property
    def best_s(self) -> float:
        """The largest."""
        return max(self.longest_s, self.work_s, self.average_s, self.memory_s)


def bounds(length: Ints, prompt_tokens: Ints, plan: FleetPlan) -> Bounds:
    """Of one step whose (n,) trajectories write `length` tokens after `prompt_tokens`."""
    if not len(length):
        return Bounds(0.0, 0.0, 0.0, 0.0)
    profile, tokens = plan.profile, length.astype(np.float64)
    speeds = np.array(plan.speeds or (1.0,) * plan.replicas)
    context = tokens * prompt_tokens + tokens * tokens / 2  # summed over the tokens
    alone = profile.batch_s(1.0) * tokens + profile.token_s * context
    batch = np.arange(1, profile.max_num_seqs + 1).astype(np.float64)
    iteration_s = profile.batch_s(batch)
    best_rate = float((batch / iteration_s).max())
    # the line from (0, M) that no batch lies below: M per iteration, c per token
    each_s = float(((iteration_s - profile.batch_s(0.0)) / batch).min())
    work = each_s * tokens + profile.token_s * context
    held = profile.batch_s(1.0) * context.sum()
    capacity = profile.kv_capacity_tokens or np.inf
    return Bounds(
        longest_s=float(alone.max() / speeds.max()),
        work_s=float(tokens.sum() / (best_rate * speeds.sum())),
        average_s=float((profile.batch_s(0.0) * tokens.max() + work.sum()) / speeds.sum()),
        memory_s=float(held / (capacity * speeds.sum())),
    )
