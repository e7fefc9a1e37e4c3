"""NeMo-RL's shard selector, on fakes made after its source (7ea279a)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[4] / "examples" / "attach_nemo_rl.py"


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module beside a fake of NeMo-RL."""

    class VllmGeneration:
        """`_async_generate_base` as far as it concerns shards."""

        def __init__(self) -> None:
            self.worker_group = SimpleNamespace(dp_size=3)
            self.fleet_selector: Any = None

        def _next_dp_shard_idx(self) -> int:
            return 0

        def begin(self) -> int:
            shard = self._next_dp_shard_idx()
            if self.fleet_selector is not None:
                self.fleet_selector.acquire(shard)
            return shard

        def end(self, shard: int) -> None:
            if self.fleet_selector is not None:
                self.fleet_selector.release(shard)

    class InOrderSampler:
        def __init__(self, buffer: Any, *, max_lookahead_versions: int) -> None:
            self.made = (buffer, max_lookahead_versions)

    generation = ModuleType("nemo_rl.models.generation.vllm.vllm_generation")
    generation.VllmGeneration = VllmGeneration  # type: ignore[attr-defined]
    sampler = ModuleType("nemo_rl.algorithms.async_utils.staleness_sampler")
    sampler.InOrderSampler = InOrderSampler  # type: ignore[attr-defined]
    for module in (generation, sampler):
        parts = module.__name__.split(".")
        for depth in range(1, len(parts)):
            name = ".".join(parts[:depth])
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("attach_nemo_rl", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    return SimpleNamespace(ours=ours, generation=VllmGeneration)


def test_the_sampler_is_nemo_rls_own_and_brings_the_selector(attached: Any) -> None:
    made = attached.ours.in_order("buffer", max_lookahead_versions=2).made
    assert made == ("buffer", 2)
    generation = attached.generation()
    assert sorted(generation.begin() for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    assert isinstance(generation.fleet_selector, attached.ours.Selector)


def test_a_shard_that_ends_early_gets_the_next_sample(attached: Any) -> None:
    attached.ours.install()
    generation = attached.generation()
    for _ in range(6):
        generation.begin()
    generation.end(1)
    assert generation.begin() == 1


def test_a_slow_shard_gets_less(attached: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(attached.ours.time, "monotonic", lambda: now_s[0])
    selector = attached.ours.Selector(2)
    for _ in range(20):
        for shard, takes_s in ((0, 1.0), (1, 3.0)):
            selector.acquire(shard)
            now_s[0] += takes_s
            selector.release(shard)
    given = []
    for _ in range(8):
        given.append(selector.next_shard())
        selector.acquire(given[-1])
    assert given.count(0) == 6


def test_quarantined_shards_are_left_out(attached: Any) -> None:
    healthy = SimpleNamespace(
        monitor=SimpleNamespace(serving_shards=lambda: [0, 2]),
        next_shard=lambda: 0,
        acquire=lambda shard: None,
        release=lambda shard: None,
    )
    attached.ours.install()
    generation = attached.generation()
    generation.fleet_selector = healthy
    assert {generation.begin() for _ in range(6)} == {0, 2}


def test_the_example_needs_nothing_of_ours() -> None:
    assert "import steersman" not in EXAMPLE.read_text()
    assert "from steersman" not in EXAMPLE.read_text()
