"""Whether what is put off now would still be fresh enough when the next step resumes it."""

import numpy as np

from steersman.estimators.observation import NO_VERSION, Bools, Observation


def may_go_on(observation: Observation) -> Bools:
    """(n,) whether the lag bound lets the row go on under the next weights."""
    t, trainer = observation.trajectories, observation.trainer
    oldest = np.where(
        t.oldest_weight_version == NO_VERSION, trainer.weight_version, t.oldest_weight_version
    )
    return np.asarray(trainer.weight_version + 1 - oldest <= trainer.max_lag)
