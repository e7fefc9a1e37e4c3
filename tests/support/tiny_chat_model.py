"""A tiny Llama that writes readable sentences, with a byte-level tokenizer and a chat template.

It is trained for a few seconds on sentences of a small grammar.  Characters outside ASCII take two
to four tokens each, so that a request can be cut in the middle of one; sentences end with the
end-of-sequence token now and then, and hold strings worth stopping at.
"""

import random
from pathlib import Path

import torch

SUBJECTS = (
    "The cat",
    "A naïve café",
    "My señor",
    "日本語の本",
    "The rocket 🚀",
    "Zoë",
    "🙂🙂",
    "Big O(n²)",
)
VERBS = ("sees", "eats", "jumps over", "übersetzt", "→ finds", "likes")
OBJECTS = (
    "the fish",
    "a crème brûlée",
    "東京",
    "the 🌍",
    "nothing at all",
    "two ½ apples",
    "</answer>",
)
ENDS = (". ", "! ", "?\n", ".\n\n", " 🙂. ")

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING_STEPS = 250
"""About five seconds on one core; sentences are spelled right from about the 150th."""


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of the grammar."""
    draw = random.Random(seed)
    return [
        f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)}{draw.choice(ENDS)}"
        for _ in range(count)
    ]


def tiny_chat_model(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of 2 layers x 64 with tokenizer and chat template."""
    tokenizer = _write_tokenizer(folder)
    text = "".join(sentences(4000, seed))
    end = tokenizer.token_to_id("<|im_end|>")
    ids: list[int] = []
    for n, piece in enumerate(text.split("\n")):
        ids += tokenizer.encode(piece + "\n").ids + ([end] if n % 8 == 7 else [])
    _train(folder, torch.tensor(ids), tokenizer.get_vocab_size(), end, seed)
    return folder


def _write_tokenizer(folder: Path):  # type: ignore[no-untyped-def]
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain = [piece for piece in "".join(sentences(500, 1)).split(" ") if piece.isascii()]
    tokenizer.train_from_iterator(plain, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    return tokenizer


def _train(folder: Path, ids: torch.Tensor, vocabulary: int, end: int, seed: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=end,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TRAINING_STEPS)
    for _ in range(TRAINING_STEPS):
        starts = torch.randint(0, len(ids) - 65, (32,))
        batch = torch.stack([ids[start : start + 64] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
