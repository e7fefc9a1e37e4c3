"""One trajectory of a client, as the desk knows it: the payload of its attempts."""

from collections.abc import Callable
from dataclasses import dataclass

from steersman.controller.sidecar.leases.wire import Begin, Grant
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import Attempt


@dataclass(eq=False, slots=True)
class Errand:
    """Implements `Holder`."""

    client: str
    begin: Begin
    max_tokens: int
    send: Callable[[str, Grant], None]
    execution: Execution | None = None
    """The one that has its slot now."""
    restarts: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """It is known by."""
        return self.client, self.begin.call

    @property
    def prompt_tokens(self) -> int:
        """As the client counted them."""
        return self.begin.prompt_tokens

    @property
    def bound(self) -> bool:
        """The client sends prompt and tokens along wherever it goes."""
        return False

    @property
    def movable(self) -> bool:
        """At any time, for the same reason."""
        return True

    @property
    def restartable(self) -> bool:
        """Nobody sees tokens before the end."""
        return True

    def renew(self) -> None:
        """A fresh sample takes its slot; the client drops its tokens when it is told to keep 0."""
        self.restarts += 1

    def granted(self, attempt: Attempt) -> None:
        """Tell the client."""
        request = attempt.request
        kept = len(request.token_ids)  # the prompt is not among them
        self.send(
            self.client,
            Grant(self.begin.call, request.attempt_id, attempt.replica, kept),
        )
