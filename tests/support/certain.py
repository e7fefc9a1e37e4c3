"""A forecast that knows every length, and replicas as they are."""

from dataclasses import replace

import numpy as np

from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.forecast import Forecast, LengthForecast, ThroughputForecast
from steersman.estimators.observation import Ints, Observation


def certain(seen: Observation, length: Ints, plan: FleetPlan) -> Forecast:
    """Of trajectories that write `length` (by id) tokens each, on `plan`'s equal replicas."""
    t, spec, r = seen.trajectories, plan.profile.replica_spec(), len(seen.replicas)
    left = np.maximum(length[t.trajectory_id] - t.generated_tokens, 0).astype(np.float64)
    same = np.stack((left, left, left), axis=1)
    return replace(
        Forecast.unknown(seen),
        length=LengthForecast(same, left, np.ones_like(same), np.zeros(len(seen.groups))),
        throughput=ThroughputForecast(
            fixed_s=np.full(r, spec.fixed_s),
            per_sequence_s=np.full(r, spec.sequence_s),
            sequence_s=np.full(r, spec.sequence_s),
            token_s=np.full(r, spec.token_s),
            knee_s=np.full(r, spec.knee_s),
            kv_capacity_tokens=np.full(r, float(plan.profile.kv_capacity_tokens)),
            prefill_token_s=np.full(r, spec.prefill_token_s),
            handover_s=np.zeros(r),
            relative_error=np.zeros(r),
            samples=np.full(r, 1000),
            verify_s=np.zeros(r),
            verify_token_s=np.full(r, spec.sequence_s),
        ),
    )
