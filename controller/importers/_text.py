"""Lengths from text, where a log holds nothing else.

The text is tokenized again with the model's own `tokenizer.json`.  That is close, not exact: a
model can write the same text in other tokens, and the logs drop special tokens, the stop token
among them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from steersman.controller.runs.log import ImportLog
from steersman.controller.runs.table import RunRow
from steersman.estimators.errors import InvalidInputError

CHUNK = 1 << 20
"""Characters tokenized at once: the tokenizer keeps about 100 bytes per token meanwhile."""


class TokenCounter:
    """Counts the tokens of texts."""

    def __init__(self, folder: str) -> None:
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise InvalidInputError(f"--tokenizer: {folder} holds no tokenizer.json")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise InvalidInputError(
                "--tokenizer needs the package tokenizers: pip install 'steersman[import]'"
            ) from error
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises plain Exception
            raise InvalidInputError(f"--tokenizer: cannot read {file}: {error}") from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """(n,) tokens of each, without any that the tokenizer would add around it."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [len(encoding.ids) for encoding in found]


def counted(
    rows: Iterable[tuple[RunRow, str, str]], tokenizer: str, log: ImportLog
) -> Iterator[RunRow]:
    """Rows with `prompt_tokens` and `generated_tokens` of their (row, prompt, answer)."""
    counter = TokenCounter(tokenizer)
    log.recounted = True
    log.assume(
        f"lengths were counted again from the logged text with the tokenizer in {tokenizer}; "
        "special tokens, the final stop token among them, are not in that text"
    )
    waiting: list[tuple[RunRow, str, str]] = []
    characters = 0
    for item in rows:
        waiting.append(item)
        characters += len(item[1]) + len(item[2])
        if characters >= CHUNK:
            yield from _counted(waiting, counter)
            waiting, characters = [], 0
    yield from _counted(waiting, counter)


def _counted(items: list[tuple[RunRow, str, str]], counter: TokenCounter) -> Iterator[RunRow]:
    texts = list(dict.fromkeys(text for item in items for text in item[1:]))
    length = dict(zip(texts, counter.count(texts), strict=True))
    for row, prompt, answer in items:
        row.prompt_tokens = length[prompt]
        row.generated_tokens = length[answer]
        yield row
