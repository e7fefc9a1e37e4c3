"""Decisions: what shall happen to one trajectory or prompt, how likely that was, and why.

A trajectory without a decision continues; nobody makes an object to say so (but see `CONTINUE`).
A decision names its target replica by name, so that a trace can be read without the observation it
came from.
"""

from enum import StrEnum

import msgspec

from steersman.estimators.observation import AS_REPLICA, Observation


class Action(StrEnum):
    """What can be done; each per-trajectory action has a mechanism."""

    CONTINUE = "continue"
    """Go on, spared by a coin: only there is it said, since the spared are weighted.  The others
    continue without a decision."""
    PLACE = "place"
    """Submit a waiting trajectory to a replica."""
    MIGRATE = "migrate"
    """Abort, keep the partial tokens, go on elsewhere with the remaining budget."""
    ISOLATE = "isolate"
    """Migrate into another pool."""
    RESTART = "restart"
    """End it and draw a fresh sample of the same prompt in its stead."""
    SPECULATE = "speculate"
    """Draft a number of its own for it from now on."""
    DEFER = "defer"
    """Park the partial tokens; a later step resumes them, on newer weights."""
    STOP = "stop"
    """End it now; the tokens so far are the answer."""
    ADMIT = "admit"
    SKIP = "skip"
    REVISIT = "revisit"


class Decision(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One decision.  It is written to the trace before it is carried out."""

    trajectory_id: int
    action: Action
    policy: str
    """Name of the policy that took it."""
    reason: str
    """One sentence for a person."""
    replica: str = ""
    """Target of place, migrate and isolate."""
    propensity: float = 1.0
    """Probability, in (0, 1], with which the policy takes this decision in this state."""
    gain_s: float = 0.0
    """Predicted shortening of the step, seconds."""
    cost_s: float = 0.0
    """Predicted cost of carrying it out, seconds."""
    row: int = -1
    """Row in the observation it was taken on (not part of its meaning; -1: look it up)."""
    draft_tokens: int = AS_REPLICA
    """Of speculate: tokens per iteration, or `AS_REPLICA`."""


class DraftDecision(msgspec.Struct, frozen=True, gc=False):
    """How many tokens a replica drafts from now on for each of its sequences that has no number of
    its own."""

    replica: str
    draft_tokens: int
    """0: no speculation; at most the replica's `max_draft_tokens`."""
    policy: str
    reason: str


class StackChoice(msgspec.Struct, frozen=True, gc=False):
    """Which mechanisms may act in a step, chosen by a policy that learns over steps."""

    stack: str
    propensity: float
    """Probability, in (0, 1], with which it was chosen."""
    reason: str
    expected: dict[str, float]
    """By stack: believed log of a step's time over the default's."""


def place(
    observation: Observation, row: int, replica_row: int, policy: str, reason: str
) -> Decision:
    """Submit the waiting trajectory of `row` to the replica of `replica_row`."""
    return Decision(
        trajectory_id=int(observation.trajectories.trajectory_id[row]),
        action=Action.PLACE,
        policy=policy,
        reason=reason,
        replica=observation.replicas.names[replica_row],
        row=int(row),
    )
