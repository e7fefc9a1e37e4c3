"""The draft store at its promised size: a lookup takes 20 us at most, and memory never grows.

The text is made up: each of 128 prompts has phrases, its trajectories string them together and err
now and then, so that contexts recur within a prompt and chains are long.  CPU time of this process
on one core, the median call.
"""

import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.mechanisms.drafting.drafter import Drafter
from steersman.mechanisms.drafting.store import DraftStore

STORED_TOKENS, APPENDED_TOKENS = 1_000_000, 10_000_000
LOOKUP_LIMIT_US = 20.0
APPEND_LIMIT_US = 1.0
"""Per token; a fleet of 100 replicas writes about 1e5 tokens a second."""
UPDATES = 100
PROMPTS, GROUP, LENGTH = 128, 8, 500
DRAFT_TOKENS = 16

pytestmark = pytest.mark.benchmark


@dataclass
class Writer:
    """Writes the text of the module's docstring."""

    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.phrases = self.rng.integers(0, 150_000, (PROMPTS, 40, 12)).astype(np.int32)

    def trajectory(self, prompt: int) -> NDArray[np.int32]:
        chosen = self.phrases[prompt, self.rng.integers(0, 40, LENGTH // 12 + 1)].ravel()[:LENGTH]
        slips = self.rng.random(LENGTH) < 0.03
        return np.where(slips, self.rng.integers(0, 150_000, LENGTH), chosen).astype(np.int32)


def fill(store: DraftStore, writer: Writer, tokens: int, version: int = 0) -> None:
    for i in range(tokens // LENGTH):
        prompt = i // GROUP % PROMPTS
        text = writer.trajectory(prompt)
        store.append(1 + prompt, i // GROUP, version, text[:0], text)


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[DraftStore, Writer]]:
    store = DraftStore.create(f"benchmark-{os.getpid()}", STORED_TOKENS + STORED_TOKENS // 20)
    writer = Writer(np.random.default_rng(0))
    fill(store, writer, STORED_TOKENS)
    yield store, writer
    store.close()


def lookup_us(store: DraftStore, writer: Writer, rows: int, length: int) -> tuple[float, float]:
    """Microseconds per row of a whole `propose`, and tokens drafted per row."""
    drafter = Drafter(store, DRAFT_TOKENS)
    width, calls = length + 64, 200
    text = np.zeros((rows, width), np.int32)
    prompts = writer.rng.integers(0, PROMPTS, rows)
    for row, prompt in enumerate(prompts):
        text[row] = np.resize(writer.trajectory(prompt), width)
    groups = np.full(rows, 10**6, np.int64)  # nobody's siblings: history
    took, drafted = [], 0
    for call in range(calls):
        lengths = np.full(rows, length + call % 64, np.int64)
        wanted = np.full(rows, DRAFT_TOKENS)
        started = time.thread_time_ns()
        drafts = drafter.propose(text, lengths, 1 + prompts, groups, wanted)
        took.append((time.thread_time_ns() - started) / 1e3 / rows)
        drafted += int(drafts.counts.sum())
    return statistics.median(took), drafted / rows / calls


@pytest.mark.parametrize(("rows", "length"), [(1, 400), (8, 400), (64, 400), (256, 400), (8, 8000)])
def test_a_lookup_is_fast_enough(
    full: tuple[DraftStore, Writer], rows: int, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store, writer = full
    assert store.stats().tokens >= STORED_TOKENS
    took_us, drafted = lookup_us(store, writer, rows, length)
    with capsys.disabled():
        sys.stdout.write(f"\n{rows} rows of {length}: {took_us:.1f} us each, {drafted:.1f} drafted")
    assert drafted > 1
    assert took_us <= LOOKUP_LIMIT_US


def resident_bytes() -> int:
    """Of this process, shared memory included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_memory_and_descriptors_stay_over_many_tokens_and_weight_updates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = DraftStore.create(f"benchmark-{os.getpid()}-b", STORED_TOKENS)
    writer = Writer(np.random.default_rng(1))
    drafter = Drafter(store, DRAFT_TOKENS)
    try:
        fill(store, writer, 2 * STORED_TOKENS)  # every page has been touched
        bytes_, resident = store.stats().bytes, resident_bytes()
        descriptors = len(os.listdir("/proc/self/fd"))
        appended_s = 0.0
        for version in range(1, UPDATES + 1):
            texts = [
                writer.trajectory(i % PROMPTS) for i in range(APPENDED_TOKENS // UPDATES // LENGTH)
            ]
            started = time.process_time()
            for i, text in enumerate(texts):
                store.append(1 + i % PROMPTS, i, version, text[:0], text)
            store.advance(version)
            appended_s += time.process_time() - started
            assert store.stats().tokens <= STORED_TOKENS
            lookup_us(store, writer, 8, 400)
        stats = store.stats()
        append_us = 1e6 * appended_s / APPENDED_TOKENS
        grown = resident_bytes() - resident
        with capsys.disabled():
            sys.stdout.write(
                f"\nappend {append_us:.3f} us per token; {stats.bytes / 2**20:.0f} MiB of shared "
                f"memory; resident grew by {grown / 2**20:.1f} MiB"
            )
        assert stats.appended_tokens == 2 * STORED_TOKENS + APPENDED_TOKENS
        assert stats.tokens > 0.95 * STORED_TOKENS
        assert stats.bytes == bytes_
        assert grown < 8 << 20
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert append_us <= APPEND_LIMIT_US
    finally:
        store.close()
    one = np.ones(1, np.int64)
    drafts = drafter.propose(np.zeros((1, 1), np.int32), one, one, one, one)
    assert drafts.counts.tolist() == [0]  # what it mapped stays
