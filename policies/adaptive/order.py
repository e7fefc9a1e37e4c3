"""Who goes first under a plan, as a forecast has it: that of now, or one that has learned more."""

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.adaptive.plans import Order

ALIKE = 0.1
"""Log lengths closer than this are equal: a forecast does not know lengths to 10 %."""


def ordered(order: Order, observation: Observation, forecast: Forecast) -> Ints:
    """(q,) rows that wait, in this order; ties by row, which is by arrival."""
    queued = observation.queued
    if order is Order.ARRIVAL:
        return queued
    return np.asarray(queued[ranked(order, scores(order, forecast, queued), turns(observation))])


def scores(order: Order, forecast: Forecast, rows: Ints) -> Floats:
    """(m,) logarithm of what the order goes by."""
    longest = order is Order.LONGEST
    tokens = forecast.length.mean_remaining_tokens if longest else forecast.length.upper
    return np.asarray(np.log(np.maximum(tokens[rows], 1.0)))


def ranked(order: Order, score: Floats, turn: Ints) -> Ints:
    """(..., q) positions in the order, of (..., q) scores and (q,) turns; ties by position."""
    if order is Order.LONGEST:
        return np.argsort(-score, axis=-1, kind="stable")
    steps = int(turn.max(initial=0)) + 1
    return np.argsort(-np.round(score / ALIKE) * steps + turn, axis=-1, kind="stable")


def turns(observation: Observation) -> Ints:
    """(q,) how many of its group come before each that waits: those that have begun, and those
    that wait before it."""
    t, queued = observation.trajectories, observation.queued
    begun = np.bincount(t.group_row[t.phase != Phase.QUEUED], minlength=len(observation.groups))
    group = t.group_row[queued]
    by_group = np.argsort(group, kind="stable")
    alike = group[by_group]
    nth = np.empty_like(queued)
    nth[by_group] = np.arange(len(queued)) - np.searchsorted(alike, alike, side="left")
    return np.asarray(begun[group] + nth)
