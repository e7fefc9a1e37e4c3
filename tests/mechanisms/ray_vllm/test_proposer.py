"""The proposer in a model runner made by hand: who gets drafts, and what is learnt of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.estimators.observation import AS_REPLICA
from steersman.mechanisms.drafting.drafter import Drafts
from steersman.mechanisms.drafting.source import DraftClass
from steersman.mechanisms.fleet import AttemptRequest, Sampling
from steersman.mechanisms.ray_vllm.draft_control import extra_args
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT
from steersman.mechanisms.ray_vllm.proposer import StoreProposer

MOST = 8
MAX_MODEL_LEN = 100


class Scripted:
    """A drafter that always drafts 1, 2, 3, ... as far as it is wanted, as a sibling's."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.learnt: list[tuple[list[int], ...]] = []

    def propose(
        self, token_ids: Any, lengths: Any, prompt_keys: Any, group_ids: Any, wanted: Any
    ) -> Drafts:
        rows = len(lengths)
        assert token_ids.shape[0] == rows
        self.asked.append((lengths.tolist(), prompt_keys.tolist(), group_ids.tolist()))
        return Drafts(
            np.tile(np.arange(1, MOST + 1, dtype=np.int32), (rows, 1)),
            wanted,
            np.full(rows, DraftClass.SIBLING, np.uint8),
            np.arange(rows),
        )

    def verified(self, classes: Any, drafted: Any, accepted: Any, tickets: Any) -> None:
        self.learnt.append(
            (classes.tolist(), drafted.tolist(), accepted.tolist(), tickets.tolist())
        )


class Runner:
    """What the proposer sees of vLLM's model runner."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.effective_drafter_max_model_len = MAX_MODEL_LEN
        self.input_batch = SimpleNamespace(
            req_ids=[],
            req_id_to_index={},
            spec_token_ids=[],
            num_prompt_tokens=np.zeros(64, np.int32),
        )
        self.lengths = np.zeros(64, np.int32)
        self.tokens = np.zeros((64, MAX_MODEL_LEN), np.int32)

    def add(
        self,
        name: str,
        prompt: int = 5,
        max_tokens: int = 50,
        *,
        key: int = 7,
        group: int = 3,
        k: int = AS_REPLICA,
        slot: int = NO_SLOT,
    ) -> None:
        said = AttemptRequest(name, [0] * prompt, max_tokens, Sampling(), 0, key, group, k)
        parameters = SimpleNamespace(max_tokens=max_tokens, extra_args=extra_args(said, slot))
        self.requests[name] = SimpleNamespace(
            sampling_params=parameters, prompt=prompt, length=prompt
        )

    def batch(self, *names: str, scheduled: dict[str, int] | None = None) -> None:
        """These requests are in the batch now, with so many drafted tokens to verify."""
        batch = self.input_batch
        batch.req_ids = list(names)
        batch.req_id_to_index = {name: row for row, name in enumerate(names)}
        batch.spec_token_ids = [[9] * (scheduled or {}).get(name, 0) for name in names]
        for row, name in enumerate(names):
            batch.num_prompt_tokens[row] = self.requests[name].prompt

    def bring(self, proposer: StoreProposer, *sampled: int) -> list[int]:
        """An iteration brought so many tokens to each row; answers how many are drafted for it."""
        for row, name in enumerate(self.input_batch.req_ids):
            self.requests[name].length += sampled[row]
            self.lengths[row] = self.requests[name].length
        drafts = proposer.propose([[4] * n for n in sampled], self.lengths, self.tokens)
        assert all(draft == list(range(1, len(draft) + 1)) for draft in drafts)
        return [len(draft) for draft in drafts]


def make(*, armed: bool = True) -> tuple[StoreProposer, Runner, Scripted]:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=MOST),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN, get_vocab_size=lambda: 64),
    )
    proposer, runner, drafter = StoreProposer(config), Runner(), Scripted()
    proposer.watch(runner)
    proposer._drafter = drafter  # type: ignore[assignment]
    if armed:
        proposer.arm()
    return proposer, runner, drafter


def test_nothing_is_drafted_before_it_is_armed_or_before_it_is_told() -> None:
    for armed in (False, True):
        proposer, runner, drafter = make(armed=armed)
        runner.add("a", k=0 if armed else 4)
        runner.add("b", k=AS_REPLICA)
        runner.batch("a", "b")
        assert runner.bring(proposer, 1, 1) == [0, 0]
        assert drafter.asked == []


def test_a_command_beats_what_the_request_said_and_that_beats_the_default() -> None:
    proposer, runner, _ = make()
    runner.add("own", k=2)
    runner.add("other")
    runner.add("off", k=0)
    runner.batch("own", "other", "off")
    proposer.instruct(4, {})
    assert runner.bring(proposer, 1, 1, 1) == [2, 4, 0]
    proposer.instruct(4, {"own": 3, "off": AS_REPLICA, "gone": 8})
    assert runner.bring(proposer, 1, 1, 1) == [3, 4, 4]
    proposer.instruct(0, {"own": AS_REPLICA})
    assert runner.bring(proposer, 1, 1, 1) == [0, 0, 0]
    proposer.instruct(99, {})
    assert runner.bring(proposer, 1, 1, 1) == [2, MOST, 0]


def test_prompt_and_group_of_each_row_reach_the_drafter() -> None:
    proposer, runner, drafter = make()
    runner.add("a", prompt=5, key=11, group=1)
    runner.add("b", prompt=6, key=22, group=2)
    proposer.instruct(4, {})
    runner.batch("a", "b")
    runner.bring(proposer, 1, 1)
    runner.batch("b", "a")
    runner.bring(proposer, 1, 1)
    assert drafter.asked == [([6, 7], [11, 22], [1, 2]), ([8, 7], [22, 11], [2, 1])]


def test_a_request_of_somebody_else_is_drafted_for_as_the_engine_is_told() -> None:
    proposer, runner, drafter = make()
    runner.add("a")
    runner.requests["a"].sampling_params.extra_args = None
    proposer.instruct(3, {})
    runner.batch("a")
    assert runner.bring(proposer, 1) == [3]
    assert drafter.asked == [([6], [0], [-1])]


def test_nothing_is_drafted_while_a_prompt_is_being_read() -> None:
    proposer, runner, _ = make()
    runner.add("reading")
    runner.add("writing")
    proposer.instruct(4, {})
    runner.batch("reading", "writing")
    assert runner.bring(proposer, 0, 1) == [0, 4]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "written", "drafts"),
    [(5, 50, 1, 8), (5, 9, 1, 7), (5, 2, 1, 0), (5, 1, 1, 0), (90, 50, 1, 8), (94, 50, 1, 4)],
)
def test_nothing_is_drafted_beyond_the_last_token(
    prompt: int, max_tokens: int, written: int, drafts: int
) -> None:
    proposer, runner, _ = make()
    runner.add("a", prompt, max_tokens)
    proposer.instruct(MOST, {})
    runner.batch("a")
    assert runner.bring(proposer, written) == [drafts]


def test_vllm_never_drafts_in_our_stead_near_the_longest_length() -> None:
    _, runner, _ = make()
    assert runner.effective_drafter_max_model_len >= MAX_MODEL_LEN + MOST


def test_what_was_kept_is_counted_by_class_and_position() -> None:
    proposer, runner, drafter = make()
    runner.add("a", slot=17)
    runner.add("b")
    proposer.instruct(4, {})
    runner.batch("a", "b")
    runner.bring(proposer, 1, 1)
    # The scheduler cut b's draft, and the rows changed places.
    runner.batch("b", "a", scheduled={"a": 4, "b": 2})
    runner.bring(proposer, 3, 2)
    assert drafter.learnt == [([2, 2], [4, 2], [1, 2], [0, 1])]
    sibling = DraftClass.SIBLING
    assert proposer.counters.by_class() == {"sibling": [2, 6, 3]}
    assert proposer.counters.drafted[sibling].tolist() == [2, 2, 1, 1, 0, 0, 0, 0]
    assert proposer.counters.accepted[sibling].tolist() == [2, 1, 0, 0, 0, 0, 0, 0]
    assert proposer.counters.of_request(17) == ([1, 1, 1, 1], [1, 0, 0, 0])
    assert proposer.counters.requests.sum() == 5
    assert proposer.counters.spent[0] == 2


def test_what_was_asked_for_is_counted_whatever_comes_of_it() -> None:
    proposer, runner, _ = make()
    runner.add("a")
    runner.add("b", k=2)
    runner.add("c", k=0)
    proposer.instruct(4, {})
    runner.batch("a", "b", "c")
    runner.bring(proposer, 1, 1, 1)
    assert proposer.counters.asked.tolist() == [2, 2, 1, 1, 0, 0, 0, 0]
    runner.batch("a", "b", "c")  # nothing of it was scheduled
    runner.bring(proposer, 1, 0, 1)  # b's prompt is being read again
    assert proposer.counters.asked.tolist() == [3, 3, 2, 2, 0, 0, 0, 0]


def test_a_draft_that_was_dropped_counts_as_nothing() -> None:
    proposer, runner, drafter = make()
    runner.add("a")
    proposer.instruct(4, {})
    runner.batch("a")
    runner.bring(proposer, 1)
    runner.batch("a")  # nothing of it was scheduled, as after a preemption
    runner.bring(proposer, 1)
    assert drafter.learnt == []
    assert proposer.counters.by_class() == {}


def test_a_draft_that_is_verified_late_is_counted_late() -> None:
    proposer, runner, drafter = make()
    runner.add("a")
    runner.add("b", k=0)
    proposer.instruct(4, {})
    runner.batch("a", "b")
    runner.bring(proposer, 1, 1)
    runner.batch("b")  # a waits for its turn
    runner.bring(proposer, 1)
    runner.batch("a", "b", scheduled={"a": 4})
    runner.bring(proposer, 5, 1)
    assert drafter.learnt == [([2], [4], [4], [0])]


def test_a_request_that_ended_or_was_aborted_leaves_nothing_behind() -> None:
    proposer, runner, _ = make()
    proposer.instruct(4, {})
    for number in range(200):
        name = f"r{number}"
        runner.add(name)
        runner.batch(name)
        runner.bring(proposer, 1)
        del runner.requests[name]
    assert len(proposer._unverified) <= 1
    assert len(proposer._prompt_keys) == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_drafts_fit_and_every_verified_token_is_counted_once(
    data: st.DataObject,
) -> None:
    proposer, runner, _ = make()
    drafted_for: dict[str, int] = {}
    expected = np.zeros(3, np.int64)
    for step in range(12):
        for number in range(data.draw(st.integers(0, 2))):
            runner.add(
                f"{step}-{number}",
                prompt=data.draw(st.integers(1, 60)),
                max_tokens=data.draw(st.integers(1, 30)),
                k=data.draw(st.integers(-1, MOST)),
            )
        for name in list(runner.requests):
            said = runner.requests[name]
            full = said.length - said.prompt >= said.sampling_params.max_tokens
            if full or data.draw(st.integers(0, 9)) == 0:
                del runner.requests[name]
                drafted_for.pop(name, None)
        shuffled = data.draw(st.permutations(list(runner.requests)))
        running = [name for name in shuffled if data.draw(st.booleans())]
        if not running:
            continue
        scheduled = {n: data.draw(st.integers(0, drafted_for.pop(n, 0))) for n in running}
        runner.batch(*running, scheduled=scheduled)
        sampled = [
            data.draw(st.integers(min(scheduled[name], 1), scheduled[name] + 1)) for name in running
        ]
        for name, tokens in zip(running, sampled, strict=True):
            if scheduled[name]:
                expected += 1, scheduled[name], tokens - 1
        proposer.instruct(data.draw(st.integers(0, MOST)), {})
        for name, drafts in zip(running, runner.bring(proposer, *sampled), strict=True):
            said = runner.requests[name]
            left = said.prompt + said.sampling_params.max_tokens - said.length
            room = MAX_MODEL_LEN - said.length
            assert drafts == 0 or drafts + 1 <= min(left, room)
            if drafts:
                drafted_for[name] = drafts
        assert len(proposer._unverified) <= len(runner.requests)
        found = proposer.counters.by_class().get("sibling", [0, 0, 0])
        assert found == expected.tolist()
