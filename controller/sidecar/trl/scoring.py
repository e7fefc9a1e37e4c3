"""Reward functions as TRL calls them.

Each gets `prompts`, `completions`, `completion_ids` and the data set's other columns, as lists, and
returns one number per sample, or None where it cannot tell.  Asynchronous ones are awaited, others
run in a thread.  A sample's reward is the sum of what is known; NaN if nothing is.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from steersman.controller.sidecar.trl.dataset import NOT_FOR_REWARDS
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats

RewardFunction = Callable[..., Any]


class Rewards:
    """All functions of a run."""

    def __init__(
        self, functions: RewardFunction | Sequence[RewardFunction], timeout_s: float
    ) -> None:
        given = [functions] if callable(functions) else list(functions)
        if not given:
            raise InvalidInputError(
                "no reward function; valid: one at least (rewards of environments are not "
                "supported: for those, TRL's own worker can use the gateway as its server)"
            )
        self._functions = {_name(function): function for function in given}
        if len(self._functions) < len(given):
            raise InvalidInputError("two reward functions have the same name")
        self._timeout_s = timeout_s

    async def score(
        self, row: Mapping[str, Any], completions: Sequence[Any], ids: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Floats], Floats]:
        """By function (n,), and their sum (n,)."""
        n = len(completions)
        columns = {key: [row[key]] * n for key in row if key not in NOT_FOR_REWARDS}
        told = {
            "prompts": [row["prompt"]] * n,
            "completions": list(completions),
            "completion_ids": [list(each) for each in ids],
            **columns,
        }
        asked = asyncio.gather(*(_ask(function, told) for function in self._functions.values()))
        try:
            answers = await asyncio.wait_for(asked, self._timeout_s)
        except TimeoutError:
            raise InvalidInputError(
                f"the reward functions took more than {self._timeout_s:g} s (request_timeout)"
            ) from None
        scores = {}
        for name, values in zip(self._functions, answers, strict=True):
            column = np.array([np.nan if v is None else float(v) for v in values])
            if len(column) != n:
                raise InvalidInputError(
                    f"reward function {name} told {len(column)} rewards for {n} samples"
                )
            scores[name] = column
        table = np.stack(list(scores.values()))
        nothing = np.isnan(table).all(axis=0)
        return scores, np.where(nothing, np.nan, np.nansum(table, axis=0))


async def _ask(function: RewardFunction, told: Mapping[str, Any]) -> Sequence[float | None]:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    ):
        answer: Sequence[float | None] = await function(**told)
        return answer
    return await asyncio.to_thread(function, **told)


def _name(function: RewardFunction) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
