"""Pushing weights to real engines, with requests in flight."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.models import random_llama
from engine.test_attempts import GREEDY, end_of, ended, first, request, written

from steersman.estimators.errors import InvalidInputError, WeightMismatchError
from steersman.mechanisms.fleet import EndReason, LogprobProbe
from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROBE = [5, 6, 7, 30, 31, 50, 2, 9]


def load(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder)


def probe(model: Any) -> LogprobProbe:
    """The trainer's own log-probabilities of the probe sequence."""
    with torch.no_grad():
        logits = model(torch.tensor([PROBE])).logits[0, :-1].log_softmax(-1)
    chosen = logits.gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0]
    return LogprobProbe(PROBE, chosen.tolist())


def tensors(model: Any) -> list[tuple[str, Any]]:
    return list(model.state_dict().items())


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("other-model"), seed=1)


@contextlib.asynccontextmanager
async def restored(fleet: RayVllmFleet, folder: Path) -> AsyncIterator[int]:
    """The version of the present weights; afterwards the fleet runs those of `folder` again."""
    version = fleet.stats(first(fleet)).weight_version
    try:
        yield version
    finally:
        model = load(folder)
        await fleet.update_weights(tensors(model), version + 10, [probe(model)])


async def test_requests_in_flight_go_on_with_the_new_weights(
    fleet: RayVllmFleet, fleet_model: Path, other_model: Path
) -> None:
    async with restored(fleet, fleet_model) as version:
        replica, prompt = first(fleet), [5, 6, 7]
        undisturbed = fleet.start(replica, request(prompt, 900, GREEDY))
        await ended(undisturbed)
        preemptions = fleet.stats(replica).preemptions
        attempts = [fleet.start(replica, request(prompt, 900, GREEDY)) for _ in range(3)]
        await written(attempts[0], 30)
        new = load(other_model)
        await fleet.update_weights(tensors(new), version + 1, [probe(new)])
        await ended(*attempts)
        end = end_of(attempts[0])
        assert end.reason is EndReason.LENGTH
        assert [span.weight_version for span in end.spans] == [version, version + 1]
        cut = end.spans[0].end
        assert 30 <= cut < 900 == end.spans[1].end
        assert end.tokens[:cut] == end_of(undisturbed).tokens[:cut]
        fresh = fleet.start(replica, request(prompt + end.tokens[:cut], 900 - cut, GREEDY))
        await ended(fresh)
        assert end_of(fresh).tokens == end.tokens[cut:]
        assert end_of(fresh).spans[0].weight_version == version + 1
        stats = fleet.stats(replica)
        assert stats.weight_version == version + 1
        assert stats.preemptions == preemptions  # holding for a push is no lack of memory


async def test_scores_are_the_trainers(fleet: RayVllmFleet, fleet_model: Path) -> None:
    expected = probe(load(fleet_model))
    for info in fleet.replicas:
        if fleet.is_alive(info.name):
            scores = await fleet.score(info.name, PROBE)
            np.testing.assert_allclose(scores, expected.logprobs, atol=1e-3)


async def test_a_stale_output_head_is_caught(
    fleet: RayVllmFleet, fleet_model: Path, other_model: Path
) -> None:
    async with restored(fleet, fleet_model) as version:
        new = load(other_model)
        without_head = [(n, t) for n, t in tensors(new) if n != "lm_head.weight"]
        with pytest.raises(WeightMismatchError, match=rf"replica-\d.*version {version + 1}: "):
            await fleet.update_weights(without_head, version + 1, [probe(new)])


async def test_a_small_difference_in_one_layer_is_caught(
    fleet: RayVllmFleet, fleet_model: Path
) -> None:
    async with restored(fleet, fleet_model) as version:
        model = load(fleet_model)
        expected = probe(model)
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
        with pytest.raises(WeightMismatchError):
            await fleet.update_weights(tensors(model), version + 1, [expected])


async def test_a_probe_longer_than_the_model_is_refused(fleet: RayVllmFleet) -> None:
    long = LogprobProbe([5] * 3000, [0.0] * 2999)
    with pytest.raises(InvalidInputError, match="probe 0 has 3000 tokens; valid: 2 to 2047"):
        await fleet.update_weights([], 1, [long])
