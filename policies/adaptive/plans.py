"""Plans for what waits: what may be sent to engines now, and in which order.

A plan is data, so that the tick planner, the look ahead in the simulator and the learner over steps
speak of the same things.  `DEFAULT` is the trainer's own rule.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf


class Order(StrEnum):
    """Who goes first."""

    ARRIVAL = "arrival"
    LONGEST = "longest"
    """Largest expected remaining length."""
    OPTIMISTIC = "optimistic"
    """Largest upper quantile; of equals, the group of which fewest have begun: what nobody knows
    may be the longest, and one sibling tells of the others."""


@dataclass(frozen=True)
class Plan:
    """How to admit what waits."""

    name: str
    hold: bool
    """Keep here what no slot is free for; False: all to the engines at once, fewest in flight."""
    order: Order = Order.ARRIVAL
    promise: float = inf
    """Most tokens of whole contexts, at their expected ends, that a replica is given at once, in
    its KV capacities.  With 1 nothing is ever evicted; more counts on their not being at full
    length all at once."""


DEFAULT = Plan("default", hold=False)
HELD = tuple(
    Plan(f"hold {promise:g}x", True, Order.OPTIMISTIC, promise) for promise in (1.0, 2.0, 4.0, 8.0)
)
PLANS = (DEFAULT, *HELD)
