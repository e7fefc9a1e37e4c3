"""Which verl this works with."""

import re
from importlib.metadata import PackageNotFoundError, version

from steersman.estimators.errors import InvalidInputError

OLDEST = (0, 9, 1)
"""The first with `rollout.router_config_path`."""


def installed() -> str | None:
    """verl's version; None: it is not installed."""
    try:
        return version("verl")
    except PackageNotFoundError:
        return None


def check_version(found: str | None = None) -> str:
    """verl's version.  Raises `InvalidInputError` if it is too old, or not there."""
    found = found if found is not None else installed()
    oldest = ".".join(map(str, OLDEST))
    if found is None:
        raise InvalidInputError(f"verl is not installed; valid: verl {oldest} or later")
    numbers = tuple(int(part) for part in re.findall(r"\d+", found.partition("+")[0])[:3])
    if numbers < OLDEST:
        raise InvalidInputError(
            f"verl {found} is installed; Steersman attaches to {oldest} or later, the first with "
            "actor_rollout_ref.rollout.router_config_path"
        )
    return found
