"""The actor that keeps the draft store of one machine, and what it is told.

A store lies in the shared memory of a machine, so each machine with replicas that may draft has one
keeper.  One that ends removes its file.  One that is killed cannot, and Ray kills actors; a shell
that waits for the keeper's death removes the file then.
"""

import os
import subprocess
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman.mechanisms.drafting.source import key_of
from steersman.mechanisms.drafting.store import DraftStore, StoreStats
from steersman.mechanisms.fleet import Attempt

CONTEXT_TOKENS = 32
"""Tokens before an attempt's own that are told with it: more than any context that is looked up."""
REMOVE_WHEN_ORPHANED = 'exec 3<&0; { read -r _ <&3; rm -f -- "$0"; } >/dev/null 2>&1 &'
"""Waits for the end of its input.  In the background of a shell that ends at once, so it is no
child of the keeper: Ray kills those with it."""


@dataclass(frozen=True)
class Documents:
    """What attempts wrote, all in arrays; see `DraftStore.append` for what each is."""

    prompt_keys: NDArray[np.int64]
    group_ids: NDArray[np.int64]
    weight_versions: NDArray[np.int64]
    contexts: NDArray[np.int64]
    """(n,) tokens of each that stood before its own."""
    counts: NDArray[np.int64]
    """(n,) tokens of each, with those."""
    tokens: NDArray[np.int32]


class DraftHost:
    """The actor that keeps one machine's store."""

    def __init__(self, name: str, capacity_tokens: int) -> None:
        self._name, self._capacity_tokens = name, capacity_tokens
        self._opened: tuple[DraftStore, int] | None = None

    def store(self) -> str:
        """Name of the store, for `DraftStore.attach` on this machine; creates it at first.

        Not in the constructor, whose errors Ray wraps beyond recognition.
        """
        self._store()
        return self._name

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def append(self, documents: Documents) -> None:
        """Store what attempts wrote."""
        d = documents
        start = 0
        for i, (context, count) in enumerate(zip(d.contexts, d.counts, strict=True)):
            text = d.tokens[start : start + count]
            start += count
            self._store().append(
                int(d.prompt_keys[i]),
                int(d.group_ids[i]),
                int(d.weight_versions[i]),
                text[:context],
                text[context:],
            )

    def advance(self, weight_version: int) -> None:
        """The trainer's weights are of this version now."""
        self._store().advance(weight_version)

    def stats(self) -> StoreStats:
        """What the store holds."""
        return self._store().stats()

    def close(self) -> None:
        """Remove the store; engines keep what they see of it."""
        if self._opened is not None:
            store, guard = self._opened
            store.close()
            os.close(guard)
            self._opened = None

    def _store(self) -> DraftStore:
        if self._opened is None:
            store = DraftStore.create(self._name, self._capacity_tokens)
            self._opened = store, _remove_when_orphaned(store.path)
        return self._opened[0]


def _remove_when_orphaned(path: Path) -> int:
    """Have the file removed when this process ends; answers a descriptor that must stay open."""
    ours, its = os.pipe()
    subprocess.run(
        ["/bin/sh", "-c", REMOVE_WHEN_ORPHANED, str(path)],
        stdin=ours,
        check=True,
        # Neither Ctrl-C nor a kill of the keeper's group reaches it.
        start_new_session=True,
    )
    os.close(ours)
    return its


def pack(attempts: list[Attempt]) -> Documents:
    """What ended attempts wrote, each with the tail of what stood before it."""
    contexts = [attempt.request.token_ids[-CONTEXT_TOKENS:] for attempt in attempts]
    written = [attempt.end.tokens if attempt.end else [] for attempt in attempts]
    spans = [attempt.end.spans if attempt.end else [] for attempt in attempts]
    counts = [len(c) + len(w) for c, w in zip(contexts, written, strict=True)]
    texts = chain.from_iterable(chain.from_iterable(zip(contexts, written, strict=True)))
    return Documents(
        prompt_keys=_column([key_of(a.request.run_key, a.request.prompt_key) for a in attempts]),
        group_ids=_column([attempt.request.group_id for attempt in attempts]),
        # What wrote its end: as a rule all of it, and the store knows one version per text.
        weight_versions=_column([s[-1].weight_version if s else 0 for s in spans]),
        contexts=_column([len(context) for context in contexts]),
        counts=_column(counts),
        tokens=np.fromiter(texts, np.int32, sum(counts)),
    )


def _column(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
