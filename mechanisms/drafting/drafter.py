"""One engine's drafter: what may come next in each request, judging by what was written before.

`_kernel` holds the algorithm.  Acceptance is measured by class and by how many weight updates ago
the text was written, and lies in the store, so that what one engine learns serves all of the host.
Drafts never change what is written: the verifier keeps of them what the model itself would write.

A lookup at 1e6 stored tokens takes 8 to 13 us for one row (6 of them the call) and 2 to 6 us per
row of 8 or more, 16 tokens wanted (one core; `tests/benchmarks/test_draft_store.py`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.drafting import _kernel
from steersman.mechanisms.drafting import _memory as memory
from steersman.mechanisms.drafting.store import DraftStore

Ints = NDArray[np.int64]

LEAST_CHANCE = 0.1
"""A token is drafted while the chance that it and all before it are accepted is at least this."""
MEMORY_TRIES = 4000.0
"""Tried tokens of a class after which 63 % of its acceptance counts is forgotten."""
LARGEST_VOCABULARY = 1 << 31


@dataclass(frozen=True)
class Drafts:
    """One draft per row."""

    tokens: NDArray[np.int32]
    """(rows, max_draft_tokens); of row i the first `counts[i]` are drafted, the rest undefined."""
    counts: Ints
    classes: NDArray[np.uint8]
    """`DraftClass`: of the heaviest source that has the whole draft."""
    tickets: Ints
    """What `Drafter.verified` wants to know of it; opaque."""


class Drafter:
    """Proposes from a store and from the requests' own tokens.

    Parameters
    ----------
    store : None: from the requests' own tokens only.
    max_draft_tokens : most tokens of a draft.
    vocabulary_size : tokens at or above it are never drafted, whatever a torn read brings.
    least_chance : see `LEAST_CHANCE`; 0 drafts as far as any source goes.
    """

    def __init__(
        self,
        store: DraftStore | None,
        max_draft_tokens: int,
        *,
        vocabulary_size: int = LARGEST_VOCABULARY,
        least_chance: float = LEAST_CHANCE,
    ) -> None:
        if max_draft_tokens < 1:
            raise InvalidInputError(f"max_draft_tokens is {max_draft_tokens}; valid: 1 or more")
        if not 0 <= least_chance <= 1:
            raise InvalidInputError(f"least_chance is {least_chance}; valid: 0 to 1")
        self.max_draft_tokens = max_draft_tokens
        self._arrays = memory.private_arrays() if store is None else store.arrays
        self._vocabulary = vocabulary_size
        self._least_chance = least_chance
        self._keep = float(np.exp(-1.0 / MEMORY_TRIES))
        self._scratch = _kernel.scratch()
        one = np.ones(1, np.int64)
        self.propose(np.zeros((1, 1), np.int32), one, one, one, one)  # compiles now, not later
        self.verified(np.zeros(1, np.uint8), one, one)

    def propose(
        self,
        token_ids: NDArray[np.int32],
        lengths: Ints,
        prompt_keys: Ints,
        group_ids: Ints,
        wanted: Ints,
    ) -> Drafts:
        """A draft for each row.

        Parameters
        ----------
        token_ids : (rows, width) prompt and tokens so far of each request, C-contiguous or copied.
        lengths : (rows,) how many of them.
        prompt_keys : (rows,) 0: unknown.
        group_ids : (rows,) below 0: unknown.
        wanted : (rows,) most tokens to draft; 0: none.

        Raises
        ------
        InvalidInputError : the arrays are not of the same number of rows.
        """
        rows = len(lengths)
        if not rows == len(token_ids) == len(prompt_keys) == len(group_ids) == len(wanted):
            raise InvalidInputError("lengths, keys, groups and wanted need one number per row")
        drafts = Drafts(
            np.empty((rows, self.max_draft_tokens), np.int32),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.uint8),
            np.zeros(rows, np.int64),
        )
        _kernel.propose(
            self._arrays,
            *self._scratch,
            np.ascontiguousarray(token_ids, np.int32),
            np.ascontiguousarray(lengths, np.int64),
            np.ascontiguousarray(prompt_keys, np.int64),
            np.ascontiguousarray(group_ids, np.int64),
            np.ascontiguousarray(wanted, np.int64),
            self._vocabulary,
            self._least_chance,
            drafts.tokens,
            drafts.counts,
            drafts.classes,
            drafts.tickets,
        )
        return drafts

    def verified(
        self,
        classes: NDArray[np.uint8],
        drafted: Ints,
        accepted: Ints,
        tickets: Ints | None = None,
    ) -> None:
        """Learn what the verifier kept of drafts, in any order.

        Parameters
        ----------
        classes : (n,) as proposed.
        drafted, accepted : (n,) tokens verified, and how many of them were kept.
        tickets : (n,) as proposed.  Without them no document is credited, all count as written by
            the present weights, and as if their sources had been unanimous.
        """
        if tickets is None:
            tickets = np.full(len(classes), _kernel.UNKNOWN, np.int64)
        _kernel.learn(
            self._arrays,
            np.ascontiguousarray(classes, np.uint8),
            np.ascontiguousarray(drafted, np.int64),
            np.ascontiguousarray(accepted, np.int64),
            np.ascontiguousarray(tickets, np.int64),
            self._keep,
        )
