"""The driver's end of the draft stores: what ended anywhere is told to the keeper of each machine.

The driver knows all that was written, on all machines.  Ended attempts go out in batches, new
weight versions in between, and nobody waits for a keeper.  One that falls behind misses some text;
one that dies takes its machine back to drafts from what is there, and nothing else.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from steersman.estimators.errors import FleetError
from steersman.mechanisms.drafting.store import StoreStats
from steersman.mechanisms.fleet import Attempt
from steersman.mechanisms.ray_vllm.draft_host import DraftHost, pack

log = logging.getLogger(__name__)

GATHER_S = 0.05
"""Ends are told together with those of so long after: a message costs both sides 0.3 ms."""
MOST_UNHEARD = 4
"""Messages that a keeper may be behind before it misses text."""
START_TIMEOUT_S = 60.0
"""For a keeper to reserve its memory; the store's code may have to be compiled first."""
CLOSE_TIMEOUT_S = 2.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@dataclass(eq=False)
class _Keeper:
    """One of the actors, as seen from a driver."""

    name: str
    actor: Any
    owned: bool
    unheard: int = 0
    dead: bool = False


@dataclass(eq=False)
class DraftHosts:
    """A driver's keepers."""

    namespace: str
    capacity_tokens: int
    detached: bool = False
    weight_version: int = 0
    """The trainer's, as last told."""
    _keepers: dict[str, _Keeper] = field(default_factory=dict)
    """By actor name."""
    _ended: list[Attempt] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    async def serve(self, call: Callable[..., Awaitable[Any]], replica: str) -> None:
        """Give a replica its machine's store, starting a keeper there if there is none.

        `call` calls the replica's actor.  A replica that gets none drafts from its own requests.
        """
        try:
            node, refusal, keeper = await call("drafting")
            if refusal:
                log.warning("replica %r will draft nothing: %s", replica, refusal)
                return
            name = keeper or f"drafts-{node[:16]}"
            store = await (self._join(name) if keeper else self._start(name, node))
            problem = "" if keeper else await call("attach_drafts", store, name)
        except (FleetError, ray.exceptions.RayError) as error:
            problem = " ".join(str(getattr(error, "cause", None) or error).split())
        if problem:
            log.warning("replica %r drafts only from its own requests: %s", replica, problem)

    def ended(self, attempt: Attempt) -> None:
        """An attempt has ended: what it wrote may be drafted from."""
        if self._keepers and attempt.end is not None and attempt.end.tokens:
            self._ended.append(attempt)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def advance(self, weight_version: int) -> None:
        """The trainer's weights are of this version now: what ended before is older."""
        self._flush()
        self.weight_version = weight_version
        for keeper in self._keepers.values():
            self._tell(keeper, "advance", weight_version)

    async def stats(self) -> dict[str, StoreStats]:
        """Of each store, by its keeper's name."""
        return {
            keeper.name: await _answer(keeper.actor.stats.remote(), CLOSE_TIMEOUT_S)
            for keeper in self._keepers.values()
            if not keeper.dead
        }

    async def close(self) -> None:
        """End the keepers that this driver started, and their stores."""
        if self._timer is not None:
            self._timer.cancel()
        keepers, self._keepers = self._keepers, {}
        for keeper in keepers.values():
            if keeper.owned and not keeper.dead:
                try:
                    await _answer(keeper.actor.close.remote(), CLOSE_TIMEOUT_S)
                except (FleetError, ray.exceptions.RayError) as error:
                    log.warning("draft store %r was not closed: %s", keeper.name, error)
                ray.kill(keeper.actor, no_restart=True)

    def kill(self) -> None:
        """End them at once."""
        for keeper in self._keepers.values():
            if keeper.owned:
                ray.kill(keeper.actor, no_restart=True)

    async def _join(self, name: str) -> str:
        """A keeper that somebody else started."""
        if name not in self._keepers:
            try:
                actor = ray.get_actor(name, self.namespace)
            except ValueError as error:
                raise FleetError(f"the keeper of its draft store, {name!r}, is gone") from error
            self._keepers[name] = _Keeper(name, actor, owned=False)
        return await self._store_of(self._keepers[name])

    async def _start(self, name: str, node: str) -> str:
        if name not in self._keepers:
            kind = ray.remote(DraftHost).options(
                name=name,
                namespace=self.namespace,
                lifetime="detached" if self.detached else None,
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                runtime_env={"env_vars": ENVIRONMENT},
            )
            store = re.sub(r"[^A-Za-z0-9]", "-", self.namespace)[:60] + f"-{os.urandom(4).hex()}"
            try:
                actor = kind.remote(store, self.capacity_tokens)
            except ValueError as error:
                raise FleetError(f"somebody else has a draft store {name!r} there") from error
            self._keepers[name] = _Keeper(name, actor, owned=not self.detached)
            opened = await self._store_of(self._keepers[name])
            self._tell(self._keepers[name], "advance", self.weight_version)
            return opened
        return await self._store_of(self._keepers[name])

    async def _store_of(self, keeper: _Keeper) -> str:
        try:
            store: str = await _answer(keeper.actor.store.remote(), START_TIMEOUT_S)
        except BaseException:
            del self._keepers[keeper.name]
            if keeper.owned:
                ray.kill(keeper.actor, no_restart=True)
            raise
        return store

    def _flush(self) -> None:
        """Tell the keepers what has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        attempts, self._ended = self._ended, []
        ready = [k for k in self._keepers.values() if not k.dead and k.unheard < MOST_UNHEARD]
        if not attempts or not ready:
            return
        documents = pack(attempts)
        shared = ray.put(documents) if len(ready) > 1 else documents
        for keeper in ready:
            self._tell(keeper, "append", shared)

    def _tell(self, keeper: _Keeper, method: str, argument: Any) -> None:
        if keeper.dead:
            return
        keeper.unheard += 1

        def heard(future: "asyncio.Future[Any]") -> None:
            keeper.unheard -= 1
            if not future.cancelled() and (error := future.exception()) and not keeper.dead:
                keeper.dead = True
                line = " ".join(str(error).split())[:200]
                log.warning("draft store %r takes no more text: %s", keeper.name, line)

        reference = getattr(keeper.actor, method).remote(argument)
        asyncio.wrap_future(reference.future()).add_done_callback(heard)


async def _answer(reference: Any, timeout_s: float) -> Any:
    """A call's answer; raises `FleetError` if it takes too long."""
    future: asyncio.Future[Any] = asyncio.wrap_future(reference.future())
    # Ray sets the result even of a cancelled future and fails in doing so: wait, cancel nothing.
    await asyncio.wait((future,), timeout=timeout_s)
    if not future.done():
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise FleetError(f"no answer within {timeout_s:g} s")
    return future.result()
