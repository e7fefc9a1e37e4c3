"""What passes between a lease fleet and the clients that carry its attempts out.

A *lease* is an attempt in the hands of a client: it may ask one replica for it, under the attempt's
id, until it tells how that ended.  The client has the prompt and what was written; only ids and
counts are told here.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from steersman.mechanisms.fleet import Attempt, EndReason, Payload

UNSEEN = -1
"""Stands for each token that only the client has seen: what counts here is how many there are."""


@runtime_checkable
class Holder(Payload, Protocol):
    """The client of one trajectory; the payload of its attempts."""

    def granted(self, attempt: Attempt) -> None:
        """Its next attempt, to be carried out.  Called in the middle of a change: the end is to be
        told later, not from here."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """How a client's request to its replica ended."""

    reason: EndReason
    tokens: int = 0
    """Written in this attempt, and kept by the client."""
    weight_version: int = 0
    """That wrote them."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What an engine was seen to do, at one moment."""

    tokens: dict[str, int]
    """Written so far for each request in it, by attempt id."""
    requests: int = 0
    """All requests in it, other clients' too."""
    context_tokens: int = 0
    """Prompts and outputs of all of them."""
    paused: bool = False
    """It takes requests in but does not serve them: the trainer loads weights."""
    weight_version: int | None = None
    """None: it does not know."""
