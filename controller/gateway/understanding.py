"""What the gateway takes from the trainer's calls: pauses, and the version of the weights.

- pause and sleep: clocks stand still, nothing is placed.  The desk is paused while all living
  engines are, however they were told.
- weights: the version counts on once every living engine has new ones, or becomes what the trainer
  names.  They are complete with `/finish_weight_update` or `/update_weight_version`; without these,
  when the engine is resumed or its prefix cache is reset; a reload of all weights, or of an
  adapter, on an engine that is not paused is complete by itself.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steersman.controller.gateway.call import WHOLE, Call, fields_of
from steersman.mechanisms.http_vllm.ask import Answer

if TYPE_CHECKING:
    from steersman.controller.gateway.desk import Desk

COMPLETES = {"/finish_weight_update": "weight_version", "/update_weight_version": "new_version"}
"""Routes that complete new weights, and the field that may name their version."""
MAX_VERSION = 10**15
"""Numbers from there on are dates or digests, not versions."""


class Understanding:
    """Tells the desk."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        self._touched: set[str] = set()
        """Engines with new weights that are not complete yet."""
        self._completed: set[str] = set()
        """Engines whose new weights are, while others' are not."""
        self._version: int | None = None

    def before(self, call: Call, names: Sequence[str]) -> None:
        """Engines that are about to pause end requests: the desk must know why beforehand."""
        if call.meaning in ("/pause", "/sleep"):
            fleet = self._desk.fleet
            for name in names:
                if call.meaning != call.path or fleet.engine(name).abilities.developer:
                    fleet.set_paused(name, True)
            self._follow(call)

    def after(self, call: Call, answers: Mapping[str, Answer]) -> None:
        """The engines have answered, or could not be reached (status 502)."""
        fleet = self._desk.fleet
        done = [name for name, answer in answers.items() if answer.status < 400]
        if call.meaning in ("/pause", "/sleep"):
            for name in answers:
                fleet.set_paused(name, name in done)
        elif call.meaning in ("/resume", "/wake_up"):
            done = [name for name in done if not _sleeps_on(answers[name])]
            for name in {*done, *self.dead()}:  # what died may come back, and runs then
                fleet.set_paused(name, False)
            self._complete(self._touched.intersection(done), None)
        elif call.path == "/reset_prefix_cache":
            self._complete(self._touched.intersection(done), None)
        elif call.path in COMPLETES:
            self._complete(done, _number(call.told.get(COMPLETES[call.path])))
        elif loads := call.loads:
            self._touched.update(done)
            if WHOLE.search(loads) and not any(fleet.engine(name).paused for name in done):
                self._complete(done, None)
        self._follow(call)

    def _follow(self, call: Call) -> None:
        """The desk is paused while all living engines are."""
        fleet, living = self._desk.fleet, self.living()
        paused = bool(living) and all(fleet.engine(name).paused for name in living)
        if paused and not self._desk.paused:
            self._desk.pause(call.param("mode", "abort"))
        elif self._desk.paused and not paused:
            self._desk.resume()

    def _complete(self, names: Iterable[str], version: int | None) -> None:
        """New weights are complete on these engines."""
        names, fleet = set(names), self._desk.fleet
        if not names:
            return
        untouched = names.isdisjoint(self._touched)
        self._touched -= names
        self._completed |= names
        if version is not None:
            self._version = version
            for name in names:
                fleet.set_weight_version(name, version)
        for name in names:
            if fleet.engine(name).stale:  # it was away when the others were given theirs
                fleet.set_weight_version(name, self._desk.pace.weight_version)
        if not self._completed.issuperset(self.living()):
            return
        self._completed.clear()
        version, self._version = self._version, None
        if untouched and version is not None and version == self._desk.pace.weight_version:
            return  # it was told twice
        self._touched.clear()
        self._desk.weights_changed(version)

    def living(self) -> list[str]:
        """Engines that answer."""
        fleet = self._desk.fleet
        return [info.name for info in fleet.replicas if fleet.engine(info.name).alive]

    def dead(self) -> list[str]:
        """Engines that do not."""
        fleet = self._desk.fleet
        return [info.name for info in fleet.replicas if not fleet.engine(info.name).alive]


def _sleeps_on(answer: Answer) -> bool:
    """After `/wake_up` with some of its tags only."""
    return fields_of(answer.body).get("status") == "sleeping"


def _number(version: Any) -> int | None:
    """The number in a trainer's name of its weights (7, "7", "step-7"); None: it has none."""
    if isinstance(version, int) and not 0 <= version < MAX_VERSION:
        return None
    found = re.search(r"(?<!\d)\d{1,15}\Z", str(version), re.ASCII)
    return int(found[0]) if found else None
