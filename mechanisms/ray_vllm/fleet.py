"""`RayVllmFleet`: the `Fleet` contract on Ray actors that hold vLLM engines.

    fleet = await RayVllmFleet.launch("/models/tiny", replicas=2)
    fleet = await RayVllmFleet.attach(["replica-0"], namespace="rl", address="10.0.0.1:6379")

`launch` owns its replicas and ends them with itself; `attach` joins replicas that run already and
leaves them running.  The replicas may be on any machine of the cluster: only actor handles are
used, and a small model folder travels through Ray's object store to where it is missing.
"""

import asyncio
import os
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Self

import ray

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    AttemptRequest,
    EndReason,
    LogprobProbe,
    NamedTensors,
    ReplicaInfo,
    ReplicaStats,
)
from steersman.mechanisms.ray_vllm.actor import Replica
from steersman.mechanisms.ray_vllm.cluster import Connection, check_gpus, connect, disconnect
from steersman.mechanisms.ray_vllm.draft_hosts import DraftHosts
from steersman.mechanisms.ray_vllm.launcher import Launcher, describe
from steersman.mechanisms.ray_vllm.link import Link, ReplicaLostError
from steersman.mechanisms.ray_vllm.options import EngineOptions
from steersman.mechanisms.ray_vllm.weights import check_probes, pack

__all__ = ["EngineOptions", "RayVllmFleet", "Replica"]

ATTACH_TIMEOUT_S = 15.0
"""For a running replica to say who it is."""


class RayVllmFleet:
    """Implements `Fleet`; see there for the methods without a docstring of their own."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        launcher: Launcher | None,
        stall_timeout_s: float,
        drafts: DraftHosts,
    ) -> None:
        self.changed = asyncio.Event()
        self.namespace = namespace
        """Namespace of the replicas' names, for `attach`."""
        self.address: str = ray.get_runtime_context().gcs_address
        """Address of the cluster, for `attach`."""
        self._connection = connection
        self._launcher = launcher
        self._drafts = drafts
        self._stall_timeout_s = stall_timeout_s
        self._client = uuid.uuid4().hex
        self._links: dict[str, Link] = {}
        self._changing = asyncio.Lock()
        self._weights: tuple[Any, int] | None = None
        self._closed = False

    @classmethod
    async def launch(
        cls,
        model_dir: str | os.PathLike[str],
        replicas: int = 2,
        *,
        address: str | None = None,
        engine: EngineOptions | None = None,
        pools: Sequence[str] | None = None,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        namespace: str | None = None,
        detached: bool = False,
        weight_version: int = 0,
        launch_timeout_s: float = 600.0,
        stall_timeout_s: float = 30.0,
        log_to_driver: bool = False,
    ) -> Self:
        """Start `replicas` engines and wait until all of them are ready.

        `pools` names the pool of each ("bulk" by default).  `num_cpus` and `num_gpus` are reserved
        per replica; without GPUs the engines run on CPU.  `detached` replicas outlive this
        process.  Raises `FleetError`; then nothing that was started is left.
        """
        pools = ["bulk"] * replicas if pools is None else pools
        if replicas < 1 or len(pools) != replicas:
            raise InvalidInputError(f"{replicas} replicas with {len(pools)} pools; one pool each")
        namespace = namespace or f"steersman-{uuid.uuid4().hex[:8]}"
        connection = connect(address, namespace, log_to_driver)
        engine = engine or EngineOptions()
        launcher = None
        drafts = DraftHosts(namespace, engine.draft_store_tokens, detached, weight_version)
        try:
            if connection.started:
                check_gpus(replicas * num_gpus)
            launcher = Launcher(
                model=os.fspath(model_dir),
                engine=engine,
                num_cpus=0.0 if connection.started else num_cpus,
                num_gpus=num_gpus,
                namespace=namespace,
                detached=detached,
                weight_version=weight_version,
                timeout_s=launch_timeout_s,
            )
            fleet = cls(connection, namespace, launcher, stall_timeout_s, drafts)
            for info, actor in await launcher.launch(pools):
                link = fleet._join(info, actor, owned=not detached)
                if engine.draft_tokens:
                    await drafts.serve(link.call, info.name)
        except BaseException:
            drafts.kill()
            if launcher is not None:
                launcher.kill_all()
            disconnect(connection)
            raise
        return fleet

    @classmethod
    async def attach(
        cls,
        names: Sequence[str],
        namespace: str,
        address: str | None = None,
        *,
        stall_timeout_s: float = 30.0,
    ) -> Self:
        """Join replicas that run already, by their actors' names."""
        if not names:
            raise InvalidInputError("no replica names to attach to")
        connection = connect(address or (None if ray.is_initialized() else "auto"), namespace)
        try:
            found = [await describe(name, namespace, ATTACH_TIMEOUT_S) for name in names]
            drafts = DraftHosts(namespace, EngineOptions().draft_store_tokens, detached=True)
            fleet = cls(connection, namespace, None, stall_timeout_s, drafts)
        except BaseException:
            disconnect(connection)
            raise
        for info, actor in found:
            link = fleet._join(info, actor, owned=False)
            if info.max_draft_tokens:
                await drafts.serve(link.call, info.name)
        return fleet

    @property
    def replicas(self) -> Sequence[ReplicaInfo]:
        return [link.info for link in self._links.values()]

    def is_alive(self, replica: str) -> bool:
        return replica in self._links and self._links[replica].alive

    def stats(self, replica: str) -> ReplicaStats:
        return self._link(replica).stats

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        attempt = Attempt(request, replica)
        attempt.on_end(self._drafts.ended)
        if replica in self._links:
            self._links[replica].start(attempt)
        else:
            detail = f"unknown replica {replica!r}"
            attempt.finish(AttemptEnd(EndReason.ERROR, [], [], [], detail))
        return attempt

    def abort(self, attempt: Attempt) -> None:
        if attempt.end is None:
            self._links[attempt.replica].abort(attempt)

    def draft(self, replica: str, draft_tokens: int) -> None:
        if replica in self._links:
            self._links[replica].draft(draft_tokens)

    def speculate(self, attempt: Attempt, draft_tokens: int) -> None:
        if attempt.end is None:
            self._links[attempt.replica].speculate(attempt, draft_tokens)

    async def update_weights(
        self, tensors: NamedTensors, weight_version: int, probes: Iterable[LogprobProbe] = ()
    ) -> float | None:
        probes = list(probes)
        self._check_probe_lengths(probes)
        async with self._changing:
            packed = ray.put(await asyncio.to_thread(pack, tensors))
            links = self._living()
            pushed = await asyncio.gather(
                *(link.update_weights(packed, weight_version) for link in links),
                return_exceptions=True,
            )
            self._raise_unless_lost(pushed)
            self._drafts.advance(weight_version)
            self._weights = packed, weight_version
            return await self._check(self._living(), weight_version, probes)

    async def score(self, replica: str, token_ids: list[int]) -> list[float]:
        (scores,) = await self._link(replica).call("score", [token_ids])
        return list(scores)

    async def add_replica(self, pool: str = "bulk") -> str:
        """Launch one more replica with the newest weights; answers its name."""
        if self._launcher is None:
            raise FleetError("replicas can be added only to a fleet that was launched")
        ((info, actor),) = await self._launcher.launch([pool])
        async with self._changing:
            link = self._join(info, actor, owned=not self._launcher.detached, listed=False)
            if self._launcher.engine.draft_tokens:
                await self._drafts.serve(link.call, info.name)
            if self._weights is not None:
                await link.update_weights(*self._weights)
            # Listed only now: nothing may be started on it with old weights.
            self._links[info.name] = link
        self.changed.set()
        return info.name

    async def kill_replica(self, name: str) -> None:
        """Take a replica out of the fleet at once; its attempts end as lost.

        The replica itself ends, unless this fleet only attached to it.
        """
        link = self._link(name)
        link.owned = link.owned or self._launcher is not None
        await link.close("it was removed")

    async def processes(self, replica: str) -> list[int]:
        """Process ids of the replica and its engine, on the replica's machine."""
        return list(await self._link(replica).call("processes"))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.gather(*(link.close() for link in self._links.values()))
            await self._drafts.close()
        finally:
            if self._launcher is not None and not self._launcher.detached:
                self._launcher.kill_all()
            disconnect(self._connection)

    def _join(self, info: ReplicaInfo, actor: Any, *, owned: bool, listed: bool = True) -> Link:
        version = self._launcher.weight_version if self._launcher else 0
        link = Link(
            info,
            actor,
            self._client,
            owned=owned,
            stall_timeout_s=self._stall_timeout_s,
            changed=self.changed.set,
            weight_version=version,
        )
        if listed:
            self._links[info.name] = link
        return link

    def _link(self, replica: str) -> Link:
        if replica not in self._links:
            raise InvalidInputError(f"unknown replica {replica!r}; known: {', '.join(self._links)}")
        return self._links[replica]

    def _living(self) -> list[Link]:
        links = [link for link in self._links.values() if link.alive]
        if not links:
            raise FleetError("no replica of the fleet is alive")
        return links

    def _check_probe_lengths(self, probes: list[LogprobProbe]) -> None:
        limit = min(info.max_model_len for info in self.replicas)
        for number, probe in enumerate(probes):
            if not 2 <= len(probe.token_ids) < limit:
                raise InvalidInputError(
                    f"probe {number} has {len(probe.token_ids)} tokens; valid: 2 to {limit - 1}"
                )
            if len(probe.logprobs) != len(probe.token_ids) - 1:
                raise InvalidInputError(
                    f"probe {number} has {len(probe.token_ids)} tokens and "
                    f"{len(probe.logprobs)} log-probabilities; one fewer is right"
                )

    async def _check(
        self, links: list[Link], weight_version: int, probes: list[LogprobProbe]
    ) -> float | None:
        if not probes:
            return None
        sequences = [probe.token_ids for probe in probes]
        scored = await asyncio.gather(
            *(link.call("score", sequences) for link in links), return_exceptions=True
        )
        self._raise_unless_lost(scored)
        differences = [
            check_probes(link.info.name, link.info.dtype, weight_version, probes, scores)
            for link, scores in zip(links, scored, strict=True)
            if not isinstance(scores, BaseException)
        ]
        return max(differences, default=None)

    def _raise_unless_lost(self, results: Sequence[Any]) -> None:
        """A replica that died is the watchers' business; any other failure is the caller's."""
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ReplicaLostError):
                raise result
        self._living()
