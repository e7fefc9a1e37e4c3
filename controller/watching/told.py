"""One decision as viewers are told of it, from its record to its outcome."""

import msgspec


class Told(msgspec.Struct):
    """A decision, and what is known so far of what became of it.  Times as in the trace."""

    t_s: float
    tick: int
    trajectory_id: int
    action: str
    """An `Action`."""
    source: str
    """Replica where it was; empty: nowhere, it waited."""
    target: str
    policy: str
    reason: str
    gain_s: float
    cost_s: float
    mode: str
    """Who decided then: the controller's state."""
    enforced: bool
    """False: only recorded, or dropped."""
    outcome: str = ""
    """An `OutcomeKind`; empty: not known yet, or it was not enforced."""
    dropped: str = ""
    """Why the guard did not let it pass; empty: it did."""

    @property
    def became(self) -> str:
        """In a few words."""
        if self.dropped:
            return f"dropped: {self.dropped}"
        if not self.enforced:
            return "only recorded"
        return self.outcome or "under way"


class DecisionSum(msgspec.Struct, frozen=True):
    """All decisions of one action that came to the same."""

    action: str
    """An `Action`."""
    became: str
    """An `OutcomeKind`, recorded (nobody carried it out) or dropped (by the guard)."""
    count: int
    """Of recorded ones, which repeat until they are carried out, one per trajectory."""
    gain_s: float
    """Predicted, summed; so is the cost."""
    cost_s: float
