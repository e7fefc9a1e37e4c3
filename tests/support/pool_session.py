"""Sessions whose prompts a policy chooses, on a fleet without engines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from support.fake_fleet import EOS, FakeFleet

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.results import Prompt, Trajectory
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.mechanisms.fleet import Sampling

SAMPLING = Sampling(stop_token_ids=(EOS,))
CAP = 40
SIZE = 4
POOL = [Prompt(f"p{i}", [3 + i % 40, 4 + i // 40, 5]) for i in range(60)]


def steering(*overrides: str, controller: Controller | None = None) -> Controller:
    if controller is not None:
        return controller
    said = ("tick_s=0.01", "guard.move_cooldown_s=0", *overrides)
    return Controller.from_config(load_config(None, said, environ={}))


@asynccontextmanager
async def pool_session(
    *overrides: str,
    pool: Sequence[Prompt] = POOL,
    group_size: int = SIZE,
    controller: Controller | None = None,
    engine: Callable[[FakeFleet], Coroutine[Any, Any, None]] = lambda fleet: fleet.run(4),
) -> AsyncIterator[RolloutSession]:
    """Its trace is checked when it is closed."""
    fleet, trace = FakeFleet(2), TraceWriter(None)
    running = asyncio.create_task(engine(fleet))
    try:
        control = steering(*overrides, controller=controller)
        async with RolloutSession(fleet, control, trace=trace) as opened:
            opened.set_pool(pool, group_size, max_new_tokens=CAP)
            yield opened
    finally:
        running.cancel()
    assert reader.check(trace.records) == []


def number(prompt: Prompt) -> int:
    return int(prompt.prompt_id[1:])


def coin(prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
    """A third of the prompts never passes, a third always, a third at every second slot."""
    kind = number(prompt) % 3
    return [float(kind == 1 or (kind == 2 and t.slot % 2 == 0)) for t in trajectories]


async def slow_coin(prompt: Prompt, trajectories: Sequence[Trajectory]) -> list[float]:
    """The same, told after some turns of the event loop, later for some."""
    for _ in range(1 + 5 * (number(prompt) % 4)):
        await asyncio.sleep(0)
    return coin(prompt, trajectories)


def written(session: RolloutSession, kind: type[Any]) -> list[Any]:
    return [record for record in session.trace.records if isinstance(record, kind)]


def informative(rewards: Sequence[float]) -> bool:
    known = np.array(rewards)[np.isfinite(rewards)]
    return bool(len(known) and known.min() < known.max())
