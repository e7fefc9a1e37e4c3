"""TLT's latch and bandit, on one engine whose speed by length is known."""

import numpy as np
import pytest
from support.observations import observation, replica_table, trajectory_table

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import TrainerSignal
from steersman.estimators.speculation import expected_tokens
from steersman.policies.speculation.latch import Latch

TICK_S = 0.25
FIXED_S, SEQUENCE_S = 0.012, 0.0005


class Engine:
    """It drafts what it is told, and counts."""

    def __init__(self, policy: Latch, acceptance: float = 0.8, most: int = 8) -> None:
        self.policy, self.most, self.tokens = policy, most, 0
        self.expected = expected_tokens(np.full((1, 16), acceptance))[0]
        self.rng = np.random.default_rng(0)
        self.iterations, self.busy_s, self.sequences, self.accepted = 0, 0.0, 0.0, 0

    def at(self, batch: int, step: int = 0) -> int:
        """Look at it, then let it run for a tick; what it drafts."""
        replicas = replica_table(
            1,
            running=np.array([batch]),
            max_num_seqs=np.array([256]),
            max_draft_tokens=np.array([self.most]),
            draft_tokens=np.array([self.tokens]),
            iterations=np.array([self.iterations]),
            busy_s=np.array([self.busy_s]),
            sequences_run=np.array([self.sequences]),
            accepted_at=np.array([[self.accepted]]),
        )
        seen = observation(trajectory_table([]), replicas, trainer=TrainerSignal(step=step))
        for d in self.policy.decide(seen, Forecast.unknown(seen), self.rng):
            self.tokens = d.draft_tokens
        if batch:
            takes_s = FIXED_S + SEQUENCE_S * batch * (self.tokens + 1)
            done = round(TICK_S / takes_s)
            self.iterations += done
            self.busy_s += done * takes_s
            self.sequences += done * batch
            self.accepted += round(done * batch * (self.expected[self.tokens] - 1))
        return self.tokens

    def many(self, batch: int, ticks: int) -> list[int]:
        return [self.at(batch) for _ in range(ticks)]


def test_it_goes_on_at_the_tenth_small_batch_in_a_row() -> None:
    on = [tokens > 0 for tokens in Engine(Latch()).many(32, 12)]
    assert on == [False] * 9 + [True] * 3


def test_one_large_batch_in_between_starts_the_count_anew() -> None:
    engine = Engine(Latch())
    assert engine.many(32, 9) + engine.many(33, 1) + engine.many(32, 9) == [0] * 19
    assert engine.at(32) > 0


def test_it_stays_on_when_the_batch_rises_again_and_until_the_next_step() -> None:
    engine = Engine(Latch())
    engine.many(8, 10)
    assert all(tokens > 0 for tokens in engine.many(200, 20))
    assert engine.at(200, step=1) == 0
    assert engine.at(8, step=1) == 0


def share_of_best(batch: int, ticks: int = 400) -> tuple[int, float]:
    """The fastest length at this batch, and how often it is chosen in the second half."""
    lengths = (2, 4, 8)
    engine = Engine(Latch())
    chosen = engine.many(batch, ticks)[ticks // 2 :]
    rates = [engine.expected[k] / (FIXED_S + SEQUENCE_S * batch * (k + 1)) for k in lengths]
    best = lengths[int(np.argmax(rates))]
    return best, chosen.count(best) / len(chosen)


def test_the_bandit_finds_the_fastest_length_of_each_batch() -> None:
    found = [share_of_best(batch) for batch in (1, 30)]
    assert [best for best, _ in found] == [8, 2]
    assert all(share > 0.85 for _, share in found)


def test_every_length_is_tried_in_a_new_bucket() -> None:
    engine = Engine(Latch(epsilon=0.0))
    engine.many(8, 60)
    assert set(engine.many(1, 30)) == {2, 4, 8}


def test_what_was_measured_before_a_change_took_hold_is_not_credited_to_it() -> None:
    """An engine that ignores the request teaches nothing."""
    engine = Engine(Latch())
    engine.many(8, 10)
    for _ in range(20):
        engine.tokens = 0
        engine.at(8)
    assert engine.policy.state_dict()["rewards"] == []


def test_an_engine_that_drafts_little_has_fewer_lengths() -> None:
    assert set(Engine(Latch(), most=3).many(4, 200)) == {0, 2, 3}


def test_the_window_bounds_what_is_remembered() -> None:
    engine = Engine(Latch(window=5))
    engine.many(8, 100)
    assert max(len(rewards) for *_, rewards in engine.policy.state_dict()["rewards"]) == 5


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Latch(lengths=(0, 2))
    with pytest.raises(ValueError, match="ascending"):
        Latch(buckets=(5, 2))
