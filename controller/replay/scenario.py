"""A scenario: a TOML file with what a replay shall meet that its log does not tell.

    [[replicas]]                        # in place of --profile and --replicas
    profile = "qwen3-8b-h100-tp1"
    count = 6
    [[replicas]]
    profile = "qwen3-8b-l40s-tp1"
    count = 2
    speed = 0.9                         # (1)
    pool = "tail"                       # ("bulk")

    [[events]]
    kind = "kill"                       # at_s seconds after the run's begin ...
    at_s = 60.0
    replica = "replica-1"
    [[events]]
    kind = "join"                       # ... or after that of a step; it gets the next free name
    step = 2
    at_s = 5.0
    profile = "qwen3-8b-h100-tp1"       # (the first replica's)
    [[events]]
    kind = "speed"
    at_s = 90.0
    replica = "replica-0"
    speed = 0.5

    [weights]                           # of a stream
    update = "drain"                    # ("keep"), "abort": `events.Update` says what they mean
    seconds = 3.0                       # (0)
    at_s = [120.0, 240.0]               # (after every batch); "trace": as the trace tells

    [speculation]
    acceptance = [0.8, 0.7, 0.6]        # of each draft position, given that all before were;
                                        # "trace": as the trace tells
    draft_token_s = 0.0005              # (0)
    verify_s = 0.002                    # of an iteration with any draft (0)
    draft_tokens = 2                    # at the beginning (0)

An event of kind "acceptance" with a list `acceptance` changes it, as new weights may.
"""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steersman.controller.replay._sections import (
    EventSection,
    ReplicasSection,
    ScenarioFile,
    read_sections,
)
from steersman.controller.replay.events import FleetEvent, Happenings, Kind, WeightUpdates
from steersman.controller.replay.fleet import FleetPlan
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.mechanisms.simulated.profile import HardwareProfile, load_profile

FROM_TRACE = "trace"
TAKES = {
    Kind.KILL: {"replica"},
    Kind.JOIN: {"profile", "speed", "pool"},
    Kind.SPEED: {"replica", "speed"},
    Kind.ACCEPTANCE: {"acceptance"},
}
"""What an event of a kind says besides its time."""
NEEDS = {Kind.KILL: {"replica"}, Kind.SPEED: {"replica", "speed"}, Kind.ACCEPTANCE: {"acceptance"}}


@dataclass(frozen=True)
class Scenario:
    """What a file says, checked."""

    file: ScenarioFile = field(default_factory=ScenarioFile)
    name: str = "scenario"

    @classmethod
    def load(cls, path: Path) -> "Scenario":
        """Raises `InvalidInputError` where the file is none."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInputError(f"cannot read scenario {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{path} is not TOML: {error}") from error
        return cls(read_sections(content, str(path)), str(path))

    def applied(
        self,
        profile: HardwareProfile | None,
        replicas: int,
        trace_times: Callable[[], tuple[float, ...]] = tuple,
        trace_acceptance: Callable[[], tuple[float, ...]] = tuple,
    ) -> tuple[FleetPlan, Happenings]:
        """The fleet, and what befalls it.

        `profile` and `replicas` hold where the file names no replicas; `trace_times` says when the
        trace's weights changed, `trace_acceptance` which of its drafts were accepted.
        """
        plan = self._fleet(profile, replicas, trace_acceptance)
        events, absent = list[FleetEvent](), list[int]()
        for number, said in enumerate(self.file.events):
            where = f"{self.name}: events[{number}]"
            _check_event(said, where)
            if said.kind == Kind.JOIN:
                plan = _joined(plan, said)
                absent.append(plan.replicas - 1)
            events.append(_event(said, plan, where))
        plan = replace(plan, absent=tuple(absent), **_best(plan, events))
        return plan, Happenings(tuple(events), self._weights(trace_times))

    def _fleet(
        self,
        profile: HardwareProfile | None,
        replicas: int,
        trace_acceptance: Callable[[], tuple[float, ...]],
    ) -> FleetPlan:
        s = self.file.speculation
        more: dict[str, Any] = {
            "acceptance": self._told(
                "speculation.acceptance", s.acceptance, "probabilities", trace_acceptance
            ),
            "draft_token_s": s.draft_token_s,
            "verify_s": s.verify_s,
            "draft_tokens": s.draft_tokens,
        }
        if not self.file.replicas:
            if profile is None:
                raise InvalidInputError(
                    f"{self.name} names no [[replicas]]; give --profile, or name them"
                )
            return FleetPlan(profile, replicas, **more)
        profiles, speeds, pools = list[HardwareProfile](), list[float](), list[str]()
        for number, own in enumerate(self.file.replicas):
            kind = _profile(own, f"{self.name}: replicas[{number}]")
            profiles += [kind] * own.count
            speeds += [own.speed] * own.count
            pools += [own.pool] * own.count
        return FleetPlan(
            profiles[0],
            len(profiles),
            speeds=tuple(speeds),
            profiles=tuple(profiles),
            pools=tuple(pools),
            **more,
        )

    def _weights(self, trace_times: Callable[[], tuple[float, ...]]) -> WeightUpdates:
        said = self.file.weights
        at_s = self._told("weights.at_s", said.at_s, "seconds", trace_times)
        return WeightUpdates(said.update, said.seconds, at_s)

    def _told(
        self,
        key: str,
        said: list[float] | str,
        what: str,
        by_trace: Callable[[], tuple[float, ...]],
    ) -> tuple[float, ...]:
        """A list, or what the trace tells."""
        if isinstance(said, list):
            return tuple(said)
        if said == FROM_TRACE:
            return by_trace()
        raise InvalidInputError(
            f'{self.name}: {key} is {said!r}; valid: "{FROM_TRACE}" or a list of {what}'
        )


def _profile(said: ReplicasSection, where: str) -> HardwareProfile:
    if said.count < 1:
        raise InvalidInputError(f"{where}.count is {said.count}; valid: 1 or more")
    if not 0 < said.speed < math.inf:
        raise InvalidInputError(f"{where}.speed is {said.speed}; valid: above 0")
    return load_profile(said.profile)


def _check_event(said: EventSection, where: str) -> None:
    if not 0 <= said.at_s < math.inf:
        raise InvalidInputError(f"{where}.at_s is {said.at_s}; valid: 0 or more seconds")
    given = {n for n in ("replica", "speed", "profile", "pool", "acceptance") if said.gives(n)}
    for name in sorted(given - TAKES[said.kind]):
        valid = ", ".join(sorted(TAKES[said.kind]))
        raise InvalidInputError(f"{where}: {said.kind} takes no {name}; valid: {valid}")
    for name in sorted(NEEDS.get(said.kind, set()) - given):
        raise InvalidInputError(f"{where}: {said.kind} needs {name}")
    if said.speed is not None and not 0 < said.speed < math.inf:
        raise InvalidInputError(f"{where}.speed is {said.speed}; valid: above 0")


def _joined(plan: FleetPlan, said: EventSection) -> FleetPlan:
    """With one replica more."""
    profile = load_profile(said.profile) if said.profile is not None else plan.profile
    return replace(
        plan,
        replicas=plan.replicas + 1,
        profiles=(*plan.each, profile),
        speeds=(*plan.speed.tolist(), said.speed or 1.0),
        pools=(*plan.pool_of, said.pool or "bulk"),
    )


def _event(said: EventSection, plan: FleetPlan, where: str) -> FleetEvent:
    row = plan.replicas - 1
    if said.replica is not None:
        if said.replica not in plan.names:
            raise UnknownNameError(f"replica in {where}:", said.replica, plan.names)
        row = plan.names.index(said.replica)
    acceptance = tuple(said.acceptance or ())
    if said.acceptance is not None and len(acceptance) != len(plan.acceptance):
        raise InvalidInputError(
            f"{where}: acceptance tells of {len(acceptance)} positions; valid: "
            f"{len(plan.acceptance)}, as [speculation] does"
        )
    return FleetEvent(said.kind, said.at_s, said.step, row, said.speed or 1.0, acceptance)


def _best(plan: FleetPlan, events: list[FleetEvent]) -> dict[str, Any]:
    """The highest speeds and acceptances that there ever are."""
    speeds, acceptance = plan.speed.tolist(), list(plan.acceptance)
    for event in events:
        if event.kind is Kind.SPEED:
            speeds[event.replica] = max(speeds[event.replica], event.speed)
        elif event.kind is Kind.ACCEPTANCE:
            acceptance = [max(pair) for pair in zip(acceptance, event.acceptance, strict=True)]
    return {"best_speeds": tuple(speeds), "best_acceptance": tuple(acceptance)}
