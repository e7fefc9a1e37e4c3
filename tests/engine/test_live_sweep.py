"""A profile measured on real engines: the counters mean what the measurement takes them for."""

import pytest
from engine.models import unmeasured

from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
from steersman.mechanisms.simulated import live

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


async def test_a_small_sweep_counts_every_token_and_no_prompt(
    fleet: RayVllmFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[live.Point, list[live.Sample]] = {}
    add = live.Samples.add

    def keep(samples: live.Samples, point: live.Point, sample: live.Sample) -> None:
        seen.setdefault(point, []).append(sample)
        add(samples, point, sample)

    monkeypatch.setattr(live.Samples, "add", keep)
    labels = unmeasured(fleet, max_num_seqs=4)
    profile = await live.measure(fleet, labels)
    for point, samples in seen.items():
        living = sum(fleet.is_alive(info.name) for info in fleet.replicas)
        assert len(samples) == live.ROUNDS * living
        for sample in samples:
            if point.batch:
                # All tokens but those of the first iteration, which an engine does not count.
                written, uncounted = point.batch * live.TOKENS, point.batch
                assert written - uncounted <= sample.sequences <= written
                assert sample.prefill_tokens <= point.batch
            else:
                # The long sequence's own prompt, where an abort before it was heard of late.
                own = sample.prefill_tokens - live.PROMPTS * point.prompt
                assert own in (0, live.SHORTEST_PROMPT)
    assert profile.batch_range == (1, 4)
    assert 1e-4 < profile.iteration_s(1.0, 100.0) < 0.2
    alive = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
    assert all(fleet.stats(name).running == 0 for name in alive)
