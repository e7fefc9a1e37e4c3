"""A trajectory deferred across a weight push keeps its segments, each true to its own weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.test_exactness import Disturb, disturbing, trajectories
from engine.test_weights import load, other_model, probe, restored, tensors

from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

__all__ = ["other_model"]  # a fixture

PROMPTS = [Prompt(f"p{i}", [5 + i, 11, 7 + 2 * i, 3]) for i in range(6)]
CAP = 500


def recomputed(model: Any, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """The trainer's log-probability of each token."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0].numpy()


async def test_segments_of_a_trajectory_deferred_right_after_a_push_agree_with_their_weights(
    fleet: RayVllmFleet, fleet_model: Path, other_model: Path
) -> None:
    sampling = Sampling(ignore_eos=True)
    trace = TraceWriter(None)
    async with restored(fleet, fleet_model) as present:
        old, new = load(fleet_model), load(other_model)
        version = present + 1
        async with RolloutSession(
            fleet, disturbing(Disturb(park=True)), trace=trace, weight_version=present
        ) as session:
            # a fleet that is a version behind in its books has no room for a deferral
            assert session.controller.config.max_lag == 1
            await session.push_weights(tensors(old), version, [probe(old)])
            groups = await session.rollout(PROMPTS, 1, max_new_tokens=CAP, sampling=sampling)
            await session.push_weights(tensors(new), version + 1, [probe(new)])
            groups += await session.drain()
    assert reader.check(trace.records) == []
    late = [t for t in trajectories(groups) if t.deferrals]
    assert len(late) >= len(PROMPTS) - 1
    for trajectory in late:
        first, second = trajectory.segments
        assert (first.weight_version, second.weight_version) == (version, version + 1)
        assert (first.start, first.end, second.end) == (0, second.start, CAP)
        assert trajectory.lag == 1
        assert trajectory.correctness is CorrectnessClass.CORRECTED
        prompt = next(p for p in PROMPTS if p.prompt_id == trajectory.prompt_id)
        by_old = recomputed(old, list(prompt.token_ids), trajectory.token_ids)
        by_new = recomputed(new, list(prompt.token_ids), trajectory.token_ids)
        cut, written = first.end, np.array(trajectory.logprobs)
        np.testing.assert_allclose(written[:cut], by_old[:cut], atol=1e-3)
        np.testing.assert_allclose(written[cut:], by_new[cut:], atol=1e-3)
        assert np.abs(written[cut:] - by_old[cut:]).max() > 0.1
