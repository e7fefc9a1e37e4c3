"""A client of leases that only remembers what it was granted."""

from steersman.mechanisms.fleet import Attempt, AttemptRequest, Payload, Sampling


class HeldPayload:
    """Implements `Holder`."""

    prompt_tokens = 3
    bound = False
    movable = True
    restartable = True

    def __init__(self) -> None:
        self.grants: list[Attempt] = []

    def renew(self) -> None:
        """Nothing was kept."""

    def granted(self, attempt: Attempt) -> None:
        self.grants.append(attempt)


def lease_request(payload: Payload | None, attempt_id: str) -> AttemptRequest:
    """For at most a thousand tokens."""
    return AttemptRequest(attempt_id, [], 1000, Sampling(), payload=payload)
