"""What clients and the desk tell each other: ids and counts, never tokens.

A *call* is one trajectory of one client, under a number of the client's own.  The client tells its
beginning, how each of its requests to an engine ended, and whether its caller went away; it is told
where to go next, or that the trajectory is over.
"""

from dataclasses import dataclass, field
from typing import Any

from steersman.mechanisms.fleet import EndReason


@dataclass(frozen=True, slots=True)
class Begin:
    """A trajectory wants to be generated."""

    call: int
    session: str
    """Turns of one conversation have the same one."""
    prompt: str
    """Name or digest of the prompt: samples of one prompt are a group."""
    prompt_tokens: int
    max_tokens: int
    resumes: bool = True
    """Whether it goes on after an abort of the trainer's; if not, that is its end."""
    step: int | None = None
    """The trainer's, where the client knows it."""


@dataclass(frozen=True, slots=True)
class Report:
    """A request to an engine has ended."""

    call: int
    attempt_id: str
    reason: EndReason
    tokens: int = 0
    weight_version: int | None = None
    """That wrote them; None: the engine does not say."""
    detail: str = ""
    replica_lost: bool = False
    """The client found that the replica is gone for good."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The client's caller does not want the trajectory any more."""

    call: int


Event = Begin | Report | Gone


@dataclass(frozen=True, slots=True)
class Grant:
    """Go there."""

    call: int
    attempt_id: str
    """To be the request's id in the engine."""
    replica: str
    kept: int
    """Tokens of earlier attempts that count; the client drops any beyond."""


@dataclass(frozen=True, slots=True)
class Done:
    """The trajectory is over."""

    call: int
    disposition: str
    kept: int
    detail: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    """How it came about: segments, weight versions, lag, class and weight."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody steers it any more: the client goes on by itself."""

    call: int
    why: str


Order = Grant | Done | Free
