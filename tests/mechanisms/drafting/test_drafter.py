"""Drafts continue what was really written, legal whatever the store holds, ranked by what is known.

`continues` is the reference: a search through the plain text.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.drafting import _kernel
from steersman.mechanisms.drafting._memory import ANY, BLOCK, SHORT, Arrays
from steersman.mechanisms.drafting.drafter import Drafter, Drafts
from steersman.mechanisms.drafting.source import DraftClass, key_of
from steersman.mechanisms.drafting.store import DraftStore

NOTHING = np.zeros(0, np.int32)
KEY, GROUP = 11, 3


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def store(name: str) -> Iterator[DraftStore]:
    made = DraftStore.create(name, 64 * BLOCK)
    yield made
    made.close()


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def draft(
    drafter: Drafter, text: list[int], wanted: int = 8, key: int = KEY, group: int = GROUP
) -> tuple[list[int], DraftClass]:
    """Of one row, whose unused width holds a token that nobody may see."""
    drafts = drafter.propose(
        ints(*text, 77)[None],
        *(np.array([value], np.int64) for value in (len(text), key, group, wanted)),
    )
    return drafts.tokens[0, : drafts.counts[0]].tolist(), DraftClass(drafts.classes[0])


def continues(text: list[int], at_least: int, row: list[int], drafted: list[int]) -> bool:
    """Whether the row's last tokens, so many, stand in `text` with the draft behind them."""
    part = row[-at_least:] + drafted
    return len(row) >= at_least and any(
        text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1)
    )


def repeats(row: list[int], drafted: list[int]) -> bool:
    """Whether the draft says what followed the row's last two tokens earlier; a loop goes on."""
    whole = row + drafted
    return any(
        whole[i : i + 2] == row[-2:] and whole[i + 2 :][: len(drafted)] == drafted
        for i in range(len(row) - 2)
    )


written = st.lists(st.integers(0, 2), min_size=1, max_size=80)
documents = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 2), written, written), min_size=1, max_size=12
)


@given(documents, st.lists(written, min_size=1, max_size=4), st.integers(2, 40), st.integers(1, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_draft_continues_a_text_of_its_class(
    name: str,
    stored: list[tuple[int, int, list[int], list[int]]],
    rows: list[list[int]],
    blocks: int,
    wanted: int,
) -> None:
    store = DraftStore.create(name, blocks * BLOCK)
    try:
        for key, group, prompt, tokens in stored:
            store.append(key, group, 0, ints(*prompt), ints(*tokens))
        keys = np.array([1 + i % 2 for i in range(len(rows))], np.int64)
        groups = np.array([i % 3 for i in range(len(rows))], np.int64)
        text = np.full((len(rows), max(map(len, rows))), 1, np.int32)
        for i, row in enumerate(rows):
            text[i, : len(row)] = row
        lengths = np.array([len(row) for row in rows], np.int64)
        drafter = Drafter(store, 8, least_chance=0.0)
        drafts = drafter.propose(text, lengths, keys, groups, np.full(len(rows), wanted))
    finally:
        store.close()
    assert (drafts.counts <= min(wanted, 8)).all()
    for i, row in enumerate(rows):
        kind, drafted = drafts.classes[i], drafts.tokens[i, : drafts.counts[i]].tolist()
        assert (kind == DraftClass.NONE) == (not drafted)
        if kind in (DraftClass.NONE, DraftClass.SELF):
            assert not drafted or repeats(row, drafted)
            continue
        sources = {
            DraftClass.SIBLING: [p + t for k, g, p, t in stored if k == keys[i] and g == groups[i]],
            DraftClass.HISTORY: [p + t for k, g, p, t in stored if k == keys[i] and g != groups[i]],
            DraftClass.OTHER: [p + t for k, _, p, t in stored if k != keys[i]],
        }[DraftClass(kind)]
        level = ANY if kind == DraftClass.OTHER else SHORT
        assert any(continues(s, _kernel.NGRAM[level], row, drafted) for s in sources)


@given(written, st.integers(1, 9))
@settings(deadline=None)
def test_without_a_store_a_row_repeats_itself(row: list[int], wanted: int) -> None:
    drafted, kind = draft(Drafter(None, 8, least_chance=0.0), row, wanted)
    if any(row[i - 2 : i] == row[-2:] for i in range(2, len(row))):
        assert kind == DraftClass.SELF
        assert len(drafted) == min(wanted, 8)  # it goes on in itself
        assert repeats(row, drafted)
    else:
        assert (drafted, kind) == ([], DraftClass.NONE)


def test_a_row_is_searched_at_every_distance() -> None:
    drafter = Drafter(None, 1, least_chance=0.0)
    for at in range(1, 199):
        row = list(range(100, 300))
        assert draft(drafter, row + row[at - 1 : at + 1]) == ([row[at + 1]], DraftClass.SELF)


def test_what_lies_behind_a_rows_end_is_not_looked_at(store: DraftStore) -> None:
    """`draft` puts 77 there, where an index of -1 would find it."""
    store.append(KEY, GROUP, 0, NOTHING, ints(77, 1, 2, 50))
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 60))
    assert draft(Drafter(store, 1, least_chance=0.0), [1, 2])[0] == [60]


def test_a_length_beyond_the_width_is_the_width(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 4))
    two = np.ones(2, np.int64)
    drafts = Drafter(store, 2, least_chance=0.0).propose(
        np.tile(ints(1, 2), (2, 1)), np.array([3, 10**9]), KEY * two, GROUP * two, 2 * two
    )
    assert drafts.tokens.tolist() == [[3, 4], [3, 4]]


def test_each_class_is_found_and_named(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 10))
    store.append(KEY, GROUP + 1, 0, NOTHING, ints(4, 5, 6, 11))
    store.append(KEY + 1, GROUP + 1, 0, NOTHING, ints(7, 8, 9, 12))
    drafter = Drafter(store, 4, least_chance=0.0)
    assert draft(drafter, [1, 2, 3]) == ([10], DraftClass.SIBLING)
    assert draft(drafter, [4, 5, 6]) == ([11], DraftClass.HISTORY)
    assert draft(drafter, [7, 8, 9]) == ([12], DraftClass.OTHER)
    assert draft(drafter, [20, 21, 22, 20, 21]) == ([22, 20, 21, 22], DraftClass.SELF)
    assert draft(drafter, [30, 31, 32]) == ([], DraftClass.NONE)


def test_prompts_and_groups_that_are_unknown_have_no_relatives(store: DraftStore) -> None:
    store.append(0, -1, 0, NOTHING, ints(1, 2, 3, 10))
    store.append(KEY, -1, 0, NOTHING, ints(4, 5, 6, 11))
    drafter = Drafter(store, 4, least_chance=0.0)
    assert draft(drafter, [1, 2, 3], key=0, group=-1) == ([10], DraftClass.OTHER)
    assert draft(drafter, [4, 5, 6], group=-1) == ([11], DraftClass.HISTORY)


@pytest.mark.parametrize("prompt", [0, 5, 2**62])
def test_no_run_drafts_from_the_text_of_another(store: DraftStore, prompt: int) -> None:
    drafter = Drafter(store, 8, least_chance=0.0)
    store.append(key_of(1, prompt), 0, 0, ints(), ints(1, 2, 3, 4, 5, 6))
    for run, other in ((1, prompt), (2, prompt), (1, 9), (2, 9)):
        found, _ = draft(drafter, [2, 3], key=key_of(run, other), group=0)
        assert found == ([4, 5, 6] if run == 1 else [])


def test_the_prompts_tail_leads_to_the_first_token(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, ints(50, 51, 52, 53), ints(1, 2, 3))
    drafted, _ = draft(Drafter(store, 4, least_chance=0.0), [50, 51, 52, 53])
    assert drafted == [1, 2, 3]
    assert draft(Drafter(store, 4, least_chance=0.0), [50, 51, 52])[0] == []


def test_rows_get_what_each_asked_for(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, np.arange(40, dtype=np.int32))
    rows = np.tile(np.arange(10, dtype=np.int32), (5, 1))
    same = np.ones(5, np.int64)
    drafts = Drafter(store, 6, least_chance=0.0).propose(
        rows, 10 * same, KEY * same, GROUP * same, np.array([0, 1, 3, 9, -1])
    )
    assert drafts.tokens.shape == (5, 6)
    assert drafts.counts.tolist() == [0, 1, 3, 6, 0]
    assert drafts.tokens[3].tolist() == [10, 11, 12, 13, 14, 15]
    assert drafts.classes.tolist() == [0, 2, 2, 2, 0]


def test_the_majority_of_siblings_is_followed(store: DraftStore) -> None:
    for token in (7, 8, 7, 9, 7):
        store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, token, token, token))
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 8, 8, 8))  # the newest
    assert draft(Drafter(store, 2, least_chance=0.0), [1, 2, 3]) == ([7, 7], DraftClass.SIBLING)


def test_a_longer_match_outweighs_a_newer_one(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 4, 5, 6, 70, 71))
    store.append(KEY, GROUP, 0, NOTHING, ints(60, 61, 5, 6, 80, 81))
    assert draft(Drafter(store, 1), [1, 2, 3, 4, 5, 6])[0] == [70]


def test_the_heaviest_source_of_a_draft_is_named(store: DraftStore) -> None:
    store.append(KEY, GROUP + 1, 0, NOTHING, ints(1, 2, 3, 4, 5, 6, 7, 70, 71))
    store.append(KEY, GROUP, 0, NOTHING, ints(6, 7, 70, 71))
    row = [1, 2, 3, 4, 5, 6, 7]
    assert draft(Drafter(store, 2, least_chance=0.0), row) == ([70, 71], DraftClass.HISTORY)


def promised(store: DraftStore, row: list[int], wanted: int) -> tuple[float, float]:
    """What a draft for this row promises of its first token, and what was then accepted."""
    store.arrays.feedback[:] = 0
    drafter, one = Drafter(store, 8, least_chance=0.0), np.ones(1, np.int64)
    drafts = drafter.propose(ints(*row)[None], len(row) * one, KEY * one, GROUP * one, wanted * one)
    assert drafts.counts.tolist() == [wanted]
    drafter.verified(drafts.classes, one, one, drafts.tickets)
    share, accepted = store.arrays.feedback[drafts.classes[0], 0].tolist()
    return share, accepted


def test_a_ticket_remembers_how_sure_the_sources_were(store: DraftStore) -> None:
    """Each source votes once, whichever chains it hangs in, and doubt has a vote."""
    fresh = _kernel.PRIOR_RATIO[DraftClass.SIBLING]
    votes = fresh * _kernel.GROWTH ** np.arange(9)
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 4, 5, 6, 7, 70, 71))
    share, accepted = promised(store, [1, 2, 3, 4, 5, 6, 7], 2)
    assert accepted == 1
    assert share == pytest.approx(votes[7] / (votes[7] + 1), abs=1 / 200)
    store.append(KEY, GROUP, 0, NOTHING, ints(6, 7, 80, 81))
    share, _ = promised(store, [1, 2, 3, 4, 5, 6, 7], 1)
    assert share == pytest.approx(votes[7] / (votes[7] + votes[2] + 1), abs=1 / 200)


def test_nobody_keeps_more_than_was_drafted(store: DraftStore) -> None:
    drafter, selves = Drafter(store, 4), np.full(3, DraftClass.SELF, np.uint8)
    drafter.verified(selves, np.array([2, 2, 0]), np.array([9, -3, 1]))
    assert store.arrays.feedback[DraftClass.SELF, 0].tolist() == pytest.approx([3, 2], rel=0.01)


def test_a_draft_ends_where_its_sources_part(store: DraftStore) -> None:
    for token in range(30, 38):
        store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 4, token, token + 10))
    assert draft(Drafter(store, 8), [1, 2])[0] == [3, 4]
    assert len(draft(Drafter(store, 8, least_chance=0.0), [1, 2])[0]) == 4


@pytest.mark.parametrize("newer_first", [False, True])
def test_of_equal_matches_the_newer_weights_are_followed(
    store: DraftStore, newer_first: bool
) -> None:
    texts = [(1, ints(1, 2, 3, 10)), (6, ints(1, 2, 3, 60))]
    for version, text in texts[::-1] if newer_first else texts:
        store.append(KEY, GROUP, version, NOTHING, text)
    store.advance(6)
    assert draft(Drafter(store, 4), [1, 2, 3])[0] == [60]


def test_a_class_whose_drafts_are_refused_is_heard_less(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 10))
    store.append(KEY, GROUP + 1, 0, NOTHING, ints(1, 2, 3, 20))
    drafter, other_engine = Drafter(store, 4), Drafter(DraftStore.attach(store.name), 4)
    store.arrays.feedback[:] = 0
    forty = np.full(40, 4)
    drafter.verified(np.full(40, DraftClass.SIBLING, np.uint8), forty, 0 * forty)
    drafter.verified(np.full(40, DraftClass.HISTORY, np.uint8), forty, forty)
    assert draft(drafter, [1, 2, 3])[0] == [20]
    drafter.verified(np.full(200, DraftClass.SIBLING, np.uint8), np.full(200, 4), np.full(200, 4))
    drafter.verified(np.full(99, DraftClass.HISTORY, np.uint8), np.full(99, 4), np.zeros(99, int))
    assert draft(drafter, [1, 2, 3])[0] == [10]
    assert draft(other_engine, [1, 2, 3])[0] == [10]  # what one learns, all of the host know


def test_old_text_that_is_refused_is_heard_less_than_new(store: DraftStore) -> None:
    """Measured by age, not only assumed: here version 1 is refused and version 4 accepted."""
    store.append(KEY, GROUP, 1, NOTHING, ints(1, 2, 3, 10, 11, 12))
    store.append(KEY, GROUP, 4, NOTHING, ints(5, 6, 7, 40, 41, 42))
    store.advance(4)
    drafter = Drafter(store, 3)
    asked = [np.array(x, np.int64) for x in ([3, 3], [KEY] * 2, [GROUP] * 2, [3, 3])]
    rows = np.stack([ints(1, 2, 3), ints(5, 6, 7)])
    for _ in range(20):
        drafts = drafter.propose(rows, *asked)
        kept = drafts.counts * (drafts.tokens[:, 0] == 40)
        drafter.verified(drafts.classes, drafts.counts, kept, drafts.tickets)
    drafts = drafter.propose(rows, *asked)
    assert drafts.counts[1] == 3 > drafts.counts[0]


def test_other_prompts_are_asked_only_where_the_own_say_little(store: DraftStore) -> None:
    for _ in range(12):
        store.append(KEY + 1, GROUP + 1, 0, NOTHING, ints(1, 2, 3, 90))
    store.append(KEY, GROUP, 0, NOTHING, ints(2, 3, 40))
    drafter = Drafter(store, 1)
    assert draft(drafter, [1, 2, 3]) == ([90], DraftClass.OTHER)
    for _ in range(_kernel.FEW - 1):
        store.append(KEY, GROUP, 0, NOTHING, ints(2, 3, 40))
    assert draft(drafter, [1, 2, 3]) == ([40], DraftClass.SIBLING)


def test_a_class_that_is_never_accepted_is_still_tried(store: DraftStore) -> None:
    """Or nobody would see that it became good; but no further than one token."""
    text = np.arange(20, dtype=np.int32)
    store.append(KEY, GROUP, 0, NOTHING, text)
    drafter, many = Drafter(store, 8), np.full(5000, 8)
    assert len(draft(drafter, text[:12].tolist())[0]) == 8
    drafter.verified(np.full(5000, DraftClass.SIBLING, np.uint8), many, 0 * many)
    assert len(draft(drafter, text[:12].tolist())[0]) == 1


def test_what_was_learned_is_forgotten_with_what_follows(store: DraftStore) -> None:
    drafter, many = Drafter(store, 4), np.full(100_000, 1)
    for accepted in (0, 1):
        drafter.verified(np.full(100_000, DraftClass.SELF, np.uint8), many, accepted * many)
    promised, kept = store.arrays.feedback[DraftClass.SELF, 0]
    assert kept == pytest.approx(promised)
    assert promised == pytest.approx(4000, rel=0.01)


def test_a_weight_update_halves_what_was_learned(store: DraftStore) -> None:
    drafter = Drafter(store, 4)
    drafter.verified(ints(1).astype(np.uint8), np.array([4]), np.array([2]))
    before = store.arrays.feedback[1].sum()
    store.advance(0)
    assert store.arrays.feedback[1].sum() == before > 0
    store.advance(1)
    assert store.arrays.feedback[1].sum() == before / 2


def test_tokens_beyond_the_vocabulary_are_never_drafted(store: DraftStore) -> None:
    store.append(KEY, GROUP, 0, NOTHING, ints(1, 2, 3, 99, 100, 4))
    drafter = Drafter(store, 8, vocabulary_size=100, least_chance=0.0)
    assert draft(drafter, [1, 2, 3])[0] == [99]


def legal(drafts: Drafts, rows: int, most: int, vocabulary: int) -> bool:
    drafted = [drafts.tokens[i, : drafts.counts[i]] for i in range(rows)]
    return (
        drafts.tokens.shape == (rows, most)
        and bool(((drafts.counts >= 0) & (drafts.counts <= most)).all())
        and all(((tokens >= 0) & (tokens < vocabulary)).all() for tokens in drafted)
        and set(drafts.classes.tolist()) <= set(map(int, DraftClass))
    )


def garbage(rng: np.random.Generator, array: NDArray[np.generic], part: float) -> None:
    """Overwrite some words: half near the legal numbers, half with anything."""
    words = array.reshape(-1).view(np.int32)
    chosen = np.flatnonzero(rng.random(words.size) < part)
    near = rng.integers(-2, 16 * BLOCK + 2, chosen.size)
    wild = rng.integers(-(2**31), 2**31, chosen.size)
    words[chosen] = np.where(rng.random(chosen.size) < 0.5, near, wild)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("field", [*Arrays._fields, "all"])
def test_a_store_full_of_garbage_gives_legal_drafts(name: str, field: str, seed: int) -> None:
    """One array in three parts of ten, so that lookups still get far; or all of them wholly."""
    rng = np.random.default_rng(seed)
    store = DraftStore.create(name, 16 * BLOCK)
    try:
        for i in range(12):
            store.append(i % 2, i % 3, i, NOTHING, rng.integers(0, 3, 50).astype(np.int32))
        drafter = Drafter(store, 8, vocabulary_size=3, least_chance=0.0)
        for array_name, array in store.arrays._asdict().items():
            if field in ("all", array_name):
                garbage(rng, array, 1.0 if field == "all" else 0.3)
        for _ in range(50):
            rows = rng.integers(0, 3, (4, 30)).astype(np.int32)
            lengths, keys, groups = (rng.integers(low, 40, 4) % 33 - 1 for low in (0, 1, 2))
            drafts = drafter.propose(rows, lengths, keys % 3, groups % 3, np.full(4, 8))
            assert legal(drafts, 4, 8, 3)
            drafter.verified(drafts.classes, drafts.counts, drafts.counts, drafts.tickets)
            junk = rng.integers(-(2**62), 2**62, 4)
            drafter.verified(rng.integers(0, 256, 4).astype(np.uint8), junk, junk[::-1], junk)
    finally:
        store.close()


@pytest.mark.parametrize("wrong", [64, 2**31 - 1, -(2**31)])
def test_a_text_ends_where_its_next_block_is_none(store: DraftStore, wrong: int) -> None:
    text = np.arange(2 * BLOCK, dtype=np.int32)
    store.append(KEY, GROUP, 0, NOTHING, text)
    assert len(store.arrays.blocks) == 64
    drafter, near = Drafter(store, 8, least_chance=0.0), BLOCK - 4
    assert draft(drafter, text[:near].tolist())[0] == text[near : near + 8].tolist()
    first = store.arrays.documents["first"][store.arrays.documents["serial"] > 0][0]
    store.arrays.blocks["after"][first] = wrong
    assert draft(drafter, text[:near].tolist())[0] == text[near:BLOCK].tolist()


WRITER = """
import sys
import numpy as np
from steersman.mechanisms.drafting.store import DraftStore
store = DraftStore.create(sys.argv[1], 64 * 32)
rng = np.random.default_rng(0)
print("ready", flush=True)
for i in range(20_000):
    text = rng.integers(0, 4, rng.integers(2, 400)).astype(np.int32)
    store.append(1 + i % 2, i % 3, i // 50, text[:6], text)
    store.advance(i // 50)
store.close()
"""


def test_a_reader_survives_a_writer_that_never_pauses(name: str) -> None:
    rng = np.random.default_rng(1)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, name], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        drafter = Drafter(DraftStore.attach(name), 8, vocabulary_size=4, least_chance=0.0)
        drafted = 0
        while writer.poll() is None:
            rows = rng.integers(0, 4, (8, 40)).astype(np.int32)
            same = np.ones(8, np.int64)
            drafts = drafter.propose(rows, 40 * same, same, same, 8 * same)
            assert legal(drafts, 8, 8, 4)
            drafter.verified(drafts.classes, drafts.counts, drafts.counts, drafts.tickets)
            drafted += int(drafts.counts.sum())
        assert writer.returncode == 0
    assert drafted > 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_draft_tokens is 0"):
        Drafter(None, 0)
    with pytest.raises(InvalidInputError, match="least_chance is 2"):
        Drafter(None, 4, least_chance=2.0)
    one = np.ones(1, np.int64)
    with pytest.raises(InvalidInputError, match="one number per row"):
        Drafter(None, 4).propose(np.zeros((2, 9), np.int32), one, one, one, one)
