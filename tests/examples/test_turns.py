"""Sessions that take turns on one fleet see and command only their own."""

import asyncio

from support.fake_fleet import FakeFleet

from steersman.examples.turns import Turns, less
from steersman.mechanisms.fleet import ReplicaStats


class Counting(FakeFleet):
    """What its engine has counted is what the test says."""

    counted = ReplicaStats()

    def stats(self, replica: str) -> ReplicaStats:
        return self.counted


async def test_counters_grow_only_by_what_happens_in_turn() -> None:
    fleet = Counting(1)
    turns = Turns(fleet)  # type: ignore[arg-type]
    seen = []
    for iterations, drafted in ((10, [5]), (30, [7, 1]), (60, [9, 2]), (100, [20, 9])):
        fleet.counted = ReplicaStats(iterations=iterations, drafted_at=drafted, busy_s=iterations)
        if turns.in_turn:
            seen.append(turns.stats("r0"))
            turns.end()
            assert turns.stats("r0") == seen[-1]
        else:
            turns.begin()
    assert [(s.iterations, s.busy_s, s.drafted_at) for s in seen] == [
        (20, 20, [2, 1]),
        (60, 60, [13, 8]),
    ]
    await asyncio.sleep(0)


async def test_out_of_turn_nobody_tells_engines_what_to_draft() -> None:
    fleet = FakeFleet(1, max_draft_tokens=8)
    turns = Turns(fleet)  # type: ignore[arg-type]
    turns.draft("r0", 3)
    assert fleet.draft_tokens == {}
    turns.begin()
    turns.draft("r0", 4)
    turns.end()
    turns.draft("r0", 5)
    assert fleet.draft_tokens == {"r0": 4}


def test_what_others_drafted_is_taken_off_by_source() -> None:
    now = ReplicaStats(draft_classes={"self": [5, 20, 9], "other": [1, 2, 1]}, running=3)
    rest = less(now, ReplicaStats(draft_classes={"self": [2, 8, 4]}, running=9))
    assert rest.draft_classes == {"self": [3, 12, 5], "other": [1, 2, 1]}
    assert rest.running == 3
