"""NeMo-RL (SingleController, vLLM with `async_engine`): which shard each sample goes to.

Put this file's folder on PYTHONPATH; then it is one entry of NeMo-RL's configuration:

    async_rl:
      sampler: {name: custom, target: "attach_nemo_rl:in_order", max_lookahead_versions: 1}

NeMo-RL lets others bring a sampler, and nothing for routing.  So the sampler is its own (in order,
its default), and asking for it puts a shard selector into the process that generates.  The selector
sends each sample where it would begin soonest: to the shard with the least work in flight, measured
by how long that shard's samples have taken lately.  NeMo-RL's default goes round the shards in
turn, whatever runs there.

NeMo-RL needs Python 3.13, which Steersman does not run on: this file stands alone.  If
`async_rl.generation_fleet_health` is on, shards that it has quarantined are left out.

What will work: steersman attach --check nemo-rl --python PATH/OF/ITS/python
"""

import time
from collections import deque
from typing import Any

FORGETS = 0.1
"""Share of a new measurement in a shard's mean time: ten samples or so are remembered."""


class Selector:
    """NeMo-RL's `fleet_selector`: called before and after each sample."""

    def __init__(self, shards: int, healthy: Any = None) -> None:
        """`healthy`: NeMo-RL's own selector, if it had one."""
        self._healthy = healthy
        self._begun: list[deque[float]] = [deque() for _ in range(shards)]
        self._mean_s = [0.0] * shards
        self._turn = 0

    def next_shard(self) -> int:
        """The shard whose work in flight is the least; in turn among equals."""
        shards = list(range(len(self._begun)))
        if self._healthy is not None:
            self._healthy.next_shard()  # raises NeMo-RL's own error where none is left
            shards = list(self._healthy.monitor.serving_shards())
        known = [mean for mean in self._mean_s if mean > 0]
        usual = sum(known) / len(known) if known else 1.0
        self._turn += 1

        def cost(shard: int) -> tuple[float, int]:
            mean_s = self._mean_s[shard] or usual
            return (self.inflight(shard) + 1) * mean_s, (shard - self._turn) % len(self._begun)

        return min(shards, key=cost)

    def acquire(self, shard_idx: int) -> None:
        """A sample begins there."""
        self._begun[shard_idx].append(time.monotonic())
        if self._healthy is not None:
            self._healthy.acquire(shard_idx)

    def release(self, shard_idx: int) -> None:
        """One has ended.  Which one is not told: the oldest stands for it, since sums agree."""
        begun = self._begun[shard_idx]
        if begun:
            took_s = time.monotonic() - begun.popleft()
            before_s = self._mean_s[shard_idx] or took_s
            self._mean_s[shard_idx] = before_s + FORGETS * (took_s - before_s)
        if self._healthy is not None:
            self._healthy.release(shard_idx)

    def inflight(self, shard_idx: int) -> int:
        """Samples that run there."""
        return len(self._begun[shard_idx])


def install() -> None:
    """From now on every generation of this process is given a selector of ours."""
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration

    def next_shard(self: Any) -> int:
        if not isinstance(self.fleet_selector, Selector):
            self.fleet_selector = Selector(self.worker_group.dp_size, self.fleet_selector)
        return self.fleet_selector.next_shard()

    VllmGeneration._next_dp_shard_idx = next_shard


def in_order(buffer: Any, *, max_lookahead_versions: int = 1) -> Any:
    """NeMo-RL's own sampler, as `target` names it."""
    from nemo_rl.algorithms.async_utils.staleness_sampler import InOrderSampler

    install()
    return InOrderSampler(buffer, max_lookahead_versions=max_lookahead_versions)
