"""Bubble and tail of a moment, the same for every viewer."""

import numpy as np

from steersman.estimators.observation import Bools, Floats

TAIL_FROM = 80
"""Per cent of the trajectories that have ended when the tail begins: what is left then no longer
fills the fleet."""


def bubble(busy: Bools) -> float:
    """Share of the living replicas that have nothing to do while others have; 0: none has."""
    return float((~busy).mean()) if busy.any() else 0.0


def tail_s(ends_in_s: Floats) -> float | None:
    """From the moment when `TAIL_FROM` per cent have ended to the last end; None: none is known."""
    if not len(ends_in_s):
        return None
    return float(ends_in_s.max() - np.percentile(ends_in_s, TAIL_FROM))
