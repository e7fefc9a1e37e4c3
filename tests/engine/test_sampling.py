"""What the study of prompt policies samples in process is distributed as what an engine writes."""

from pathlib import Path

import numpy as np
import pytest
from support.statistics import bigram_permutation, kolmogorov_smirnov

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.examples.signs.model import Shape, SignsModel, export_hf, token_logprobs
from steersman.examples.signs.sampling import sample
from steersman.examples.signs.task import EOS_ID, VOCABULARY_SIZE, make_pool, prompt_tokens
from steersman.mechanisms.fleet import Sampling
from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

CAP, SAMPLES = 48, 8


def talkative() -> SignsModel:
    """Random weights whose answers vary, and sometimes end before the cap."""
    model = SignsModel(Shape(hidden=64, intermediate=96, layers=2, heads=2), seed=1)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data *= 8.0
    return model


async def test_engine_and_in_process_sampler_agree(tmp_path: Path) -> None:
    model = talkative()
    export_hf(model, tmp_path / "model")
    prompts = [prompt_tokens(problem) for problem in make_pool(24, 0.5, seed=0)]
    engine = EngineOptions(dtype="float32", max_model_len=256, max_num_seqs=64)
    fleet = await RayVllmFleet.launch(tmp_path / "model", replicas=1, engine=engine)
    try:
        async with RolloutSession(
            fleet, Controller.from_config(load_config(None, [], environ={}))
        ) as session:
            groups = await session.rollout(
                [Prompt(f"p{i}", tokens) for i, tokens in enumerate(prompts)],
                SAMPLES,
                max_new_tokens=CAP,
                sampling=Sampling(stop_token_ids=(EOS_ID,), seed=0),
            )
    finally:
        await fleet.close()
    by_prompt = {group.prompt_id: group.trajectories for group in groups}
    written = [t for i in range(len(prompts)) for t in by_prompt[f"p{i}"]]
    asked = [prompt for prompt in prompts for _ in range(SAMPLES)]
    drawn = sample(model, asked, max_new_tokens=CAP, seed=0)

    ours = token_logprobs(
        model,
        [prompt + t.token_ids for prompt, t in zip(asked, written, strict=True)],
        [len(prompt) for prompt in asked],
    )
    theirs = np.concatenate([np.array(t.logprobs) for t in written])
    assert np.abs(np.concatenate(ours) - theirs).max() < 1e-3

    engine_lengths = [len(t.token_ids) for t in written]
    own_lengths = [len(answer.tokens) for answer in drawn]
    assert 0.05 < np.mean([answer.finished for answer in drawn]) < 0.95
    assert kolmogorov_smirnov(engine_lengths, own_lengths) > 1e-3
    sides = [t.token_ids for t in written], [answer.tokens for answer in drawn]
    assert bigram_permutation(*sides, VOCABULARY_SIZE) > 1e-3
