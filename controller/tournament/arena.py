"""A workload on a fleet: where policies meet."""

from collections.abc import Callable
from dataclasses import dataclass, field

from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import Options
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.sample_banks import SampleBank


@dataclass(frozen=True)
class Arena:
    """One workload on one fleet."""

    name: str
    summary: str
    plan: FleetPlan
    make: Callable[[int, int], Workload]
    """Of (seed, steps)."""
    steps: int = 6
    options: Options = field(default_factory=Options)
    overrides: tuple[str, ...] = ("tick_s=1.0",)
    """Of the configuration, for all policies."""
    sections: tuple[str, ...] = ("placement",)
    """Kinds of policies that it is for, as the configuration's sections."""
    quick: bool = False
    """Whether it is part of a quick tournament."""

    @property
    def is_stream(self) -> bool:
        """Weights change while answers are written."""
        return self.options.inflight_groups > 0


@dataclass(frozen=True)
class PromptArena:
    """One set of prompts for policies that choose among them."""

    name: str
    summary: str
    plan: FleetPlan
    bank: Callable[[int], SampleBank]
    """Of a seed."""
    steps: int = 30
    groups_wanted: int = 32
    candidates_per_step: int = 128
    overrides: tuple[str, ...] = ("tick_s=1.0",)
    quick: bool = False

    @property
    def is_stream(self) -> bool:
        """Never: a step's samples are all written by its weights."""
        return False
