"""However often a run is interrupted, and with how many ranks it goes on: each prompt once."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from steersman.controller.plugins import build
from steersman.controller.prompts import order as module
from steersman.controller.prompts.chooser import PromptChooser
from steersman.controller.prompts.order import PromptOrder
from steersman.estimators.errors import InvalidInputError

lives = st.lists(
    st.tuples(
        st.integers(1, 3),  # ranks
        st.integers(0, 9),  # rounds that the trainer consumes
        st.integers(0, 9),  # and that the loader has taken beyond them
    ),
    min_size=1,
    max_size=5,
)


def ranks(policy: str, prompts: int, count: int, per_draw: int) -> list[PromptOrder]:
    return [
        PromptOrder(
            PromptChooser(build("policies.prompts", policy, {}), group_size=4, max_new_tokens=9),
            list(range(prompts)),
            prompts_per_draw=per_draw,
            rank=rank,
            world_size=count,
        )
        for rank in range(count)
    ]


def consume(orders: list[PromptOrder], rounds: int, version: int) -> tuple[list[int], int]:
    """What all ranks take in so many rounds, rewarded; and how many rounds there were."""
    taken: list[int] = []
    for done in range(rounds):
        own = [order.take() for order in orders]
        if None in own:
            assert own == [None] * len(orders)
            return taken, done
        taken += [index for index in own if index is not None]
        for order in orders:
            for index in own:
                order.chooser.observe(index or 0, [float((index or 0) % 3 == 0), 1.0], version)
    return taken, rounds


@pytest.mark.parametrize("policy", ["uniform", "prompt_value"])
@settings(max_examples=25, deadline=None)
@given(lives=lives, prompts=st.integers(3, 40), per_draw=st.integers(1, 7))
def test_nothing_is_lost_or_repeated_in_an_epoch(
    policy: str, lives: list[tuple[int, int, int]], prompts: int, per_draw: int
) -> None:
    seen: Counter[int] = Counter()
    state = None
    for version, (count, rounds, ahead) in enumerate([*lives, (1, prompts + 1, 0)]):
        orders = ranks(policy, prompts, count, per_draw)
        for order in orders:
            if state is not None:
                order.load_state_dict(state)
            order.start()
            if order.epoch:
                return  # the epoch was over before
        taken, consumed = consume(orders, rounds, version)
        seen.update(taken)
        for _ in range(ahead):
            assert len({order.take() is None for order in orders}) == 1
        states = [order.state_dict(consumed) for order in orders]
        assert all(repr(other) == repr(states[0]) for other in states)
        state = states[0]
    assert seen == Counter(range(prompts))


def test_what_was_consumed_longer_ago_than_is_kept_cannot_be_gone_back_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT", 8)
    (order,) = ranks("uniform", 40, 1, 4)
    for _ in range(20):
        order.take()
    assert order.state_dict(consumed=18)["consumed"] == 18
    with pytest.raises(InvalidInputError, match="consumed is 3; valid: 12 to 20"):
        order.state_dict(consumed=3)
