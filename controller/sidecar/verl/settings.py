"""The router's YAML file: verl's key, a few of ours, and the section `steersman`.

    router_class: steersman.controller.sidecar.verl.router.SteersmanRouter
    router_lost: direct
    steersman:
      mode: enforce
      placement: {name: adaptive}

`steersman` is this project's configuration as in its own files; the environment overrides it
(`STEERSMAN_PLACEMENT__NAME`).
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from steersman.controller._layers import Given
from steersman.controller._section import Section, check_number
from steersman.controller.config import Config, load_config
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Objective


class RouterSettings(Section, frozen=True):
    """The keys beside `steersman`."""

    router_class: str = ""
    """verl's: what to load."""
    router_lost: Literal["direct", "raise"] = "direct"
    """What clients do without the router: go to the engines directly, the least loaded first, or
    raise."""
    objective: Objective = Objective.BARRIER
    """barrier (trainer_mode sync) or stream (the asynchronous ones): whether the trainer waits for
    a whole step or for the next groups."""
    may_defer: bool = False
    """Whether a trajectory may be parked for a later step.  Its agent loop waits: off unless the
    trainer goes on without it."""
    look_every_s: float = 0.25
    """Seconds between looks into each engine, for progress and load; 0: none, both are guessed."""
    stall_timeout_s: float = 60.0
    """An engine that does not answer a look for so many seconds is given up."""
    term_s: float = 120.0
    """A worker that has not asked for orders for so many seconds is taken for gone."""

    def __post_init__(self) -> None:
        check_number("look_every_s", self.look_every_s, least=0.0)
        check_number("stall_timeout_s", self.stall_timeout_s, above=0.0)
        check_number("term_s", self.term_s, above=0.0)


def read_settings(yaml_config: Mapping[str, Any]) -> tuple[RouterSettings, Config]:
    """Both parts of the file.  Raises `InvalidInputError` with one line that names the key."""
    values = dict(yaml_config)
    inner = values.pop("steersman", None) or {}
    known = RouterSettings.__struct_fields__
    for key in values:
        if key not in known:
            raise UnknownNameError("key in the router's YAML:", str(key), [*known, "steersman"])
    if not isinstance(inner, Mapping):
        raise InvalidInputError(
            f"the router's YAML: steersman is {inner!r:.40}; valid: a section of configuration"
        )
    try:
        settings = msgspec.convert(values, RouterSettings)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the router's YAML: {error}") from None
    tree = dict(inner)
    if tree.get("mode") is False:  # verl's reader takes the word `off` for false
        tree["mode"] = "off"
    return settings, load_config(Given(tree, "the router's YAML, steersman"))
