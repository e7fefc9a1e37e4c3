"""Where a request goes that comes alone."""

from dataclasses import dataclass, field

import msgspec
from support.fake_fleet import FakeFleet

from steersman.controller.gateway.arrivals import BURST, SLACK, Arrivals
from steersman.controller.ledger import Ledger
from steersman.controller.loop import COALESCE_S
from steersman.controller.results import Prompt
from steersman.controller.trace.writer import NoTrace
from steersman.mechanisms.execution import Execution
from steersman.mechanisms.fleet import ReplicaStats, Sampling


@dataclass
class Place:
    """A fleet, its books, and requests that come."""

    replicas: int = 2
    max_num_seqs: int = 64
    now_s: float = 0.0
    fleet: FakeFleet = field(init=False)
    ledger: Ledger = field(init=False)
    arrivals: Arrivals = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = FakeFleet(self.replicas, max_num_seqs=self.max_num_seqs)
        self.ledger = Ledger(self.fleet, NoTrace(), lambda: self.now_s, "run")
        self.arrivals = Arrivals(self.fleet, self.ledger)

    def wait(self, count: int = 1) -> list[Execution]:
        """Samples that wait for a placement."""
        group = self.ledger.admit(Prompt("p", [5]), count, 8, Sampling(), 0)
        return group.slots

    def place(self, count: int = 1, session: str = "") -> list[str]:
        """Where as many go that come at once; empty: they are left to the controller."""
        executions = self.wait(count)
        decisions = self.arrivals.decide(executions, session, self.now_s)
        for execution, decision in zip(executions, decisions, strict=False):
            assert execution.place(decision.replica)
        return [decision.replica for decision in decisions]

    def later(self) -> None:
        """The burst is over."""
        self.now_s += COALESCE_S


def test_lone_requests_go_where_the_fewest_are_in_flight() -> None:
    place = Place()
    seen = []
    for _ in range(6):
        seen += place.place()
        place.later()
    assert sorted(seen) == ["r0"] * 3 + ["r1"] * 3


def test_a_burst_is_left_to_the_controller() -> None:
    place = Place(max_num_seqs=2 * BURST)
    assert place.place(BURST + 1) == []
    assert place.ledger.waiting == BURST + 1


def test_a_burst_that_comes_one_by_one_is_noticed() -> None:
    place = Place(max_num_seqs=2 * BURST)
    assert all(place.place() for _ in range(BURST))
    assert place.place() == []
    place.later()
    assert place.place() == [], "one waits already, and whoever came first goes first"


def test_a_session_returns_to_its_engine_until_that_one_is_much_fuller() -> None:
    place = Place()
    (home,) = place.place(session="s")
    for _ in range(SLACK):
        place.later()
        assert place.place(session="s") == [home]
    place.later()
    assert place.place(session="s") != [home]


def test_nothing_is_placed_at_once_where_no_engine_has_room() -> None:
    place = Place(max_num_seqs=1)
    assert len(place.place(2)) == 2
    place.later()
    assert place.place() == []


def test_an_engine_whose_cache_is_nearly_full_has_no_room() -> None:
    place = Place()
    full = msgspec.structs.replace(ReplicaStats(), kv_cache_usage=0.95)
    place.fleet.stats = lambda name: full if name == "r0" else ReplicaStats()  # type: ignore[method-assign]
    for _ in range(3):
        assert place.place() == ["r1"]
        place.later()
