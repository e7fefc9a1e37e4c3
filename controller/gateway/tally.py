"""What the gateway counts beside the ledger's books."""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Sums since the gateway started."""

    requests: int = 0
    """Client requests taken in."""
    refused: int = 0
    """Turned away: the queue was full, no engine lived, or it is about to end."""
    failed: int = 0
    """Answered with an error."""
    abandoned: int = 0
    """Their clients went away."""
    joined: int = 0
    """Retries that got the answer of the request they repeat."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    placed_at_once: int = 0
    """Trajectories that did not wait for a decision."""
