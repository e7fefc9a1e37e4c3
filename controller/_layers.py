"""Reads the three layers of a configuration as flat assignments that remember their source."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from steersman.estimators.errors import InvalidInputError

PREFIX = "STEERSMAN_"
SECRETS = frozenset({"STEERSMAN_TOKEN", "STEERSMAN_ADMIN_TOKEN", "STEERSMAN_ENGINE_TOKEN"})
"""No configuration, which is written into traces: whoever needs one of them asks for it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value for one key."""

    keys: tuple[str, ...]
    readings: tuple[Any, ...]
    """What the value may mean, the likeliest first: text can be a number or just text."""
    source: str
    """Where it came from, for a person."""

    @property
    def dotted(self) -> str:
        """The key as it is written."""
        return ".".join(self.keys)


@dataclass(frozen=True, slots=True)
class Given:
    """What a file would hold, as somebody else has read it."""

    tree: Mapping[str, Any]
    source: str
    """Where it came from, for a person."""


def assignments(
    path: Path | Given | None, overrides: Sequence[str], environ: Mapping[str, str]
) -> list[list[Assignment]]:
    """The three layers, lowest first."""
    if isinstance(path, Given):
        lowest = [*_flat(path.tree, (), path.source)]
    else:
        lowest = [] if path is None else [*_flat(read_file(path), (), str(path))]
    return [
        lowest,
        [*_from_environment(environ)],
        [_from_override(text) for text in overrides],
    ]


def nested(values: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """A tree of dicts from flat keys; a later value wins."""
    tree: dict[str, Any] = {}
    for keys, value in values:
        node = tree
        for key in keys[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[keys[-1]] = value
    return tree


def merge(below: dict[str, Any], above: Mapping[str, Any], parts: Iterable[str] = ()) -> None:
    """Lay `above` over `below`, in place; a part of another name loses its former options."""
    for part in parts:
        name = above.get(part, {}).get("name")
        if name is not None and name != below.get(part, {}).get("name"):
            below.get(part, {}).pop("options", None)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            merge(below[key], value)
        else:
            below[key] = value


def read_file(path: Path) -> dict[str, Any]:
    """The content of a TOML or YAML file."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise InvalidInputError(f"{path}: a configuration file ends in .toml, .yaml or .yml")
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.load(text, _Yaml)
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInputError(f"{path}: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: it must hold keys and values, not one {content!r:.40}")
    return content


class _Yaml(yaml.SafeLoader):
    """YAML as its version 1.2 reads it: `off` is a word, not false (it is a mode)."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, regexp) for tag, regexp in resolvers if first in "tTfF" or "bool" not in tag]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _flat(tree: Mapping[Any, Any], above: tuple[str, ...], source: str) -> Iterator[Assignment]:
    for key, value in tree.items():
        keys = (*above, str(key))
        if isinstance(value, dict) and value:
            yield from _flat(value, keys, source)
        elif value != {}:
            yield Assignment(keys, (value,), source)


def _from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in SECRETS:
            keys = tuple(variable.removeprefix(PREFIX).lower().split("__"))
            source = f"the environment variable {variable}"
            yield Assignment(keys, _readings(environ[variable]), source)


def _from_override(text: str) -> Assignment:
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise InvalidInputError(f"the override {text!r} is not of the form key=value or a.b=value")
    return Assignment(keys, _readings(value.strip()), f"the override {text!r}")


def _readings(text: str) -> tuple[Any, ...]:
    for parse in (json.loads, _toml_value):
        try:
            return (parse(text), text)
        except ValueError:
            continue
    return (text,)


def _toml_value(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]
