"""Where a draft came from."""

from enum import IntEnum

PROMPT_BITS = 43
"""Of a key: the lower ones tell prompts apart (a million of them with one mistake in eighteen
tries), the other 20 runs.  Mistakes cost a rejected draft."""


def key_of(run_key: int, prompt_key: int) -> int:
    """What a store calls a prompt, so that no run drafts from the text of another on its fleet:
    they are not each other's business, and measurements must not help each other."""
    run, prompt = run_key % (1 << 63 - PROMPT_BITS), prompt_key % (1 << PROMPT_BITS)
    return run << PROMPT_BITS | prompt


class DraftClass(IntEnum):
    """Nearest relative first; the number is what `Drafts.classes` holds."""

    NONE = 0
    """Nothing was drafted."""
    SELF = 1
    """The request's own prompt and tokens."""
    SIBLING = 2
    """Another trajectory of its group."""
    HISTORY = 3
    """A trajectory of the same prompt, of another group."""
    OTHER = 4
    """A trajectory of another prompt."""
