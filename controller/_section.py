"""What every section of the configuration is made of."""

import math

import msgspec

from steersman.estimators.errors import InvalidInputError


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every section: immutable, and unknown keys are refused."""


def check_number(
    name: str, value: float, *, above: float | None = None, least: float | None = None
) -> None:
    """Refuse a number that is not finite or not in its range."""
    if above is not None and not (value > above and math.isfinite(value)):
        raise InvalidInputError(f"{name} is {value}; valid: a finite number above {above:g}")
    if least is not None and not (value >= least and math.isfinite(value)):
        raise InvalidInputError(f"{name} is {value}; valid: a finite number, {least:g} or more")
