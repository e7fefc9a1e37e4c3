"""Which samples belong together, where they come one request at a time.

Requests for one prompt join one group while any of them is open and for `LINGER_S` after, within
one step: so siblings tell the estimators what to expect.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from steersman.controller.gateway.identity import Told
from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.results import Prompt
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import Payload, Sampling

LINGER_S = 5.0
"""A group stays open for siblings so long after its last member ended: a trainer sends a group's
requests within milliseconds, agents within seconds."""
MAX_MEMBERS = 512
"""A group is kept until all of it has ended.  One prompt that is always in flight must not grow one
group for ever; groups of trainers have 4 to 64 members."""
MAX_LINGERING = 4096
"""Groups without a running member that are kept, whatever their age: each holds some kB."""


class Asked(Payload, Protocol):
    """One sample that somebody wants."""

    @property
    def max_tokens(self) -> int:
        """Most that it may write."""


class Families:
    """Open groups, by what their requests have in common."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._groups: dict[tuple[str, str], GroupState] = {}
        self._key_of: dict[int, tuple[str, str]] = {}
        self._lingering: OrderedDict[int, float] = OrderedDict()

    def join(self, told: Told, prompt: str, asks: Sequence[Asked], step: int) -> list[Execution]:
        """A trajectory for each of the asks, in the group of that prompt."""
        key = told.group, prompt
        group = self._groups.get(key)
        if group is None or group.step != step or len(group.slots) >= MAX_MEMBERS:
            group = self._ledger.admit(
                Prompt(prompt, ()),
                size=0,
                max_new_tokens=max(ask.max_tokens for ask in asks),
                sampling=Sampling(),
                step=step,
                prompt_tokens=asks[0].prompt_tokens,
            )
            self._groups[key], self._key_of[group.group_id] = group, key
        self._lingering.pop(group.group_id, None)
        joined = []
        for ask in asks:
            joined += self._ledger.join(group, ask.max_tokens, [ask])
        return joined

    def ended(self, group_id: int, now_s: float) -> None:
        """One of the group has ended."""
        if self._ledger.groups[group_id].complete:
            self._lingering[group_id] = now_s

    def sweep(self, now_s: float) -> None:
        """Forget groups that nobody has joined for a while."""
        lingering, groups = self._lingering, self._ledger.groups
        while lingering:
            group_id, since_s = next(iter(lingering.items()))
            if now_s - since_s < LINGER_S and len(lingering) <= MAX_LINGERING:
                return
            del lingering[group_id]
            key = self._key_of.pop(group_id)
            if self._groups.get(key) is groups[group_id]:
                del self._groups[key]
            self._ledger.close(groups[group_id])
