"""Each call of a client is told its end exactly once, whatever clients, engines and trainer do."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.sidecar.leases.desk import Desk
from steersman.controller.sidecar.leases.wire import Begin, Done, Free, Gone, Grant, Order, Report
from steersman.estimators.lifecycle import Disposition
from steersman.mechanisms.execution import ToEnd
from steersman.mechanisms.fleet import EndReason, ReplicaInfo
from steersman.mechanisms.leases.fleet import LeaseFleet

PLAIN = load_config(None, ["placement.name=sticky_least_inflight", "tick_s=0.005"], {})


async def no_abort(replica: str, attempt_ids: Sequence[str]) -> None:
    """The engines do not listen: the clients of these tests tell ends by themselves."""


def new_desk() -> Desk:
    fleet = LeaseFleet(no_abort)
    for name in ("a", "b"):
        fleet.add(ReplicaInfo(name, max_num_seqs=4, max_model_len=200))
    return Desk(fleet, Controller.from_config(PLAIN))


def begin(call: int, prompt: str = "p", tokens: int = 50, resumes: bool = True) -> Begin:
    return Begin(call, f"s-{call}", prompt, prompt_tokens=10, max_tokens=tokens, resumes=resumes)


async def fetched(desk: Desk, count: int = 1) -> list[Order]:
    orders: list[Order] = []
    async with asyncio.timeout(10):
        while len(orders) < count:
            orders += await desk.fetch("w", 0.05)
    return orders


async def test_a_call_is_granted_moved_by_its_report_and_told_its_end() -> None:
    async with new_desk() as desk:
        desk.tell("w", [begin(0)])
        (grant,) = await fetched(desk)
        assert isinstance(grant, Grant)
        assert grant.kept == 0
        desk.tell("w", [Report(0, grant.attempt_id, EndReason.ABORT, 7, weight_version=1)])
        (second,) = await fetched(desk)
        assert isinstance(second, Grant)
        assert second.kept == 7
        assert second.attempt_id != grant.attempt_id
        desk.tell("w", [Report(0, second.attempt_id, EndReason.STOP, 3, weight_version=2)])
        (done,) = await fetched(desk)
        assert isinstance(done, Done)
        assert (done.disposition, done.kept) == ("finished", 10)
        assert done.info["correctness"] == "corrected"
        assert [s["weight_version"] for s in done.info["segments"]] == [1, 2]
        assert done.info["lag"] == 1


async def test_samples_of_one_prompt_are_one_group_and_later_turns_another() -> None:
    async with new_desk() as desk:
        desk.tell("w", [begin(0), begin(1)])
        groups = {e.spec.group_id for e in desk.ledger.executions.values()}
        assert len(groups) == 1
        turn = Begin(2, "s-0", "p and more", prompt_tokens=30, max_tokens=50)
        other = Begin(3, "s-1", "p and other", prompt_tokens=31, max_tokens=50)
        desk.tell("w", [turn, other])
        later = [e.spec.group_id for e in desk.ledger.executions.values()][2:]
        assert len(set(later)) == 1
        assert groups.isdisjoint(later)


async def test_a_budget_ends_where_the_engine_would_end_it() -> None:
    async with new_desk() as desk:
        desk.tell("w", [begin(0, tokens=10_000)])
        (execution,) = desk.ledger.executions.values()
        assert execution.spec.max_new_tokens == 190


async def test_a_restart_tells_the_client_to_keep_nothing() -> None:
    async with new_desk() as desk:
        desk.tell("w", [begin(0)])
        (grant,) = await fetched(desk)
        assert isinstance(grant, Grant)
        desk.tell("w", [Report(0, grant.attempt_id, EndReason.ABORT, 7)])
        (grant,) = await fetched(desk)
        assert isinstance(grant, Grant)
        (execution,) = desk.ledger.executions.values()
        execution.leave(ToEnd(Disposition.RESTARTED), "too long")
        desk.tell("w", [Report(0, grant.attempt_id, EndReason.ABORT, 2)])
        (fresh,) = await fetched(desk)
        assert isinstance(fresh, Grant)
        assert fresh.kept == 0
        desk.tell("w", [Report(0, fresh.attempt_id, EndReason.STOP, 4)])
        (done,) = await fetched(desk)
        assert isinstance(done, Done)
        assert (done.kept, done.info["correctness"]) == (4, "empirical")


async def test_a_report_about_an_attempt_that_was_given_up_changes_nothing() -> None:
    async with new_desk() as desk:
        desk.tell("w", [begin(0)])
        (grant,) = await fetched(desk)
        assert isinstance(grant, Grant)
        desk.fleet.lose_lease(grant.attempt_id, "it hung")
        (second,) = await fetched(desk)
        desk.tell("w", [Report(0, grant.attempt_id, EndReason.STOP, 9)])
        assert isinstance(second, Grant)
        assert second.kept == 0
        assert desk.open_calls == 1


async def test_what_goes_wrong_in_here_sets_the_call_free(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    async with new_desk() as desk:
        desk.tell("w", [begin(0)])
        (grant,) = await fetched(desk)
        assert isinstance(grant, Grant)

        def broken(*arguments: object) -> None:
            raise ArithmeticError("a bug")

        monkeypatch.setattr(desk, "_report", broken)
        desk.tell("w", [Report(0, grant.attempt_id, EndReason.ABORT, 3)])
        (free,) = await fetched(desk)
        assert isinstance(free, Free)
        assert "ArithmeticError" in free.why
        assert (desk.open_calls, desk.set_free) == (0, 1)
        assert not desk.fleet.is_open(grant.attempt_id)


async def test_the_end_of_the_desk_sets_all_calls_free() -> None:
    desk = new_desk()
    async with desk:
        desk.tell("w", [begin(n) for n in range(12)])
        await fetched(desk, 8)
    orders = await desk.fetch("w", 0.0)
    assert sum(isinstance(order, Free) for order in orders) == 12


Word = tuple[str, int]
WORDS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "stop", "abort", "error", "lost", "gone", "late", "tick"]),
        st.integers(0, 9),
    ),
    max_size=50,
)


@settings(max_examples=40, deadline=None)
@given(WORDS)
def test_every_call_is_told_its_end_exactly_once(words: list[Word]) -> None:
    asyncio.run(_played(words))


async def _played(words: list[Word]) -> None:
    ends, present = Counter[int](), dict[int, Grant]()
    left: set[int] = set()
    old: list[Grant] = []
    begun = 0

    def take(orders: list[Order]) -> None:
        for order in orders:
            assert order.call not in left or isinstance(order, Grant)
            if isinstance(order, Grant):
                present[order.call] = order
            else:
                ends[order.call] += 1
                present.pop(order.call, None)

    async with new_desk() as desk:
        for word, n in words:
            take(await desk.fetch("w", 0.0))
            open_calls = [call for call in present if call not in left]
            if word == "begin":
                desk.tell("w", [begin(begun, prompt=f"p{n % 3}")])
                begun += 1
            elif word == "tick":
                await asyncio.sleep(0.006)
            elif word == "late" and old:
                grant = old[n % len(old)]
                if not ends[grant.call] and grant.call not in left:
                    desk.tell("w", [Report(grant.call, grant.attempt_id, EndReason.STOP, n)])
            elif open_calls:
                call = open_calls[n % len(open_calls)]
                grant = present.pop(call)
                old.append(grant)
                if word == "gone":
                    left.add(call)
                    desk.tell("w", [Gone(call)])
                else:
                    reason = EndReason(word) if word != "late" else EndReason.ABORT
                    desk.tell("w", [Report(call, grant.attempt_id, reason, n % 4)])
        deadline = asyncio.get_running_loop().time() + 20
        while desk.open_calls and asyncio.get_running_loop().time() < deadline:
            take(await desk.fetch("w", 0.01))
            for call, grant in list(present.items()):
                if call not in left:
                    desk.tell("w", [Report(call, grant.attempt_id, EndReason.STOP, 1)])
            present.clear()
        take(await desk.fetch("w", 0.0))
        assert desk.open_calls == 0
        assert desk.set_free == 0
        counts = desk.ledger.counts()
        assert counts.unfinished == 0
    assert ends == Counter({call: 1 for call in range(begun) if call not in left})
