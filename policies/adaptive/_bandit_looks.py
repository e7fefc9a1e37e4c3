"""What one more look at an arm is worth: the knowledge gradient for correlated beliefs.

A look at arm a moves the believed costs of all arms by s_a Z, Z standard normal (Frazier, Powell &
Dayanik 2009).  It is worth  min mean - E min(mean + s_a Z)  per later step, and 0 where no outcome
could change the choice.  E is the mean over fixed quantiles of Z, without a draw.
"""

from statistics import NormalDist

import numpy as np

from steersman.estimators.observation import Floats
from steersman.policies.adaptive._bandit_model import ArmModel

POINTS = 41
QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / POINTS) for i in range(POINTS)])


def worth_of_looks(model: ArmModel, x: Floats) -> Floats:
    """(k,) expected fall of the best believed log cost after one step under each arm."""
    rows = model.rows(x)
    against = rows - rows[0]
    toward = model.covariance @ rows.T
    predicted = np.einsum("ij,ji->i", rows, toward) + model.variance
    moves = (against @ toward) / np.sqrt(predicted)  # of arm i, by a look at arm j
    mean = against @ model.mean
    after = mean[:, None, None] + moves[:, :, None] * QUANTILES
    return np.asarray(np.maximum(mean.min() - after.min(axis=0).mean(axis=1), 0.0))
