"""Controllers with a placement policy that is an object of the test's own."""

from dataclasses import replace
from typing import Any

from steersman.controller.config import load_config
from steersman.controller.core import Controller, Estimators, Stack


def steered_by(policy: Any, *overrides: str) -> Controller:
    """A controller whose placement is `policy`, otherwise as configured."""
    config = load_config(None, overrides, environ={})
    stack = replace(Stack.from_config(config), placement=policy)
    return Controller(config, Estimators.from_config(config), stack)
