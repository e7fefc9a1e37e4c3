"""Looks at a fleet through its gateway, which also knows rewards and decisions."""

import asyncio
import time

import msgspec

from steersman.controller.gateway.state import GatewayState
from steersman.controller.watching.client import StateClient
from steersman.controller.watching.engines import Progress, stopped_by
from steersman.controller.watching.looks import EngineLook, Looks
from steersman.controller.watching.observed import Observed
from steersman.estimators.errors import FleetError


async def observe_gateway(
    client: StateClient, for_s: float, every_s: float, stop: asyncio.Event, progress: Progress
) -> Observed:
    """Look every `every_s` seconds until `for_s` have passed or `stop` is set.

    Raises what `StateClient.state` raises, if that happens at the first look.
    """
    looks, began_s = Looks([]), time.monotonic()
    state: GatewayState | None = None
    while True:
        seen_s = time.monotonic() - began_s
        try:
            state = await asyncio.to_thread(client.state)
        except FleetError:
            if state is None:
                raise
            looks.add(seen_s, [None] * len(looks.names))  # it may be restarting
        else:
            looks.names = looks.names or [replica.name for replica in state.replicas]
            looks.add(seen_s, _looks(state, looks.names))
        progress(seen_s)
        if seen_s >= for_s or await stopped_by(stop, began_s + len(looks) * every_s):
            return _with_the_rest(looks.observed("gateway"), state)


def _looks(state: GatewayState, names: list[str]) -> list[EngineLook | None]:
    by_name = {replica.name: replica for replica in state.replicas if replica.alive}
    found: list[EngineLook | None] = []
    for name in names:
        r = by_name.get(name)
        found.append(
            None
            if r is None
            else EngineLook(
                running=r.running,
                waiting=r.waiting,
                kv=r.kv_usage,
                tokens=r.generated_tokens,
                preemptions=r.preemptions,
            )
        )
    return found


def _with_the_rest(observed: Observed, state: GatewayState) -> Observed:
    return msgspec.structs.replace(
        observed,
        degenerate_share=state.figures.degenerate_share,
        groups_rewarded=state.figures.groups_rewarded,
        decider=f"{state.decider.policy} ({state.decider.state}) since the gateway started",
        decisions=state.decisions,
    )
