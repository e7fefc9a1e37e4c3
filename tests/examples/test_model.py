"""The export is what trained, and every way to score a token agrees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from steersman.examples.signs.model import (
    Batch,
    Shape,
    SignsModel,
    bucket_by_length,
    export_hf,
    load_hf,
    named_tensors,
    response_logits,
    token_logprobs,
)
from steersman.examples.signs.sampling import sample
from steersman.examples.signs.task import EOS_ID, make_evaluation_pool, prompt_tokens

SMALL = Shape(hidden=32, intermediate=48, layers=2, heads=2, max_positions=1024)
PROMPTS = [prompt_tokens(problem) for problem in make_evaluation_pool(12, seed=0)]


@pytest.fixture
def model() -> SignsModel:
    """Weights twice as large as at the start, so that a mistake anywhere changes the scores."""
    model = SignsModel(SMALL, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def test_the_default_network_has_the_promised_size() -> None:
    assert sum(p.numel() for p in SignsModel().parameters()) == 384_672


def test_the_export_has_hugging_faces_names_and_shapes(model: SignsModel, tmp_path: Path) -> None:
    export_hf(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (256, 32)
    assert tensors["model.embed_tokens.weight"].shape == (256, 32)
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (32, 32)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (32, 48)
    assert tensors["model.layers.0.post_attention_layernorm.weight"].shape == (32,)
    assert len(tensors) == 3 + 2 * 9
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is False


def test_a_push_sends_the_trained_head_as_a_tensor_of_its_own(model: SignsModel) -> None:
    before = dict(named_tensors(model))
    loss = response_logits(model, Batch.of([PROMPTS[0]], [1])).square().mean()
    torch.autograd.backward(loss)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    after = dict(named_tensors(model))
    assert not torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert torch.equal(after["lm_head.weight"], after["model.embed_tokens.weight"])
    assert after["lm_head.weight"].data_ptr() != after["model.embed_tokens.weight"].data_ptr()


def test_a_loaded_export_sends_the_same_tensors(model: SignsModel, tmp_path: Path) -> None:
    export_hf(model, tmp_path)
    sent, loaded = named_tensors(model), named_tensors(load_hf(tmp_path))
    on_disk = load_file(tmp_path / "model.safetensors")
    assert [name for name, _ in sent] == [name for name, _ in loaded]
    assert {name for name, _ in sent} == set(on_disk)
    for (name, one), (_, other) in zip(sent, loaded, strict=True):
        assert torch.equal(one, other), name
        assert torch.equal(one, on_disk[name]), name


def test_scores_equal_those_of_the_cached_sampler(model: SignsModel) -> None:
    answers = sample(model, PROMPTS, max_new_tokens=40, seed=3)
    sequences = [p + a.tokens for p, a in zip(PROMPTS, answers, strict=True)]
    scores = token_logprobs(model, sequences, [len(p) for p in PROMPTS])
    for answer, score in zip(answers, scores, strict=True):
        assert score.dtype == np.float32
        np.testing.assert_allclose(score, answer.logprobs, atol=1e-5)


def test_padding_does_not_change_a_score(model: SignsModel) -> None:
    sequences, starts = [PROMPTS[0], [*PROMPTS[1], *range(40, 90)]], [2, 3]
    together = token_logprobs(model, sequences, starts)
    for sequence, start, score in zip(sequences, starts, together, strict=True):
        alone = token_logprobs(model, [sequence], [start])[0]
        assert len(alone) == len(sequence) - start
        np.testing.assert_allclose(score, alone, atol=1e-5)


def test_forward_equals_hugging_faces_llama(model: SignsModel, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export_hf(model, tmp_path)
    reference = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 256, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = model.logits(model.hidden_states(tokens))
        torch.testing.assert_close(ours, reference(tokens).logits, atol=1e-4, rtol=1e-5)


def test_sampling_is_fixed_by_its_seed_and_marks_what_was_cut(model: SignsModel) -> None:
    answers = sample(model, PROMPTS, max_new_tokens=30, seed=5)
    assert answers == sample(model, PROMPTS, max_new_tokens=30, seed=5)
    assert answers != sample(model, PROMPTS, max_new_tokens=30, seed=6)
    for answer in answers:
        assert answer.finished == (answer.tokens[-1] == EOS_ID)
        assert answer.finished or len(answer.tokens) == 30
        assert EOS_ID not in answer.tokens[:-1]


def test_buckets_hold_every_sequence_once_and_respect_their_size() -> None:
    lengths = [5, 900, 7, 7, 30, 1, 12]
    buckets = bucket_by_length(lengths, max_tokens=40)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(7))
    assert all(len(b) == 1 or len(b) * max(lengths[i] for i in b) <= 40 for b in buckets)
