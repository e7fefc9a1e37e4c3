"""Waiting for attempts on a fleet over HTTP, and for its engines."""

import asyncio
from collections.abc import Callable

from support.plain_dialect import request_of

from steersman.mechanisms.fleet import Attempt, AttemptEnd, EndReason
from steersman.mechanisms.http_vllm.ask import Ask
from steersman.mechanisms.http_vllm.fleet import HttpFleet

PATIENCE_S = 20.0


async def end_of(attempt: Attempt) -> AttemptEnd:
    """Its end; an attempt that ends twice fails the test."""
    future: asyncio.Future[AttemptEnd] = asyncio.get_running_loop().create_future()
    attempt.on_end(
        lambda ended: future.set_result(ended.end or AttemptEnd(EndReason.LOST, [], [], []))
    )
    return await asyncio.wait_for(future, PATIENCE_S)


async def until(done: Callable[[], object]) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.002)


async def carried_out(
    fleet: HttpFleet, replica: str, ask: Ask, attempt_id: str = "a-0"
) -> AttemptEnd:
    """One attempt, to its end."""
    return await end_of(fleet.start(replica, request_of(ask, attempt_id)))
