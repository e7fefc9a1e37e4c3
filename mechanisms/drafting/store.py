"""What the fleet of this host wrote, kept for drafting: one writer, any number of readers.

A document is what one trajectory wrote, after the tail of its prompt; `_kernel` says how it is
found again.  The store's memory is fixed when it is created.  When it is full, the least valuable
documents go:

    value = (FRESH + tokens accepted of its drafts / its tokens) * keep(weight updates since then)

`keep` is the measured acceptance of drafts of that age as a share of fresh ones' (readers report
it), so the store forgets old text as fast as the model really moves away from it.  Of equal value,
the oldest goes.  A `SLICE` of the store is freed at once, so that ranking costs little per append.
An append takes 0.2 us per token, eviction included.

Why our own: arctic-inference's suffix trees, which vLLM's `suffix` method uses, belong to one
engine, forget in order of arrival, and know neither prompts nor weight versions.  On 40 prompts of
the demo (the longest of 8 trajectories, from its 7 siblings and 8 of an earlier step, K = 8) they
get 2.29 tokens per verify accepted of 5.4 drafted, or 2.48 of 7.3 when let loose; this store gets
2.41 of 5.9, or 2.48 of 6.8.  At 1e6 tokens they append in 2.0 us per token and look up in 8 us,
with 284 MiB per engine for 41 per host.  vLLM's `ngram`, from the text itself, gets 0.67 of 2.1
(0.84 of 5.0 if a single token may match), and so does this one without a store: 0.66 of 1.7.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.drafting import _kernel
from steersman.mechanisms.drafting import _memory as memory
from steersman.mechanisms.drafting._memory import BLOCK, Arrays
from steersman.mechanisms.drafting.source import DraftClass

Ints32 = NDArray[np.int32]

FRESH = 0.25
"""Value per token of a document that nothing was drafted from yet."""
SLICE = 64
"""One part of so many is freed at once: a full store has at least 98 % of its blocks in use."""
KEEP_PER_UPDATE = 0.5
"""Share of the acceptance counts that a change of the weights leaves: the new ones may differ."""


@dataclass(frozen=True)
class StoreStats:
    """What a store holds, and what went through it."""

    documents: int
    tokens: int
    """Held, prompt tails included."""
    capacity_tokens: int
    """Room; half a block of `BLOCK` per document cannot be used."""
    bytes: int
    """Of shared memory, fixed."""
    appended_tokens: int
    evicted_tokens: int
    weight_version: int


class DraftStore:
    """The store of the module's docstring; `create` it or `attach` to it."""

    def __init__(self, name: str, mapping: mmap.mmap, arrays: Arrays, lock: int | None) -> None:
        self.name = name
        self.arrays = arrays
        self._bytes = len(mapping)
        self._lock = lock
        """Descriptor of the writer's locked file; None of a reader, and once closed."""
        blocks = len(arrays.blocks) if lock is not None else 0
        self._free_blocks = np.arange(blocks, dtype=np.int32)
        self._free_slots = np.arange(blocks, dtype=np.int32)
        self._free_block_count = self._free_slot_count = blocks
        """The first so many of each are free."""
        self._serial = 0

    @classmethod
    def create(cls, name: str, capacity_tokens: int) -> Self:
        """The writer's end; it owns the memory.

        Parameters
        ----------
        name : of the file in /dev/shm; letters, digits, `.`, `_` and `-`.
        capacity_tokens : rounded up to whole blocks; 43 to 55 bytes each.

        Raises
        ------
        InvalidInputError : the name or the capacity is not valid.
        FleetError : another writer has a store of this name, or shared memory is too small.
        """
        if not BLOCK <= capacity_tokens <= memory.LARGEST_CAPACITY:
            raise InvalidInputError(
                f"a draft store of {capacity_tokens} tokens; "
                f"valid: {BLOCK} to {memory.LARGEST_CAPACITY}"
            )
        blocks = -(-capacity_tokens // BLOCK)
        lock, mapping, arrays = memory.create_mapping(name, blocks)
        return cls(name, mapping, arrays, lock)

    @classmethod
    def attach(cls, name: str) -> Self:
        """A reader's end.

        Raises
        ------
        InvalidInputError : the name is not valid.
        FleetError : there is no such store on this host.
        """
        mapping, arrays = memory.map_existing(name)
        return cls(name, mapping, arrays, None)

    def append(
        self, prompt_key: int, group_id: int, weight_version: int, prompt: Ints32, tokens: Ints32
    ) -> None:
        """Store what one trajectory wrote.

        Parameters
        ----------
        prompt_key : of its prompt and run (`source.key_of`); 0: unknown, it serves as text of
            another prompt only.
        group_id : of its group; below 0: unknown.
        weight_version : that wrote it.
        prompt : what stood before `tokens`; its tail is the context of the first of them.
        tokens : fewer than 1 are not stored; of more than the store holds, the last are.

        Raises
        ------
        InvalidInputError : this is not the writer's end, or a token is negative.
        """
        self._writing()
        context = np.asarray(prompt, np.int32)[max(len(prompt) - max(_kernel.NGRAM), 0) :]
        text = np.concatenate((context, np.asarray(tokens, np.int32)))
        dropped = max(len(text) - len(self.arrays.tokens), 0)
        text = text[dropped:]
        if len(tokens) == 0 or len(text) < 2:
            return
        if text.min() < 0:
            raise InvalidInputError(f"token {text.min()} in a draft store; valid: 0 or above")
        blocks = -(-len(text) // BLOCK)
        if blocks > self._free_block_count:
            self._evict(max(blocks, len(self.arrays.blocks) // SLICE))
        self._free_slot_count -= 1
        slot, self._serial = int(self._free_slots[self._free_slot_count]), self._serial + 1
        before = max(len(context) - dropped, 0)
        self._describe(slot, prompt_key, group_id, weight_version, len(text), before)
        _kernel.insert(self.arrays, self._free_blocks[: self._free_block_count], slot, text)
        self._free_block_count -= blocks

    def advance(self, weight_version: int) -> None:
        """The trainer's weights are now of this version."""
        self._writing()
        if weight_version != self.arrays.header[memory.VERSION]:
            self.arrays.header[memory.VERSION] = weight_version
            self.arrays.feedback[:] *= KEEP_PER_UPDATE

    def stats(self) -> StoreStats:
        """Counts as of now."""
        header = self.arrays.header.tolist()
        return StoreStats(
            documents=header[memory.DOCUMENTS],
            tokens=header[memory.TOKENS],
            capacity_tokens=len(self.arrays.tokens),
            bytes=self._bytes,
            appended_tokens=header[memory.APPENDED],
            evicted_tokens=header[memory.EVICTED],
            weight_version=header[memory.VERSION],
        )

    @property
    def path(self) -> Path:
        """Of its file."""
        return memory.path_of(self.name)

    def close(self) -> None:
        """Let go of the memory; the writer removes the store. Drafters keep what they mapped."""
        if self._lock is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None
        self.arrays = memory.private_arrays()  # the mapping goes with its last view

    def _writing(self) -> None:
        if self._lock is None:
            raise InvalidInputError(
                f"this end of the draft store {self.name!r} only reads, or is closed"
            )

    def _describe(
        self, slot: int, prompt_key: int, group_id: int, version: int, tokens: int, context: int
    ) -> None:
        self.arrays.documents[slot] = (
            prompt_key,
            group_id,
            version,
            self._serial,
            tokens,
            context,
            memory.NONE,
            0.0,
        )

    def _evict(self, blocks: int) -> None:
        """Free at least so many blocks, the least valuable documents' first."""
        used = self._by_value()
        tokens = self.arrays.documents["tokens"][used]
        room = self._free_block_count + np.cumsum(-(-tokens // BLOCK))
        gone = int(np.searchsorted(room, blocks)) + 1
        text = np.empty(int(tokens[:gone].max()), np.int32)
        for slot in used[:gone].tolist():
            freed = self._free_blocks[self._free_block_count :]
            self._free_block_count += _kernel.remove(self.arrays, slot, text, freed)
            self._free_slots[self._free_slot_count] = slot
            self._free_slot_count += 1

    def _by_value(self) -> NDArray[np.int64]:
        """Slots of all documents, the least valuable first."""
        documents = self.arrays.documents
        used = np.flatnonzero(documents["serial"])
        d = documents[used]
        ages = np.searchsorted(
            _kernel.AGE_BOUNDS, self.arrays.header[memory.VERSION] - d["version"]
        )
        kept = _kept_by_age(self.arrays.feedback)[ages]
        value = (FRESH + d["accepted"] / d["tokens"]) * kept
        return np.asarray(used[np.lexsort((d["serial"], value))])


def _kept_by_age(feedback: NDArray[np.float64]) -> NDArray[np.float64]:
    """(AGES,) accepted over promised tokens by age, as a share of fresh ones'; never rises."""
    promised, accepted = feedback[DraftClass.SIBLING :].sum(axis=0).T
    prior, keep = _kernel.PRIOR_TRIES, _kernel.PRIOR_KEEP
    fresh = (accepted.sum() + prior) / (promised @ keep + prior)
    ratio = (accepted + prior * fresh * keep) / (promised + prior)
    return np.asarray(np.minimum.accumulate(ratio) / ratio[0])
