"""The book of a step: what it keeps of groups, and for how long."""

from collections.abc import Sequence

import numpy as np
import pytest
from support.observations import (
    ended_table,
    group_table,
    observation,
    replica_table,
    trajectory_table,
)

from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.policies.placement import _step_book
from steersman.policies.placement._step_book import StepBook


def seen(open_groups: Sequence[int], ended: Sequence[int], step: int = 0) -> Observation:
    return observation(
        trajectory_table([Phase.RUNNING] * len(open_groups)),
        replica_table(1),
        groups=group_table(len(open_groups), group_id=open_groups),
        ended=ended_table([10] * len(ended), group_id=np.array(ended, dtype=np.int64)),
        trainer=TrainerSignal(step=step),
    )


def test_complete_groups_are_handed_out_when_the_next_step_begins() -> None:
    book = StepBook()
    book.follow(seen([0, 1, 2], []))
    assert book.follow(seen([1, 2], [0])) is None
    closed = book.follow(seen([2, 3], [1], step=1))
    assert closed is not None
    assert closed.group_id.tolist() == [0, 1]
    assert book.groups.group_id.tolist() == [2, 3]


def test_a_step_that_never_ends_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open groups stay, and the newest of the complete ones."""
    monkeypatch.setattr(_step_book, "MOST_GROUPS", 10)
    book = StepBook()
    for tick in range(100):
        book.follow(seen([0, tick + 1], [tick] if tick else []))
        assert len(book.groups) <= 10
    assert {0, 99, 100} <= set(book.groups.group_id.tolist())
    assert book.groups.ended[book.groups.group_id == 99].tolist() == [1]
