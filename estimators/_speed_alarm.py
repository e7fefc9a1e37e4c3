"""Sudden changes of a replica's speed: a two-sided CUSUM (Page 1954) of standardised log errors.

A sum per direction grows by how far each sample's log error lies beyond `ALLOWANCE` deviations and
never falls below 0.  Above `THRESHOLD` it is an alarm, and the mean log error since the sum left 0
is the change.  One sample counts `CLIP` deviations at most, so that no one or two stalls alarm.
"""

import numpy as np

from steersman.estimators.observation import Bools, Floats

ALLOWANCE, THRESHOLD, CLIP = 1.5, 8.0, 4.0
"""Deviations.  Four samples alarm at a change of 4 deviations or more; by chance alone a replica
whose errors are normal and independent alarms once in more than a million samples."""
EMPTY_RUN = np.zeros((2, 3))
"""One replica's state: by direction (slower, faster) the sum, and since it left 0 the total log
error and the samples."""
SIGNS = np.array([1.0, -1.0])


def watch(run: Floats, log_error: Floats, deviation: Floats) -> tuple[Floats, Bools, Floats]:
    """Take one sample of each of m replicas: (m, 2, 3) runs, (m,) log errors, (m,) deviations.

    Returns the new runs, (m,) whether a replica alarms, and (m,) the factor its times changed by
    (1 without an alarm).
    """
    z = np.clip(log_error / deviation, -CLIP, CLIP)[:, None] * SIGNS
    total = np.maximum(run[:, :, 0] + z - ALLOWANCE, 0.0)
    one = np.ones_like(log_error)
    grown = run[:, :, 1:] + np.stack((log_error, one), axis=1)[:, None, :]
    run = np.concatenate((total[:, :, None], np.where(total[:, :, None] > 0, grown, 0.0)), axis=2)
    alarm = (total > THRESHOLD).any(axis=1)
    side = np.argmax(total, axis=1)
    chosen = run[np.arange(len(run)), side]
    mean = np.where(alarm, chosen[:, 1] / np.maximum(chosen[:, 2], 1.0), 0.0)
    run = np.where(alarm[:, None, None], EMPTY_RUN, run)
    return run, alarm, np.exp(mean)
