"""A replica's control of what its engine drafts, and its view of what became of it.

The engine is told with calls that wait for the iteration under way, so they are sent one at a time
and each says everything: the default, and the numbers of all live attempts that have one of their
own.  A call that comes while another is under way is covered by the next; nothing is left behind in
the engine by attempts that ended.
"""

import logging
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steersman.mechanisms.drafting.source import key_of
from steersman.mechanisms.fleet import AttemptRequest
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT, SLOTS, DraftCounters

log = logging.getLogger(__name__)

EXTRA = "steersman"
"""Key in a request's `extra_args` of what its driver says of it."""


def extra_args(request: AttemptRequest, slot: int = NO_SLOT) -> dict[str, Any]:
    """What the proposer needs to know of a request, whose drafts are counted in `slot`."""
    return {
        EXTRA: {
            "attempt": request.attempt_id,
            "prompt_key": key_of(request.run_key, request.prompt_key),
            "group_id": request.group_id,
            "draft_tokens": request.draft_tokens,
            "slot": slot,
        }
    }


class DraftControl:
    """Of one engine; with `draft_tokens` 0 there is nothing to control."""

    def __init__(self, draft_tokens: int, commanded: Callable[[], dict[str, int]]) -> None:
        """`commanded` answers the numbers of the live attempts that have one of their own."""
        self.max_draft_tokens = 0
        self.refusal = "" if draft_tokens else "it was set up without speculation"
        """Why nothing is drafted; empty if it can be."""
        self.default = 0
        """Tokens that the engine drafts, as last told."""
        self.counters: DraftCounters | None = None
        self.host = ""
        """Name of the actor that keeps the store it drafts from; empty without one."""
        self._draft_tokens = draft_tokens
        self._slots: deque[int] = deque()
        self._commanded = commanded
        self._wanted = 0
        self._untold = self._telling = False

    async def arm(self, engine: Any) -> None:
        """Have the engine check its verifier, and let it draft if that is exact."""
        if not self._draft_tokens:
            return
        shared_memory = Path("/dev/shm")
        folder = shared_memory if shared_memory.is_dir() else None
        with tempfile.NamedTemporaryFile(dir=folder, prefix="steersman-counters-") as file:
            counters = DraftCounters.shared(file.fileno(), self._draft_tokens)
            answers = await engine.collective_rpc("steersman_arm", args=(file.name,))
        self.refusal = "; ".join(sorted({answer for answer in answers if answer}))
        if self.refusal:
            log.warning("nothing is drafted: %s", self.refusal)
        else:
            self.max_draft_tokens, self.counters = self._draft_tokens, counters
            self._slots.extend(range(SLOTS))

    async def attach(self, engine: Any, store: str, host: str) -> str:
        """Let the engine draft from a store of this machine; answers why not, or ""."""
        answers = await engine.collective_rpc("steersman_attach", args=(store,))
        problem = "; ".join(sorted({answer for answer in answers if answer}))
        self.host = "" if problem else host
        return problem

    def take_slot(self) -> int:
        """For a request that is about to start; `NO_SLOT` if it is not counted by itself."""
        if self.counters is None or not self._slots:
            return NO_SLOT
        slot = self._slots.popleft()
        self.counters.requests[slot] = 0
        return slot

    def free_slot(self, slot: int) -> tuple[list[int], list[int]]:
        """The request has ended: tokens drafted for it and accepted, by position."""
        if self.counters is None or slot == NO_SLOT:
            return [], []
        self._slots.append(slot)
        return self.counters.of_request(slot)

    def change(self, default: int | None) -> bool:
        """A command came.  True: `tell` must be run now; False: it runs already, or need not."""
        if default is not None:
            self._wanted = min(max(default, 0), self.max_draft_tokens)
        if self.max_draft_tokens == 0:
            return False
        self._untold = True
        first, self._telling = not self._telling, True
        return first

    async def tell(self, engine: Any) -> None:
        """Tell the engine what was commanded until it knows everything."""
        try:
            while self._untold:
                self._untold = False
                wanted = self._wanted
                await engine.collective_rpc("steersman_draft", args=(wanted, self._commanded()))
                self.default = wanted
        except Exception as error:
            # Drafting is no reason to end a replica; one that is dead is noticed elsewhere.
            log.warning("the engine was not told what to draft: %s", error)
        finally:
            self._telling = False
