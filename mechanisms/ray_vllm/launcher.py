"""Starting replicas as Ray actors, and finding those that run."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from steersman.estimators.errors import FleetError
from steersman.mechanisms.fleet import ReplicaInfo
from steersman.mechanisms.ray_vllm.actor import Replica
from steersman.mechanisms.ray_vllm.options import EngineOptions, ReplicaSpec, process_environment
from steersman.mechanisms.ray_vllm.weights import read_folder

MAX_CONCURRENCY = 1000
"""Calls that run at once in a replica: a handful per driver, and a batch of scores."""


@dataclass(eq=False)
class Launcher:
    """Starts replicas of one model."""

    model: str
    engine: EngineOptions
    num_cpus: float
    num_gpus: float
    namespace: str
    detached: bool
    weight_version: int
    timeout_s: float
    _actors: list[Any] = field(default_factory=list)
    _files: list[Any] = field(default_factory=list)

    async def launch(self, pools: Sequence[str]) -> list[tuple[ReplicaInfo, Any]]:
        """One replica per pool, in parallel."""
        if Path(self.model).is_dir():
            self.model = str(Path(self.model).resolve())
        self._ship()
        actors = [self._create(pool) for pool in pools]
        launched = [actor.launch.remote(self._files) for actor in actors]
        infos = await _wait(launched, self.timeout_s, "replicas to start")
        return list(zip(infos, actors, strict=True))

    def kill_all(self) -> None:
        """End every replica that was started."""
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors.clear()

    def _create(self, pool: str) -> Any:
        spec = ReplicaSpec(
            name=f"replica-{len(self._actors)}",
            pool=pool,
            model=self.model,
            engine=self.engine,
            num_gpus=self.num_gpus,
            weight_version=self.weight_version,
            seed=secrets.randbits(31),
        )
        kind = ray.remote(Replica).options(
            name=spec.name,
            namespace=self.namespace,
            lifetime="detached" if self.detached else None,
            max_concurrency=MAX_CONCURRENCY,
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            runtime_env={"env_vars": process_environment(spec)},
        )
        try:
            actor = kind.remote(spec)
        except ValueError as error:
            raise FleetError(
                f"Ray namespace {self.namespace!r} has a replica {spec.name!r} already; "
                "attach to it, or choose another namespace"
            ) from error
        self._actors.append(actor)
        return actor

    def _ship(self) -> None:
        """Put a small model folder where other machines can get it, if there are any."""
        machines = sum(1 for node in ray.nodes() if node["Alive"])
        if not self._files and machines > 1:
            files = read_folder(self.model)
            if files is not None:
                self._files.append(ray.put(files))


async def describe(name: str, namespace: str, timeout_s: float) -> tuple[ReplicaInfo, Any]:
    """The running replica of that name."""
    try:
        actor = ray.get_actor(name, namespace)
    except ValueError as error:
        raise FleetError(f"no replica {name!r} in Ray namespace {namespace!r}") from error
    (info,) = await _wait([actor.info.remote()], timeout_s, f"replica {name!r} to answer")
    return info, actor


async def _wait(references: list[Any], timeout_s: float, what: str) -> list[Any]:
    """All answers; a `FleetError` in one line if one fails or they take too long."""
    # Ray's own waiting, in a thread: its futures must not be cancelled half-way.
    ready, missing = await asyncio.to_thread(
        ray.wait, references, num_returns=len(references), timeout=timeout_s
    )
    try:
        answers = ray.get(ready)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        line = " ".join(str(cause).split())
        raise FleetError(f"a replica failed: {line[-400:]}") from error
    if missing:
        raise FleetError(
            f"waited {timeout_s:g} s for {what}; the cluster has {ray.cluster_resources()}"
        )
    return list(answers)
