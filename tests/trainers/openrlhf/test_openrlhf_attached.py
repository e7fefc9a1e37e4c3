"""OpenRLHF 0.11.2's own engine actors and executor, real engines, steered by the agent file."""

import time
from pathlib import Path
from typing import Any

import pytest
import ray
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams

from steersman.controller.attach.environment import environment_findings
from steersman.controller.attach.findings import State
from steersman.controller.attach.trainers import OPENRLHF
from steersman.controller.sidecar.openrlhf.coordinator import NAME

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.timeout(500),
    pytest.mark.filterwarnings("ignore"),  # OpenRLHF's and Ray's own
]

PROMPTS = [f"w{3 + number} w{40 - number} w7" for number in range(8)]
SAMPLES, TOKENS = 4, 400
PARAMS = SamplingParams(
    temperature=0.0,
    max_tokens=TOKENS,
    min_tokens=1,
    ignore_eos=True,
    logprobs=1,
    skip_special_tokens=False,
)
"""As `SamplesGenerator` makes them, but greedy, so that what is moved can be compared."""


def rollout(engine: Any, prompts: list[str], tokenizer: Any) -> list[Any]:
    """As `SamplesGenerator` dispatches them."""
    refs = [
        engine.generate_responses.remote(
            prompt=prompt,
            label="",
            sampling_params=PARAMS,
            max_length=1024,
            hf_tokenizer=tokenizer,
            num_samples=SAMPLES,
        )
        for prompt in prompts
    ]
    return [sample for samples in ray.get(refs, timeout=300) for sample in samples]


def test_every_place_that_it_is_attached_by_is_in_its_source() -> None:
    version, hooks, ours = environment_findings(OPENRLHF, "")
    assert [hooks.state, ours.state] == [State.OK] * 2, hooks.words
    assert "openrlhf 0.11.2" in version.words


def test_samples_of_one_engine_are_moved_to_another_and_come_back_whole(
    engines: list[Any], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    rollout(engines[1], PROMPTS[:1], tokenizer)  # both engines make themselves known
    rollout(engines[0], PROMPTS[:1], tokenizer)
    started_s = time.perf_counter()
    responses = rollout(engines[0], PROMPTS, tokenizer)
    seconds = time.perf_counter() - started_s

    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    plain = ray.get([engines[0].generate.remote(ids, PARAMS) for ids in prompts], timeout=300)
    assert len(responses) == len(PROMPTS) * SAMPLES
    for number, response in enumerate(responses):
        ids, output = prompts[number // SAMPLES], plain[number // SAMPLES].outputs[0]
        assert response["observation_tokens"] == ids + list(output.token_ids)
        assert response["action_ranges"] == [(len(ids), len(ids) + TOKENS)]
        expected = [
            entry[t].logprob for t, entry in zip(output.token_ids, output.logprobs, strict=True)
        ]
        assert response["rollout_log_probs"][len(ids) :] == pytest.approx(expected, abs=1e-3)
        assert response["truncated"]

    counts = ray.get(ray.get_actor(NAME).counts.remote())
    assert counts == {"open": 0, "set_free": 0, "engines": 2}
    logs = [response["extra_logs"] for response in responses]
    moved = sum(log["steersman_moves"] > 0 for log in logs)
    assert [log["steersman_weight"] for log in logs] == [1.0] * len(logs)
    assert [log["steersman_whole"] for log in logs] == [1.0] * len(logs)
    assert moved >= len(responses) // 4
    with capsys.disabled():
        print(  # noqa: T201
            f"\nOpenRLHF: {len(responses)} samples of {TOKENS} tokens given to one of two engines, "
            f"{moved} moved in mid-stream, all as without us, {seconds:.1f} s"
        )


def test_without_the_coordinator_samples_stay_where_openrlhf_put_them(
    engines: list[Any], model: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    ray.kill(ray.get_actor(NAME))
    responses = rollout(engines[0], PROMPTS[:2], tokenizer)
    assert [len(r["observation_tokens"]) for r in responses] == [3 + TOKENS] * (2 * SAMPLES)
    assert [r["extra_logs"]["steersman_moves"] for r in responses] == [0.0] * (2 * SAMPLES)
