"""What is told about decisions: each with its context and its consequences, and all counted.

Reasons are sentences with figures and replicas in them; they are counted without (`pattern`), so
that "saves 1.2 s" and "saves 0.9 s" are one reason.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_FIGURE = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\d)")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which decisions are told; None: any."""

    trajectory: int | None = None
    tick: int | None = None
    step: int | None = None
    action: str | None = None

    def __bool__(self) -> bool:
        return any(x is not None for x in (self.trajectory, self.tick, self.step, self.action))


@dataclass(frozen=True, slots=True)
class Fate:
    """How a trajectory ended."""

    ended_s: float
    disposition: str
    """A `Disposition`."""
    generated_tokens: int
    correctness: str
    weight: float
    replaced_by: int | None = None
    """The fresh sample in its slot, after a restart or an expiry."""


@dataclass(slots=True)
class Explained:
    """One decision.  Times in seconds since the run started."""

    t_s: float
    tick: int
    step: int
    """-1: before the first."""
    trajectory_id: int
    action: str
    source: str
    """Replica where it was; empty: nowhere, it waited."""
    target: str
    policy: str
    reason: str
    gain_s: float
    cost_s: float
    propensity: float
    mode: str
    """Who decided then: the controller's state."""
    enforced: bool
    """False: dropped, or only recorded."""
    dropped: str = ""
    """Why the guard did not let it pass; empty: it did."""
    outcome: str = ""
    """An `OutcomeKind`; empty: none is recorded."""
    alternatives: dict[str, float | None] = field(default_factory=dict)
    """What was weighed in that tick: predicted seconds to the end of the step."""
    stack: str = ""
    """What might act in its step, and why; empty: nobody chose."""
    fate: Fate | None = None
    """None: the trajectory had not ended when the trace did."""


@dataclass(slots=True)
class Counted:
    """All decisions of one action, policy and reason."""

    action: str
    policy: str
    reason: str
    """Without its figures."""
    taken: int = 0
    """That the guard let pass."""
    enforced: int = 0
    applied: int = 0
    dropped: int = 0
    gain_s: float = 0.0
    """Predicted, summed over those taken; so is the cost."""
    cost_s: float = 0.0


@dataclass(slots=True)
class Weighed:
    """One alternative over all ticks in which it was compared."""

    name: str
    ticks: int = 0
    least: int = 0
    """Ticks in which nothing was predicted to end sooner."""
    seconds: float = 0.0
    """Predicted, summed over the ticks that predict an end."""
    ending: int = 0
    """Ticks that do."""


@dataclass(slots=True)
class Story:
    """What a trace says about the selected decisions."""

    matching: int = 0
    decisions: list[Explained] = field(default_factory=list)
    """Some of those that match: the first, or those with the largest predicted gains."""
    counts: list[Counted] = field(default_factory=list)
    """By action, then the most frequent first."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Times by the guard's reason without its figures, the most frequent first."""
    weighed: list[Weighed] = field(default_factory=list)
    """In the ticks of the selected decisions."""


def patterns(replicas: Iterable[str]) -> Callable[[str], str]:
    """A function that takes figures and names of `replicas` out of a sentence."""
    names = sorted(map(re.escape, replicas), key=len, reverse=True)
    named = re.compile(rf"(?<!\w)(?:{'|'.join(names)})(?!\w)") if names else None

    def pattern(sentence: str) -> str:
        text = named.sub("REPLICA", sentence) if named else sentence
        return _FIGURE.sub("N", text)

    return pattern
