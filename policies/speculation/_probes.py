"""When to find out what drafts are worth, and what that may cost.

A probe that fails costs time.  The next one waits until that cost is `SHARE` of the time since, and
with every further failure twice as long.  New weights forget how often it failed, not what the last
failure cost: where every weight version is probed in vain, probes still take no more than `SHARE`.
A probe that succeeds costs nothing: what it drafted was gained.

Time is counted while anything runs.
"""

from dataclasses import dataclass
from typing import Any

SHARE = 0.01
"""Of the time, that failing probes may take."""
MOST_DOUBLINGS = 6
"""A drafter that comes back is found after 64 times the first wait at the latest."""
PATIENCE_S = 10.0
"""A probe under which nothing is drafted for so long is given up: the engine does not follow."""
LONGEST_TICK_S = 10.0
"""A longer gap between two observations was a pause."""


@dataclass
class Probes:
    """Of one run."""

    clock_s: float = 0.0
    replica: str = ""
    """Where one is under way."""
    tokens: int = 0
    """What it drafts."""
    began_s: float = 0.0
    not_before_s: float = 0.0
    """When the next one may begin."""
    failures: int = 0
    """In a row, on these weights."""
    paid_s: float = 0.0
    """When the last failure's cost is `SHARE` of the time since."""

    @property
    def may_begin(self) -> bool:
        """Whether one may begin now."""
        return not self.replica and self.clock_s >= self.not_before_s

    @property
    def stuck(self) -> bool:
        """Whether the one under way is to be given up."""
        return self.clock_s - self.began_s > PATIENCE_S

    def pass_time(self, seconds: float) -> None:
        """Something ran for so long."""
        self.clock_s += min(max(seconds, 0.0), LONGEST_TICK_S)

    def begin(self, replica: str, tokens: int) -> None:
        """Draft `tokens` there from now on."""
        self.replica, self.tokens, self.began_s = replica, tokens, self.clock_s

    def failed(self, cost_s: float) -> None:
        """What was drafted did not pay, and cost so much."""
        wait_s = cost_s / SHARE
        self.paid_s = self.clock_s + wait_s
        self.not_before_s = self.clock_s + wait_s * 2.0 ** min(self.failures, MOST_DOUBLINGS)
        self.failures, self.replica = self.failures + 1, ""

    def succeeded(self) -> None:
        """It pays."""
        self.failures, self.replica = 0, ""

    def give_up(self, wait_s: float) -> None:
        """Nothing was learned; try again after so long."""
        self.not_before_s, self.replica = max(self.not_before_s, self.clock_s + wait_s), ""

    def renew(self, cost_s: float) -> None:
        """New weights; what was spent in vain on the last ones was not told yet."""
        if cost_s > 0:
            self.paid_s = self.clock_s + cost_s / SHARE
        self.not_before_s, self.failures, self.replica = self.paid_s, 0, ""

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dict(vars(self))
