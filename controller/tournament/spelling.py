"""How an entry is written: a policy, and what differs from the default stack.

    tail_planner,max_moves=0,length.use_siblings=false

Commas separate; nothing in it needs a quote in a shell.  A bare key is an option of the policy or,
where it has none of that name, a single value of the configuration (`max_lag=0`).  A dotted key is
the configuration's, and `length.use_siblings` is short for `length.options.use_siblings`.  Values
are read as the configuration's overrides are.  What is written in two ways gets one label: the
shortest keys, the policy's own first, each kind sorted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from steersman.controller._layers import assignments
from steersman.controller.config import KINDS
from steersman.estimators.errors import InvalidInputError, UnknownNameError

NEXT = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")
"""The comma before another key: those within a list are not."""
SINGLE = ("tick_s", "seed", "max_lag", "normaliser")
"""Values of the configuration without a section that a simulated run reads."""
WITHOUT_EFFECT = ("mode", "decide_timeout_s", "trace", "kill_switch_file")
"""Keys of the configuration that it does not read."""
RESERVED = ("name", "options")
"""Of a part's section: not one of its options."""


def policy_of(text: str) -> str:
    """The name of an entry's policy."""
    return text.partition(",")[0].strip()


@dataclass(frozen=True)
class Spelling:
    """An entry's text, taken apart."""

    policy: str
    section: str
    own: tuple[tuple[str, str], ...]
    """Options of the policy and their values, sorted."""
    others: tuple[tuple[str, str], ...]
    """Keys of the configuration, shortened, and their values, sorted."""

    @classmethod
    def of(cls, text: str, section: str, policy: type) -> "Spelling":
        """Raises `InvalidInputError` for a key that nothing has."""
        options = {f.name for f in fields(policy) if f.init} if is_dataclass(policy) else set()
        name, comma, rest = text.partition(",")
        own, others = dict[str, str](), dict[str, str]()
        for piece in NEXT.split(rest) if comma else ():
            key, value = _key_and_value(text, piece)
            key = _shortened(key, section)
            if "." not in key and key not in options and key not in SINGLE:
                if key in WITHOUT_EFFECT:
                    raise InvalidInputError(f"{text!r}: {key} has no effect in a simulation")
                valid = {*options, *SINGLE}
                raise UnknownNameError(f"option of {name.strip()}", key, valid)
            values = own if key in options else others
            if key in values:
                raise InvalidInputError(f"{text!r} gives {key} twice")
            values[key] = value
        return cls(name.strip(), section, tuple(sorted(own.items())), tuple(sorted(others.items())))

    @property
    def label(self) -> str:
        """What it is called."""
        return ",".join((self.policy, *(f"{key}={value}" for key, value in self.own + self.others)))

    @cached_property
    def options(self) -> dict[str, Any]:
        """Of the policy."""
        (_, _, given) = assignments(None, [f"{key}={value}" for key, value in self.own], {})
        return {each.keys[0]: each.readings[0] for each in given}

    @property
    def overrides(self) -> tuple[str, ...]:
        """Of the configuration.  Prompt policies are no part of it."""
        own = () if self.section == "prompts" else self.own
        return (
            *(f"{self.section}.options.{key}={value}" for key, value in own),
            *(f"{_whole(key)}={value}" for key, value in self.others),
        )

    @property
    def parts(self) -> Sequence[str]:
        """Sections, other than the policy's own, whose part or its options are given."""
        return [s for s in KINDS if any(key.startswith(f"{s}.") for key, _ in self.others)]


def _key_and_value(text: str, piece: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in piece.partition("="))
    if not equals or not key or not value:
        raise InvalidInputError(
            f"{text!r}: {piece.strip()!r} is not of the form key=value; valid: "
            "NAME,KEY=VALUE,SECTION.KEY=VALUE"
        )
    return key, value


def _shortened(key: str, section: str) -> str:
    """Without what goes without saying."""
    head, _, rest = key.partition(".")
    if head in WITHOUT_EFFECT and rest:
        raise InvalidInputError(f"{key}: {head} has no effect in a simulation")
    if head not in KINDS and head != section:
        return key
    rest = rest.removeprefix("options.")
    if head == section and rest == "name":
        raise InvalidInputError(f"{key}: an entry's policy is what stands before the first comma")
    return rest if head == section and rest else f"{head}.{rest}" if rest else key


def _whole(key: str) -> str:
    """As the configuration wants it."""
    head, _, rest = key.partition(".")
    return f"{head}.options.{rest}" if head in KINDS and rest not in RESERVED else key
