"""What is done inside verl's `vLLMHttpServer` actors, by Ray's `__ray_call__`.

verl's own `abort_request` looks the id up among vLLM's internal ones, to which today's vLLM (0.32)
adds a random suffix: it finds nothing.  The engine knows requests by the ids they were given, so it
is asked directly; verl's method is the second try, for servers that are built otherwise.

Ray runs what it is given here on a thread beside the actor's event loop: reading is done on copies,
commands are handed to the loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from steersman.mechanisms.leases.inside import Limits, limits_of, reading_of
from steersman.mechanisms.leases.lease import EngineReading


def limits(server: Any) -> Limits:
    """Runs in the actor."""
    return limits_of(server.engine)


def look(server: Any) -> EngineReading:
    """Runs in the actor: how far its requests have come."""
    version = getattr(server, "global_steps", None)
    return reading_of(
        server.engine,
        paused=bool(getattr(server, "_submission_paused", False)),
        weight_version=None if version is None else int(version),
    )


def abort(server: Any, attempt_ids: Sequence[str]) -> None:
    """Runs in the actor; the requests' own answers tell how they ended."""
    engine = server.engine
    reader = engine.output_handler
    if reader is not None:  # else it was never asked for anything
        asyncio.run_coroutine_threadsafe(engine.abort(list(attempt_ids)), reader.get_loop())


async def abort_requests(handle: Any, attempt_ids: Sequence[str]) -> None:
    """Ask a server to abort requests; prefix caches stay as they are."""
    try:
        await handle.__ray_call__.remote(abort, list(attempt_ids))
    except AttributeError:  # it holds no engine of vLLM's kind
        for attempt_id in attempt_ids:
            await handle.abort_request.remote(attempt_id, reset_prefix_cache=False)
