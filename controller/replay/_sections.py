"""The keys of a scenario file, and errors that name what is valid."""

from collections.abc import Mapping
from typing import Any

import msgspec

from steersman.controller.replay.events import Kind, Update
from steersman.estimators.errors import InvalidInputError, UnknownNameError


class ReplicasSection(msgspec.Struct, frozen=True):
    """So many replicas of a kind."""

    profile: str
    count: int = 1
    speed: float = 1.0
    pool: str = "bulk"


class EventSection(msgspec.Struct, frozen=True):
    """One event; None: not said."""

    kind: Kind
    at_s: float = 0.0
    step: int | None = None
    replica: str | None = None
    profile: str | None = None
    speed: float | None = None
    pool: str | None = None
    acceptance: list[float] | None = None

    def gives(self, name: str) -> bool:
        """Whether the file says it."""
        return getattr(self, name) is not None


class WeightsSection(msgspec.Struct, frozen=True):
    """How a stream's weights are replaced."""

    update: Update = Update.KEEP
    seconds: float = 0.0
    at_s: list[float] | str = []


class SpeculationSection(msgspec.Struct, frozen=True):
    """What drafting is worth."""

    acceptance: list[float] | str = []
    draft_token_s: float = 0.0
    verify_s: float = 0.0
    draft_tokens: int = 0


class ScenarioFile(msgspec.Struct, frozen=True):
    """All of it."""

    replicas: list[ReplicasSection] = []
    events: list[EventSection] = []
    weights: WeightsSection = WeightsSection()
    speculation: SpeculationSection = SpeculationSection()


_WORDS = {"kind": Kind, "update": Update}
"""Keys whose values are words."""


def read_sections(content: Mapping[str, Any], name: str) -> ScenarioFile:
    """The file `name`, parsed from TOML."""
    _check_keys(ScenarioFile, content, name)
    tables: dict[str, type[msgspec.Struct]] = {
        "weights": WeightsSection,
        "speculation": SpeculationSection,
    }
    lists: dict[str, type[msgspec.Struct]] = {"replicas": ReplicasSection, "events": EventSection}
    said: dict[str, Any] = {}
    for key, value in content.items():
        if key in tables:
            said[key] = _section(tables[key], value, f"{name}: {key}", f"[{key}]")
        else:
            if not isinstance(value, list):
                raise InvalidInputError(f"{name}: {key} is not a list of tables; write [[{key}]]")
            said[key] = [
                _section(lists[key], own, f"{name}: {key}[{number}]", f"[[{key}]]")
                for number, own in enumerate(value)
            ]
    return ScenarioFile(**said)


def _section(kind: type[msgspec.Struct], content: Any, where: str, header: str) -> msgspec.Struct:
    if not isinstance(content, dict):
        raise InvalidInputError(f"{where} is not a table; write {header}")
    _check_keys(kind, content, where)
    for key, words in _WORDS.items():
        valid = [word.value for word in words]
        if key in content and content[key] not in valid:
            raise UnknownNameError(f"{key} in {where}:", str(content[key]), valid)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "").replace(" - at $", ": ", 1)
        raise InvalidInputError(f"{where}: {reason}") from error


def _check_keys(kind: type[msgspec.Struct], content: Mapping[str, Any], where: str) -> None:
    for key in content:
        if key not in kind.__struct_fields__:
            raise UnknownNameError(f"key in {where}:", key, kind.__struct_fields__)
