"""The memory of prompt policies is a bounded dictionary of columns."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.estimators.errors import InvalidInputError
from steersman.policies.prompts._memory import PromptMemory, one_of_each

keys = st.lists(st.integers(0, 2**62), max_size=12)


@given(writes=st.lists(keys, max_size=6), asked=keys)
@settings(deadline=None, max_examples=80)
def test_it_returns_what_was_written_last(writes: list[list[int]], asked: list[int]) -> None:
    memory, model = PromptMemory(2, 1000), {}
    for n, written in enumerate(writes):
        key = np.array(sorted(set(written), key=written.index), dtype=np.int64)
        values = np.stack((key % 7 + n, np.full(len(key), -n)))
        memory.write(key, values)
        model |= {int(k): v for k, v in zip(key, values.T.tolist(), strict=True)}
    copy = PromptMemory(2, 1000)
    copy.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    question = np.array([*asked, *model], dtype=np.int64)
    expected = [model.get(int(k), [8.0, 9.0]) for k in question]
    for it in (memory, copy):
        assert it.read(question, (8.0, 9.0)).T.tolist() == expected
        assert len(it) == len(model)


def test_those_not_written_for_longest_are_forgotten_first() -> None:
    memory = PromptMemory(1, 16)
    for first in (0, 10):
        memory.write(np.arange(first, first + 8), np.ones((1, 8)))
    memory.write(np.arange(4), np.ones((1, 4)))  # 0 to 3 are fresh again
    memory.write(np.array([99]), np.ones((1, 1)))
    # an eighth of 16 goes at once, beyond the one too many
    assert memory.key.tolist() == [0, 1, 2, 3, 7, *range(10, 18), 99]


@given(key=st.lists(st.integers(0, 5), max_size=20))
def test_parts_hold_a_key_once_and_keep_the_order_of_its_rows(key: list[int]) -> None:
    column = np.array(key, dtype=np.int64)
    parts = one_of_each(column)
    assert sorted(int(row) for part in parts for row in part) == list(range(len(key)))
    for k in set(key):
        rows = [int(row) for part in parts for row in part if column[row] == k]
        assert rows == sorted(rows)
    assert all(len(np.unique(column[part])) == len(part) for part in parts)


@given(rows=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_rows_that_do_not_count_are_in_no_part(rows: list[tuple[int, bool]]) -> None:
    key = np.array([k for k, _ in rows], dtype=np.int64)
    counts = np.array([c for _, c in rows], dtype=np.bool_)
    counted = np.flatnonzero(counts)
    parts = [part.tolist() for part in one_of_each(key, counts)]
    assert parts == [counted[part].tolist() for part in one_of_each(key[counted])]


def test_a_memory_for_nobody_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_prompts"):
        PromptMemory(1, 0)
