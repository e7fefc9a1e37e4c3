"""Random Llama models in Hugging Face's layout, for real engines."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY, HIDDEN, HEADS, FEED_FORWARD, LAYERS = 64, 64, 2, 128, 2
SPREAD = 0.3
"""Standard deviation of the weights: at the usual 0.02 greedy output is one token for ever."""


def random_tensors(seed: int) -> list[tuple[str, torch.Tensor]]:
    """Named weights, output head included."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * SPREAD

    tensors = [
        ("model.embed_tokens.weight", normal(VOCABULARY, HIDDEN)),
        ("lm_head.weight", normal(VOCABULARY, HIDDEN)),
        ("model.norm.weight", torch.ones(HIDDEN)),
    ]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors += [
            (prefix + f"self_attn.{name}_proj.weight", normal(HIDDEN, HIDDEN)) for name in "qkvo"
        ]
        tensors += [
            (prefix + "mlp.gate_proj.weight", normal(FEED_FORWARD, HIDDEN)),
            (prefix + "mlp.up_proj.weight", normal(FEED_FORWARD, HIDDEN)),
            (prefix + "mlp.down_proj.weight", normal(HIDDEN, FEED_FORWARD)),
            (prefix + "input_layernorm.weight", torch.ones(HIDDEN)),
            (prefix + "post_attention_layernorm.weight", torch.ones(HIDDEN)),
        ]
    return tensors


def write_model(folder: Path, seed: int) -> Path:
    """A model folder that vLLM and Hugging Face load."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(random_tensors(seed)), folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
