"""What befalls the fleet of a replay, and when."""

import math
from collections.abc import Sequence

import numpy as np

from steersman.controller.replay.events import FleetEvent, Kind
from steersman.controller.replay.world import World


class Timeline:
    """Events that have not happened yet."""

    def __init__(self, events: Sequence[FleetEvent]) -> None:
        self._coming = [(e.at_s, e) for e in events if e.step is None]
        self._later = [e for e in events if e.step is not None]

    @property
    def next_s(self) -> float:
        """When the next one is due; inf: none is."""
        return min((at_s for at_s, _ in self._coming), default=math.inf)

    @property
    def joins(self) -> bool:
        """Whether a replica is still to join, in this step or at a time of the run."""
        return any(event.kind is Kind.JOIN for _, event in self._coming)

    def begin_step(self, step: int, now_s: float) -> None:
        """From now on its events have a time."""
        mine = [e for e in self._later if e.step == step]
        self._later = [e for e in self._later if e.step != step]
        self._coming += [(now_s + e.at_s, e) for e in mine]

    def happen(self, world: World) -> bool:
        """Whatever is due; returns whether anything was."""
        due = [event for at_s, event in self._coming if at_s <= world.now_s]
        if not due:
            return False
        self._coming = [(at_s, e) for at_s, e in self._coming if at_s > world.now_s]
        for event in due:
            _happen(event, world)
        return True


def _happen(event: FleetEvent, world: World) -> None:
    if event.kind is Kind.KILL:
        world.kill(event.replica)
    elif event.kind is Kind.JOIN:
        world.join(event.replica)
    elif event.kind is Kind.SPEED:
        world.core.set_speed(event.replica, event.speed)
    else:
        world.drafting.change_acceptance(np.array(event.acceptance))
