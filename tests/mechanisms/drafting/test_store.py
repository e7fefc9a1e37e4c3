"""What the draft store promises, whatever was appended and forgotten before."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.drafting import _kernel, _memory
from steersman.mechanisms.drafting._memory import ANY, BLOCK, LEVELS, LONG, NEWER, NONE, OLDER
from steersman.mechanisms.drafting.drafter import Drafter
from steersman.mechanisms.drafting.source import DraftClass
from steersman.mechanisms.drafting.store import DraftStore

NOTHING = np.zeros(0, np.int32)


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def store(name: str) -> Iterator[DraftStore]:
    made = DraftStore.create(name, 8 * BLOCK)
    yield made
    made.close()


def document(store: DraftStore, slot: int) -> list[int]:
    """Its text, read block by block."""
    record = store.arrays.documents[slot]
    found: list[int] = []
    block = int(record["first"])
    while block != NONE:
        filled = int(store.arrays.blocks[block]["filled"])
        found += store.arrays.tokens[block * BLOCK :][:filled].tolist()
        block = int(store.arrays.blocks[block]["after"])
    assert len(found) == record["tokens"]
    return found


def slots(store: DraftStore) -> list[int]:
    return [int(slot) for slot in np.flatnonzero(store.arrays.documents["serial"])]


def texts(store: DraftStore) -> list[list[int]]:
    """Of all documents, in the order in which they were appended."""
    order = sorted(slots(store), key=lambda slot: store.arrays.documents[slot]["serial"])
    return [document(store, slot) for slot in order]


def chained(store: DraftStore, level: int) -> list[int]:
    """Positions in the chains of a level; their links must agree with each other."""
    found = []
    for head in store.arrays.heads[level].tolist():
        position, newer = head, NONE
        while position != NONE:
            assert store.arrays.links[position, level, NEWER] == newer
            found.append(position)
            newer, position = position, int(store.arrays.links[position, level, OLDER])
            assert len(found) <= len(store.arrays.tokens)
    return found


def assert_sound(store: DraftStore) -> None:
    """No block is lost or shared, and each position with a next token hangs in its chains once."""
    arrays, stats = store.arrays, store.stats()
    owned = [0] * LEVELS
    blocks: list[int] = []
    for slot in slots(store):
        record, text = arrays.documents[slot], document(store, slot)
        here = np.flatnonzero(arrays.blocks["document"] == slot).tolist()
        assert len(here) == -(-len(text) // BLOCK)
        blocks += here
        for level in range(LEVELS):
            first = max(int(record["context"]), _kernel.NGRAM[level], 1)
            owned[level] += max(len(text) - first, 0)
    free = store._free_blocks[: store._free_block_count].tolist()
    assert sorted(blocks + free) == list(range(len(arrays.blocks)))
    assert stats.tokens == sum(map(len, texts(store))) <= stats.capacity_tokens
    assert stats.tokens == stats.appended_tokens - stats.evicted_tokens
    assert stats.documents == len(slots(store))
    for level in range(LEVELS):
        positions = chained(store, level)
        assert len(set(positions)) == len(positions) == owned[level]


appended = st.tuples(
    st.integers(0, 3),  # prompt
    st.integers(0, 3),  # weight version
    st.lists(st.integers(0, 3), max_size=9),  # prompt's text
    st.lists(st.integers(0, 3), max_size=10 * BLOCK),
)


@given(st.lists(appended, max_size=25), st.integers(1, 8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_appended_the_index_is_sound_and_within_capacity(
    name: str, appends: list[tuple[int, int, list[int], list[int]]], blocks: int
) -> None:
    store = DraftStore.create(name, blocks * BLOCK)
    try:
        for key, version, prompt, tokens in appends:
            store.append(key, -1, version, np.array(prompt, np.int32), np.array(tokens, np.int32))
            store.advance(version)
            assert_sound(store)
            if len(tokens) > 0 and len(tokens) + min(len(prompt), 6) >= 2:
                whole = (prompt + tokens)[-min(len(tokens) + len(prompt), blocks * BLOCK) :]
                newest = texts(store)[-1]
                assert whole[-len(newest) :] == newest
                assert len(newest) >= min(len(tokens), blocks * BLOCK)
    finally:
        store.close()


def filled(store: DraftStore, versions: list[int]) -> None:
    """One document of one block per version; its tokens tell which."""
    for i, version in enumerate(versions):
        tokens = np.full(BLOCK, i, np.int32)
        store.append(100 + i, -1, version, NOTHING, tokens)


def firsts(store: DraftStore) -> list[int]:
    return [text[0] for text in texts(store)]


def test_of_equal_value_the_oldest_go(store: DraftStore) -> None:
    filled(store, [0] * 8)
    assert firsts(store) == list(range(8))
    store.append(1, -1, 0, NOTHING, np.full(2 * BLOCK, 9, np.int32))
    assert firsts(store) == [2, 3, 4, 5, 6, 7, 9]


def test_what_older_weights_wrote_goes_first(store: DraftStore) -> None:
    filled(store, [5, 5, 1, 5, 4, 5, 5, 5])
    store.advance(5)
    store.append(1, -1, 5, NOTHING, np.full(2 * BLOCK, 9, np.int32))
    assert firsts(store) == [0, 1, 3, 5, 6, 7, 9]


def test_old_text_is_never_worth_more_than_new(store: DraftStore) -> None:
    """Whatever was measured: here old drafts were accepted, and fresh ones were not."""
    filled(store, [1] * 4 + [5] * 4)
    store.advance(5)
    store.arrays.feedback[DraftClass.HISTORY, 0] = 4000, 0
    store.arrays.feedback[DraftClass.HISTORY, 3] = 4000, 4000
    store.append(1, -1, 5, NOTHING, np.full(2 * BLOCK, 9, np.int32))
    assert firsts(store) == [2, 3, 4, 5, 6, 7, 9]


def credit(store: DraftStore, key: int) -> None:
    """A draft from the document of this prompt is accepted."""
    record = store.arrays.documents[store.arrays.documents["prompt_key"] == key][0]
    row = store.arrays.tokens[int(record["first"]) * BLOCK :][:3][None].copy()
    three, one = np.full(1, 3, np.int64), np.ones(1, np.int64)
    drafter = Drafter(store, 1, least_chance=0.0)
    drafts = drafter.propose(row, three, key * one, -one, one)
    assert drafts.counts.tolist() == [1]
    drafter.verified(np.full(1, DraftClass.HISTORY, np.uint8), one, one, drafts.tickets)


def test_what_was_accepted_stays_longer(store: DraftStore) -> None:
    filled(store, [0] * 8)
    for i in (0, 2):
        credit(store, 100 + i)
    store.append(1, -1, 0, NOTHING, np.full(2 * BLOCK, 9, np.int32))
    assert firsts(store) == [0, 2, 4, 5, 6, 7, 9]


def test_credit_fades_with_weight_updates(store: DraftStore) -> None:
    """Much used by weights long gone is worth less than what is new."""
    filled(store, [0] + [200] * 7)
    credit(store, 100)
    store.advance(200)
    store.append(1, -1, 200, NOTHING, np.full(BLOCK, 9, np.int32))
    assert firsts(store) == [1, 2, 3, 4, 5, 6, 7, 9]


def test_a_document_longer_than_the_store_keeps_its_end(store: DraftStore) -> None:
    tokens = np.arange(9 * BLOCK, dtype=np.int32)
    store.append(1, -1, 0, np.arange(9, dtype=np.int32), tokens)
    assert texts(store) == [tokens[BLOCK:].tolist()]
    assert store.arrays.documents["context"][slots(store)].tolist() == [0]
    assert_sound(store)


def test_memory_does_not_grow_with_what_goes_through(store: DraftStore) -> None:
    before = store.stats().bytes
    for i in range(100):
        store.append(i, -1, i, NOTHING, np.arange(3 * BLOCK, dtype=np.int32))
        store.advance(i)
    assert store.stats().bytes == before == _memory.path_of(store.name).stat().st_size
    assert store.stats().evicted_tokens >= 300 * BLOCK - 8 * BLOCK


READER = """
import sys
import numpy as np
from steersman.mechanisms.drafting.drafter import Drafter
from steersman.mechanisms.drafting.store import DraftStore
store = DraftStore.attach(sys.argv[1])
one = np.ones(1, np.int64)
drafts = Drafter(store, 4).propose(np.array([[5, 6, 7]], np.int32), 3 * one, one, one, 4 * one)
print(drafts.tokens[0, : drafts.counts[0]].tolist(), drafts.classes.tolist(), store.stats().tokens)
"""


def test_a_reader_in_another_process_sees_what_was_written(store: DraftStore) -> None:
    store.append(1, 1, 0, NOTHING, np.array([4, 5, 6, 7, 8, 9], np.int32))
    done = subprocess.run(
        [sys.executable, "-c", READER, store.name], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "[8, 9] [2] 6"
    assert _memory.path_of(store.name).exists()  # the reader's exit left it alone


def test_readers_of_a_closed_store_keep_what_they_mapped(store: DraftStore) -> None:
    store.append(1, 1, 0, NOTHING, np.array([4, 5, 6, 7, 8], np.int32))
    reader = DraftStore.attach(store.name)
    drafter = Drafter(reader, 4)
    store.close()
    reader.close()
    store.close()
    one = np.ones(1, np.int64)
    drafts = drafter.propose(np.array([[5, 6, 7]], np.int32), 3 * one, one, one, 4 * one)
    assert drafts.tokens[0, : drafts.counts[0]].tolist() == [8]
    with pytest.raises(FleetError, match="no draft store"):
        DraftStore.attach(store.name)


def test_a_reader_cannot_write(store: DraftStore) -> None:
    reader = DraftStore.attach(store.name)
    with pytest.raises(InvalidInputError, match="only reads"):
        reader.append(1, 1, 0, NOTHING, np.ones(5, np.int32))
    with pytest.raises(InvalidInputError, match="only reads"):
        reader.advance(3)
    reader.close()
    DraftStore.attach(store.name).close()


def test_there_is_one_writer(store: DraftStore) -> None:
    with pytest.raises(FleetError, match="another writer"):
        DraftStore.create(store.name, BLOCK)
    store.append(1, 1, 0, NOTHING, np.ones(5, np.int32))
    assert DraftStore.attach(store.name).stats().tokens == 5


def test_a_dead_writers_store_is_replaced(name: str) -> None:
    code = (
        "import os, sys\nfrom steersman.mechanisms.drafting.store import DraftStore\n"
        "DraftStore.create(sys.argv[1], 320)\nos._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, name], check=False)
    assert DraftStore.attach(name).stats().capacity_tokens == 320
    store = DraftStore.create(name, 64)
    assert DraftStore.attach(name).stats().capacity_tokens == 64
    store.close()
    assert not _memory.path_of(name).exists()


def test_too_little_shared_memory_is_said_and_leaves_no_file(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FleetError, match="MiB free: lower its capacity"):
        DraftStore.create(name, 1 << 20)
    assert not _memory.path_of(name).exists()


@pytest.mark.parametrize("size", [0, 8, 64, 4096])
def test_a_file_that_is_no_store_is_refused(name: str, size: int) -> None:
    path = _memory.path_of(name)
    path.write_bytes(b"\x01" * size)
    try:
        with pytest.raises(FleetError, match="not a draft store"):
            DraftStore.attach(name)
    finally:
        path.unlink()


def test_bad_input_is_refused(name: str, store: DraftStore) -> None:
    for capacity in (0, BLOCK - 1, _memory.LARGEST_CAPACITY + 1):
        with pytest.raises(InvalidInputError, match="valid: 32 to"):
            DraftStore.create(name, capacity)
    for bad in ("", "a/b", "../x", "a" * 101):
        with pytest.raises(InvalidInputError, match="valid: 1 to 100"):
            DraftStore.create(bad, BLOCK)
    with pytest.raises(InvalidInputError, match="token -1"):
        store.append(1, 1, 0, NOTHING, np.array([3, -1], np.int32))
    assert store.stats().documents == 0


def test_levels_are_ordered_as_the_lookup_assumes() -> None:
    """The long chain has had the matches that the short one leaves out."""
    assert len(_kernel.NGRAM) == LEVELS
    assert _kernel.NGRAM[LONG] == max(_kernel.NGRAM) <= _kernel.LONGEST_MATCH
    assert ANY == LEVELS - 1
