"""A part's name in the configuration is the name of its file; this module finds and builds it.

A file belongs to a kind (a folder below `steersman`, dotted: "policies.placement") if one of its
lines starts with `PLUGIN`.  That line is looked for in the text, so that listing names imports
nothing.  All estimators share a folder; there the kind is told by the line's contract, so that
"estimators.length" are the files with `PLUGIN: type[LengthEstimator]`.  A name with a dot or a
colon means a part outside this project: "my_package.my_module" (its `PLUGIN`) or
"my_package.my_module:MyClass".
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from steersman.estimators.errors import InvalidInputError, UnknownNameError

KINDS = {
    "policies.placement": "placement policy",
    "policies.prompts": "prompt policy",
    "policies.stopping": "stopping policy",
    "policies.speculation": "speculation policy",
    "estimators.length": "length estimator",
    "estimators.throughput": "throughput estimator",
    "estimators.success": "success estimator",
    "estimators.acceptance": "acceptance estimator",
    "estimators.drift": "drift estimator",
    "mechanisms": "mechanism",
    "controller.importers": "format of run logs",
}
"""What a person calls the parts of a kind."""
_PLUGIN_LINE = re.compile(r"^PLUGIN\b(?:: type\[(\w+)\])?", re.MULTILINE)


def names(kind: str) -> list[str]:
    """The parts of a kind that this project brings along, sorted."""
    return sorted(files(kind))


def files(kind: str) -> dict[str, Path]:
    """The file of each part of a kind."""
    folder, contract = _home(kind)
    spec = find_spec(f"steersman.{folder}")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise InvalidInputError(f"steersman has no folder {folder!r}")
    found = {}
    for path in (path for place in folders for path in Path(place).glob("[!_]*.py")):
        line = _PLUGIN_LINE.search(path.read_text(encoding="utf-8"))
        if line and (contract is None or line[1] == contract):
            found[path.stem] = path
    return found


def check_name(kind: str, name: str) -> None:
    """Raise `UnknownNameError` for a name that cannot be a part; imports nothing."""
    if not _is_outside(name) and name not in (known := names(kind)):
        raise UnknownNameError(KINDS.get(kind, kind), name, known)


def load(kind: str, name: str) -> type:
    """The class behind a name."""
    check_name(kind, name)
    if not _is_outside(name):
        module = importlib.import_module(f"steersman.{_home(kind)[0]}.{name}")
        return _the_class(module, "PLUGIN", name)
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidInputError(f"cannot import {module_name!r} ({kind}): {error}") from error
    return _the_class(module, attribute or "PLUGIN", name)


def build(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """An object of the named part; its dataclass fields are its options."""
    cls = load(kind, name)
    known = {f.name: f for f in fields(cls) if f.init} if is_dataclass(cls) else {}
    hints = get_type_hints(cls) if known else {}
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of {name}", option, known)
    missing = [option for option, f in known.items() if _is_required(f) and option not in options]
    if missing:
        raise InvalidInputError(f"{name} needs the option {', '.join(missing)}")
    values = {key: _converted(name, key, value, hints[key]) for key, value in options.items()}
    try:
        return cls(**values)
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{name}: {error}") from error


def _home(kind: str) -> tuple[str, str | None]:
    """Folder and contract of a kind."""
    folder, _, role = kind.partition(".")
    if folder == "estimators" and role:
        return folder, f"{role.capitalize()}Estimator"
    return kind, None


def _is_outside(name: str) -> bool:
    return "." in name or ":" in name


def _the_class(module: object, attribute: str, name: str) -> type:
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise InvalidInputError(f"{name!r} has no class {attribute}")
    return found


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _converted(name: str, option: str, value: object, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"option {option!r} of {name} is {value!r}: {error}") from error
