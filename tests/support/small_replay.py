"""A small replay: two policies, a few steps of short trajectories, two replicas."""

from collections.abc import Sequence

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options
from steersman.controller.replay.study import Comparison, Study
from steersman.controller.replay.workload import Asked, Workload
from steersman.mechanisms.simulated.profile import HardwareProfile

PROFILE = HardwareProfile(
    name="a small machine",
    gpu="none",
    model="none",
    tensor_parallel=1,
    fixed_s=0.01,
    sequence_s=0.001,
    token_s=1e-6,
    prefill_token_s=1e-5,
    kv_capacity_tokens=8000,
    max_num_seqs=6,
    batch_range=(1, 4),
)
CAP = 400
BARRIER = Options()
POLICIES = ("sticky_least_inflight", "tail_planner")


def small_workload(
    steps: int = 2, groups: int = 2, size: int = 4, seed: int = 0, censored: bool = False
) -> Workload:
    """Steps of heavy-tailed lengths, at most `CAP` tokens."""
    rng = np.random.default_rng(seed)
    n = groups * size
    lengths = [
        np.minimum(rng.lognormal(4.0, 1.0, n).astype(np.int64) + 1, CAP) for _ in range(steps)
    ]
    asked = [
        Asked.plain(
            step=number,
            prompt_key=np.arange(groups) + number * groups,
            group_row=np.repeat(np.arange(groups), size),
            prompt_tokens=20,
            length=length,
            max_new_tokens=CAP,
            censored=np.arange(n) < (2 if censored else 0),
        )
        for number, length in enumerate(lengths)
    ]
    return Workload(asked, ("every prompt has 20 <tokens>",))


def small_comparison(
    workload: Workload,
    policies: Sequence[str] = POLICIES,
    imputations: int = 2,
    overrides: Sequence[str] = (),
    replicas: int = 2,
    options: Options = BARRIER,
) -> Comparison:
    """The policies on the workload."""
    plan = FleetPlan(PROFILE, replicas)
    study = Study(workload, plan, ("tick_s=0.2", *overrides), options=options)
    return study.compare(policies, imputations)
