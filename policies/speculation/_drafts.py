"""What the speculation policies share: batches, acceptance by depth, and the decisions."""

from collections.abc import Sequence

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Observation
from steersman.policies.decision import Action, Decision, DraftDecision

FRESH_METRICS_S = 2.0
"""Older reports of an engine's batch are ignored; what was sent there counts instead."""
LEAVE = -1
"""As a wanted number of draft tokens: as it is."""


def effective_batch(observation: Observation) -> Ints:
    """(r,) sequences that each replica decodes at a time."""
    r = observation.replicas
    sent = np.minimum(observation.inflight(), r.max_num_seqs)
    return np.where(r.metrics_age_s <= FRESH_METRICS_S, r.running, sent).astype(np.int64)


def acceptance_to(forecast: Forecast, depth: int) -> Floats:
    """(r, depth) acceptance by position; beyond the forecast's last one that one repeats.

    Unknown positions, and all where nothing is forecast, accept nothing.
    """
    known = np.nan_to_num(forecast.acceptance.acceptance[:, :depth], nan=0.0)
    missing = depth - known.shape[1]
    if missing <= 0:
        return known
    last = known[:, -1:] if known.shape[1] else np.zeros((len(known), 1))
    return np.concatenate((known, np.repeat(last, missing, axis=1)), axis=1)


def changes(
    observation: Observation, wanted: Ints, policy: str, reasons: Sequence[str]
) -> list[DraftDecision]:
    """One decision for each living replica that does not draft what it shall: (r,) `wanted` tokens,
    cut to what its engine can, or `LEAVE`."""
    r = observation.replicas
    possible = np.minimum(wanted, r.max_draft_tokens)
    change = r.alive & (wanted >= 0) & (r.max_draft_tokens > 0) & (possible != r.draft_tokens)
    return [
        DraftDecision(r.names[row], int(possible[row]), policy, reasons[row])
        for row in np.flatnonzero(change).tolist()
    ]


def single_changes(
    observation: Observation, rows: Ints, wanted: Ints, policy: str, reasons: Sequence[str]
) -> list[Decision]:
    """One decision for each of `rows` (m,) that does not draft `wanted` (m,) tokens of its own;
    `AS_REPLICA`: none of its own.  Reasons are by replica.
    """
    t = observation.trajectories
    told = np.flatnonzero(t.draft_tokens[rows] != wanted)
    return [
        Decision(
            trajectory_id=int(t.trajectory_id[row]),
            action=Action.SPECULATE,
            policy=policy,
            reason=reasons[t.replica_row[row]],
            row=row,
            draft_tokens=tokens,
        )
        for row, tokens in zip(rows[told].tolist(), wanted[told].tolist(), strict=True)
    ]
