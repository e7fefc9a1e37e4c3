"""Four times that no scheduling can beat, for one step on a given fleet.

- *longest*: the longest trajectory alone on the replica that is fastest for it;
- *work*: all tokens at the best rate that any batch size has, contexts free of charge;
- *average*: every replica pays M per iteration and the longest trajectory's tokens need that many
  iterations on some replica, while each token costs c (and its context) once somewhere:
  (M Lmax + sum of work) / R is the least mean of what R replicas need (arXiv 2608.22788 uses the
  sum over batch sizes; for an affine iteration time it collapses to this);
- *memory*: every token holds its context in the KV cache for one iteration, and an iteration takes
  at least M + c: the area needed over the area there is.

Efficiency is the largest of them over what was achieved, at most 1.  A prefill, a hand-over, a
barrier within the step are not in the bounds, nor is what an event takes away: replicas that join
later or die count as there all the time, each at the highest speed it ever has.

Mixed hardware: rates and areas add up over the replicas.  For the average a replica's seconds
count by its profile's best rate over the fleet's; M and every trajectory's work are then the
smallest that any profile asks for so counted, which holds for any such weights.

Speculation: an iteration that drafts K tokens writes E(K) of each sequence (`speculation`); every
bound takes the K that suits it best, the average its parts one by one.

They are those of what was asked for.  Restarts, expiries and stops change what is written, and what
is written in vain is not in the bounds: a policy that restarts long trajectories may be faster than
them, so look at the tokens too.  A run whose steps are not the workload's (a stream, or steps of
`groups_wanted`) has its bounds as one step that asks for everything at once.
"""

from dataclasses import dataclass

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.observation import Floats, Ints
from steersman.estimators.speculation import expected_tokens
from steersman.mechanisms.simulated.profile import HardwareProfile


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
    tokens = length.astype(np.float64)
    context = tokens * prompt_tokens + tokens * tokens / 2  # summed over the tokens
    kinds: dict[HardwareProfile, _Kind] = {}
    speed: dict[HardwareProfile, list[float]] = {}
    for profile, own in zip(plan.each, plan.best_speeds or plan.speed.tolist(), strict=True):
        kinds.setdefault(profile, _Kind.of(profile, plan))
        speed.setdefault(profile, []).append(own)
    highest = max(kind.best_rate for kind in kinds.values())
    alone, work, fixed, rate, weighed, area = [], [], [], 0.0, 0.0, 0.0
    for profile, kind in kinds.items():
        total, weight = sum(speed[profile]), kind.best_rate / highest
        alone.append(kind.alone_s(tokens, context) / max(speed[profile]))
        work.append(weight * kind.work_s(tokens, context))
        fixed.append(weight * kind.token_fixed_s)
        rate += total * kind.best_rate
        weighed += total * weight
        area += total * kind.capacity / kind.token_single_s
    average = min(fixed) * tokens.max() + np.min(work, axis=0).sum()
    return Bounds(
        longest_s=float(np.min(alone, axis=0).max()),
        work_s=float(tokens.sum() / rate),
        average_s=float(average / weighed),
        memory_s=float(context.sum() / area),
    )


@dataclass(frozen=True, eq=False)
class _Kind:
    """What one profile asks for, at speed 1."""

    drafted: Floats
    """(k,) tokens written per iteration with K = 0, 1, ... drafted ones."""
    single_s: Floats
    """(k,) seconds of an iteration of one sequence without context."""
    fixed_s: Floats
    """(k,) M of such an iteration, the drafter included."""
    each_s: float
    """c: the line from (0, M) that no batch lies below."""
    token_s: float
    best_rate: float
    """Tokens per second."""
    capacity: float
    """Tokens the KV cache holds."""

    @classmethod
    def of(cls, profile: HardwareProfile, plan: FleetPlan) -> "_Kind":
        """Of a replica that has it."""
        acceptance = np.array(plan.best_acceptance or plan.acceptance, dtype=np.float64)
        drafted = expected_tokens(acceptance[None, :])[0]
        most = np.arange(len(drafted))[:, None]
        batch = np.arange(1, profile.max_num_seqs + 1).astype(np.float64)
        plain_s = profile.batch_s(batch)
        # what verifying does not repeat, as the simulator's replicas have it
        once_s = profile.replica_spec().fixed_s
        iteration_s = once_s + (most + 1) * (plain_s - once_s) + most * plan.draft_token_s
        fixed_s = profile.batch_s(0.0)
        return cls(
            drafted=drafted,
            single_s=iteration_s[:, 0],
            fixed_s=np.asarray(fixed_s + most[:, 0] * plan.draft_token_s, dtype=np.float64),
            each_s=float(((plain_s - fixed_s) / batch).min()),
            token_s=profile.token_s,
            best_rate=float((drafted[:, None] * batch / iteration_s).max()),
            capacity=profile.kv_capacity_tokens or np.inf,
        )

    def alone_s(self, tokens: Floats, context: Floats) -> Floats:
        """(n,) seconds of each trajectory that runs alone."""
        each = [
            (single_s * tokens + self.token_s * context) / written
            for single_s, written in zip(self.single_s, self.drafted, strict=True)
        ]
        return np.asarray(np.min(each, axis=0))

    def work_s(self, tokens: Floats, context: Floats) -> Floats:
        """(n,) what each adds to its iterations."""
        each = self.token_s / self.drafted.max()
        return np.asarray(self.each_s * tokens + each * context)

    @property
    def token_fixed_s(self) -> float:
        """M per token of one sequence."""
        return float((self.fixed_s / self.drafted).min())

    @property
    def token_single_s(self) -> float:
        """An iteration of one sequence per token."""
        return float((self.single_s / self.drafted).min())
