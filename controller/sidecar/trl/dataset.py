"""A trainer's data set as a pool of prompts: names, token ids, columns for the reward functions.

A prompt is a list of messages or a text.  Its name is the column `prompt_id` if there is one, else
a digest of its content, so that what is known of it survives another order of the data set.  Token
ids are computed when a prompt is first rolled out, as TRL does it: messages by the chat template.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from steersman.estimators.errors import InvalidInputError

NOT_FOR_REWARDS = frozenset({"prompt", "completion", "completion_ids"})
"""Columns that TRL does not hand on to reward functions: it has values of its own for them."""


class Tokenizer(Protocol):
    """What is needed of TRL's `processing_class`."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Token ids of messages."""

    def decode(self, token_ids: Sequence[int], **options: Any) -> Any:
        """Their text."""

    def __call__(self, text: str) -> Any:
        """Token ids of a text, as `input_ids`."""


class PromptData:
    """Rows by the names of their prompts."""

    def __init__(
        self,
        dataset: Any,
        tokenizer: Tokenizer,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InvalidInputError(
                "the data set cannot be indexed (an IterableDataset?), so no prompt policy can "
                "choose from it; valid: a datasets.Dataset or a list of rows"
            )
        self._dataset, self._tokenizer = dataset, tokenizer
        self._template = dict(chat_template_kwargs or {})
        self._place: dict[str, int] = {}
        self._tokens: dict[str, list[int]] = {}
        for place, row in enumerate(dataset):
            if "prompt" not in row:
                raise InvalidInputError(f'row {place} of the data set has no column "prompt"')
            self._place.setdefault(_name(row, self._place), place)
        if not self._place:
            raise InvalidInputError("the data set has no rows")

    @property
    def prompt_ids(self) -> list[str]:
        """In the data set's order."""
        return list(self._place)

    def row(self, prompt_id: str) -> dict[str, Any]:
        """Its columns."""
        return dict(self._dataset[self._place[prompt_id]])

    def tokens(self, prompt_id: str) -> list[int]:
        """As the engines get it."""
        known = self._tokens.get(prompt_id)
        if known is None:
            prompt = self.row(prompt_id)["prompt"]
            known = self._tokens[prompt_id] = tokens_of(prompt, self._tokenizer, self._template)
        return known

    def answer(self, prompt_id: str, tokens: Sequence[int]) -> Any:
        """What was written, in the form of the prompt: messages, or a text."""
        if isinstance(self.row(prompt_id)["prompt"], str):
            return self._tokenizer.decode(tokens, skip_special_tokens=True)
        return [_message(self._tokenizer, tokens, self.tokens(prompt_id))]


def tokens_of(prompt: Any, tokenizer: Tokenizer, template: Mapping[str, Any]) -> list[int]:
    """Token ids of messages or of a text."""
    if isinstance(prompt, str):
        return [int(token) for token in tokenizer(prompt)["input_ids"]]
    told = tokenizer.apply_chat_template(
        prompt, return_dict=False, add_generation_prompt=True, **template
    )
    return [int(token) for token in told]


def _name(row: Mapping[str, Any], taken: Mapping[str, int]) -> str:
    told = row.get("prompt_id")
    if told is not None:
        if str(told) in taken:
            raise InvalidInputError(f"prompt_id {str(told)!r} is in the data set twice")
        return str(told)
    # the other columns too: one text may stand for several problems
    content = msgspec.json.encode(dict(row), enc_hook=str)
    return blake2b(content, digest_size=12).hexdigest()


def _message(tokenizer: Tokenizer, tokens: Sequence[int], prefix: Sequence[int]) -> dict[str, Any]:
    """The assistant's message, parsed as TRL parses it where the tokenizer knows how."""
    if getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None):
        from trl.chat_template_utils import parse_response

        parsed: dict[str, Any] = parse_response(tokenizer, list(tokens), prefix=list(prefix))
        return parsed
    return {"role": "assistant", "content": tokenizer.decode(tokens, skip_special_tokens=True)}
