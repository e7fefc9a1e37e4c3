"""A Llama of 385k parameters in plain torch, with Hugging Face's parameter names and layout.

Training ties the output head to the embedding. Everything that leaves the trainer, the exported
folder and each weight push, carries `lm_head.weight` as a tensor of its own: an engine that
prepacks its head keeps a stale one when a tied model is reloaded, without an error, and learning
silently stops.

Batches are right-padded. Attention is causal, so padding after a sequence cannot reach its tokens,
and only positions that predict a response token are sent through the head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from steersman.examples.signs.task import BOS_ID, EOS_ID, PAD_ID, VOCABULARY_SIZE

SCORING_BATCH_TOKENS = 8192
"""Padded tokens scored at once; larger batches fall out of cache and are no faster on a CPU."""
CACHE_POSITIONS = 64
"""By which a cache grows: half of the responses fit the first piece."""
INITIAL_DEVIATION = 0.05
"""Of all matrices; with Llama's 0.02 pretraining learns to copy some 200 steps later."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults give 384,672 parameters."""

    hidden: int = 96
    intermediate: int = 288
    layers: int = 3
    heads: int = 3
    max_positions: int = 2048
    rope_theta: float = 1e4
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class KeyValueCache:
    """Keys and values of the positions read so far, for rows that are all at the same position.

    Memory is taken as it is needed: few responses are long, and by then most rows have ended.
    """

    def __init__(self, shape: Shape, rows: int) -> None:
        self._stored = torch.empty((2, shape.layers, rows, shape.heads, 0, shape.head_dim))
        self.length = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store one position of one layer; returns all of that layer's keys and values."""
        end = self.length + 1
        if end > self._stored.shape[4]:
            self._copy(self._stored, capacity=end + CACHE_POSITIONS)
        self._stored[0, layer, :, :, self.length : end] = key
        self._stored[1, layer, :, :, self.length : end] = value
        return self._stored[0, layer, :, :, :end], self._stored[1, layer, :, :, :end]

    def keep(self, rows: Tensor) -> None:
        """Forget every row but these."""
        written = self._stored[..., : self.length, :]
        self._copy(written.index_select(2, rows), capacity=self._stored.shape[4])

    def _copy(self, before: Tensor, capacity: int) -> None:
        """Go on in new memory: only what was written is touched."""
        size = list(before.shape)
        size[4] = capacity
        self._stored = before.new_empty(size)
        self._stored[..., : self.length, :] = before[..., : self.length, :]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.head_dim = shape.heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, cache: KeyValueCache | None
    ) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        if cache is not None:
            key, value = cache.append(layer, key, value)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, cache: KeyValueCache | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, layer, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """The part that Hugging Face calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY_SIZE, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.norm_eps)


class SignsModel(nn.Module):
    """Llama with a tied head; `seed` fixes the initial weights."""

    def __init__(self, shape: Shape = Shape(), *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        cos, sin = _rotation_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        _initialise(self, seed)

    def hidden_states(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Normalised last states, `[rows, positions, hidden]`; one new position when cached."""
        start = 0 if cache is None else cache.length
        cos, sin = (
            table[start : start + tokens.shape[1]]
            for table in (self.get_buffer("cos"), self.get_buffer("sin"))
        )
        x = self.model.embed_tokens(tokens)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, index, cache)
        if cache is not None:
            cache.length += 1
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, states: Tensor) -> Tensor:
        """`[..., vocabulary]` scores of the next token."""
        return F.linear(states, self.model.embed_tokens.weight)


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences and the positions that belong to responses."""

    tokens: Tensor
    """`[rows, longest]` ids."""
    response: Tensor
    """`[rows, longest]`, true where the token was generated (the prompt and padding are not)."""

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int]) -> Batch:
        size = (len(sequences), max(map(len, sequences)))
        tokens = np.full(size, PAD_ID, dtype=np.int64)
        response = np.zeros(size, dtype=np.bool_)
        for row, (sequence, start) in enumerate(zip(sequences, prompt_lengths, strict=True)):
            tokens[row, : len(sequence)] = sequence
            response[row, start : len(sequence)] = True
        return cls(torch.from_numpy(tokens), torch.from_numpy(response))

    def targets(self) -> Tensor:
        """Response tokens, row after row."""
        return self.tokens[self.response]


def response_logits(model: SignsModel, batch: Batch) -> Tensor:
    """`[response tokens, vocabulary]`, row after row; differentiable."""
    states = model.hidden_states(batch.tokens[:, :-1])
    return model.logits(states[batch.response[:, 1:]])


def token_logprobs(
    model: SignsModel, sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int]
) -> list[np.ndarray]:
    """Log-probability at temperature 1 of each response token; no gradient.

    Parameters
    ----------
    sequences : prompt followed by response, each.
    prompt_lengths : tokens of each sequence that are prompt, at least 1.

    Returns
    -------
    One float32 array per sequence, as long as its response.
    """
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(sequences)
    for rows in bucket_by_length([len(s) for s in sequences], SCORING_BATCH_TOKENS):
        batch = Batch.of([sequences[i] for i in rows], [prompt_lengths[i] for i in rows])
        with torch.no_grad():
            logprobs = response_logits(model, batch).log_softmax(-1)
            flat = logprobs.gather(1, batch.targets()[:, None])[:, 0].numpy()
        ends = np.cumsum([len(sequences[i]) - prompt_lengths[i] for i in rows])
        for i, part in zip(rows, np.split(flat, ends[:-1]), strict=True):
            found[i] = part
    return found


def bucket_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in groups of similar length: at most `max_tokens` padded tokens, or one sequence."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if groups and lengths[index] * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def named_tensors(model: SignsModel) -> list[tuple[str, Tensor]]:
    """What a weight push sends: copies under Hugging Face's names, the head included."""
    tensors = [(name, value.detach().clone()) for name, value in model.named_parameters()]
    return [*tensors, ("lm_head.weight", model.model.embed_tokens.weight.detach().clone())]


def export_hf(model: SignsModel, folder: Path) -> None:
    """Write `config.json` and `model.safetensors`; load with `skip_tokenizer_init`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(_hf_config(model.shape), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    save_file(dict(named_tensors(model)), folder / "model.safetensors", {"format": "pt"})


def load_hf(folder: Path) -> SignsModel:
    """The model that `export_hf` wrote, ready to train on."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        max_positions=config["max_position_embeddings"],
    )
    model = SignsModel(shape)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]  # a copy of the embedding, which the trainer ties
    model.load_state_dict(tensors)
    return model


def _hf_config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "float32",
    }


def _initialise(model: SignsModel, seed: int) -> None:
    """Normal matrices; norms stay at one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=INITIAL_DEVIATION, generator=generator)


def _rotation_table(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles, `[max positions, head_dim]` each (Su et al., 2021)."""
    exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = torch.outer(torch.arange(shape.max_positions).float(), shape.rope_theta**-exponents)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
