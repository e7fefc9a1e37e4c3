"""Each decision is told with what is true of it: its context, its outcome, its alternatives."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from support.synthetic_trace import SyntheticRun

from steersman.controller.explain.reading import explain
from steersman.controller.explain.story import Explained, Selection, Story, patterns
from steersman.controller.explain.text import decision_lines, summary_lines
from steersman.controller.trace import records as rec
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import ReplicaInfo
from steersman.policies.decision import Action, Decision, StackChoice

RUN = list(SyntheticRun(steps=3, groups=3, size=4).records())
TAKEN = [record for record in RUN if isinstance(record, rec.DecisionTaken)]


def told(selection: Selection, limit: int = 1000, records: list[rec.Record] = RUN) -> Story:
    return explain(records, selection, limit)


def text(story: Explained) -> str:
    return "\n".join(decision_lines(story))


# A whole run


def test_every_decision_is_told_once_in_order_with_its_figures() -> None:
    found = [told(Selection(action=a.value)).decisions for a in Action]
    everything = sorted((d for some in found for d in some), key=lambda d: d.t_s)
    assert Counter(d.trajectory_id for d in everything) == Counter(
        r.decision.trajectory_id for r in TAKEN
    )
    for action, some in zip(Action, found, strict=True):
        expected = [r for r in TAKEN if r.decision.action is action]
        assert [(d.t_s, d.trajectory_id, d.gain_s, d.reason) for d in some] == [
            (r.t_s, r.decision.trajectory_id, r.decision.gain_s, r.decision.reason)
            for r in expected
        ]
    assert {d.outcome for d in everything} == {"applied"}


def test_a_move_is_told_with_the_replica_it_left_and_its_end() -> None:
    ends = {r.trajectory_id: r for r in RUN if isinstance(r, rec.TrajectoryEnded)}
    moves = told(Selection(action="migrate")).decisions
    assert moves
    for d in moves:
        segments = [s[1] for s in ends[d.trajectory_id].segments]
        assert (d.source, d.target) in pairwise(segments)
        assert d.fate is not None
        assert d.fate.ended_s == ends[d.trajectory_id].t_s
        assert d.fate.generated_tokens == ends[d.trajectory_id].generated_tokens
    assert {d.source for d in told(Selection(action="place")).decisions} == {""}


def test_a_selection_tells_its_own_and_the_first_of_them() -> None:
    by_step = [told(Selection(step=step)) for step in range(4)]
    assert sum(story.matching for story in by_step) == len(TAKEN)
    assert {d.step for d in by_step[1].decisions} == {1}
    tick = TAKEN[-1].tick
    assert {d.tick for d in told(Selection(tick=tick)).decisions} == {tick}
    both = told(Selection(step=0, action="migrate"))
    assert {(d.step, d.action) for d in both.decisions} == {(0, "migrate")}
    first = told(Selection(step=0), limit=2)
    assert first.matching == by_step[0].matching > 2
    assert first.decisions == by_step[0].decisions[:2]


def test_without_a_selection_the_largest_gains_come_first_and_all_are_counted() -> None:
    story = told(Selection(), limit=5)
    gains = sorted((r.decision.gain_s for r in TAKEN), reverse=True)
    assert [d.gain_s for d in story.decisions] == gains[:5]
    assert story.matching == len(TAKEN)
    assert sum(c.taken for c in story.counts) == sum(c.applied for c in story.counts) == len(TAKEN)
    assert sum(c.gain_s for c in story.counts) == pytest.approx(sum(gains))
    assert sorted(c.action for c in story.counts) == ["defer", "migrate", "place"]


def test_what_predicts_no_gain_is_not_among_the_largest() -> None:
    idle = SyntheticRun(steps=1, groups=2, size=2, steer=False)
    assert told(Selection(), records=list(idle.records())).decisions == []


@pytest.mark.parametrize(
    ("selection", "complaint"),
    [
        (Selection(trajectory=99), "no trajectory 99; the trace has 0 to 35"),
        (Selection(step=9), "no step 9; the trace has 0 to 3"),
    ],
)
def test_what_the_trace_does_not_have_is_said(selection: Selection, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        told(selection)


def test_a_trajectory_nobody_decided_about_has_no_decisions_and_no_error() -> None:
    assert told(Selection(trajectory=3, action="stop")).matching == 0


# One decision at a time


def started() -> list[rec.Record]:
    return [
        rec.RunStarted(
            t_s=0.0, started_unix_s=0.0, config={}, seed=0,
            replicas=[ReplicaInfo(name="r1"), ReplicaInfo(name="r10")],
        ),
        rec.ControllerState(t_s=0.0, state="enforcing", why="test"),
        rec.StepStarted(
            t_s=0.0, step=0, weight_version=0, objective="barrier", groups=1, max_lag=1
        ),
        rec.TrajectoryQueued(t_s=0.0, trajectory_id=0, group_id=0, slot=0),
        rec.PhaseChanged(
            t_s=0.1, trajectory_id=0, old="QUEUED", new="RUNNING", why="", replica="r1",
            generated_tokens=0,
        ),
    ]  # fmt: skip


def decision(action: Action = Action.MIGRATE, **more: Any) -> Decision:
    return Decision(0, action, "mine", more.pop("reason", "because"), **more)


def taken(t_s: float = 1.0, tick: int = 4, **more: Any) -> rec.DecisionTaken:
    said = {"decision": decision(replica="r10"), "enforced": True, "mode": "enforcing", **more}
    return rec.DecisionTaken(t_s=t_s, tick=tick, **said)


def weighed(**seconds: float | None) -> rec.AlternativesWeighed:
    return rec.AlternativesWeighed(t_s=1.0, tick=4, seconds=dict(seconds))


def ended(disposition: str, **more: Any) -> rec.TrajectoryEnded:
    said = {"correctness": "modified", "weight": 1.0, **more}
    return rec.TrajectoryEnded(
        t_s=3.5, trajectory_id=0, group_id=0, slot=0, disposition=disposition,
        generated_tokens=7, segments=[], moves=0, deferred=0, **said,
    )  # fmt: skip


def only(*records: rec.Record) -> Explained:
    (one,) = told(Selection(trajectory=0), records=[*started(), *records]).decisions
    return one


def test_the_alternatives_of_its_tick_are_told_from_the_best() -> None:
    one = only(weighed(default=160.2, isolate=150.1, stuck=None), taken())
    assert one.alternatives == {"default": 160.2, "isolate": 150.1, "stuck": None}
    assert "weighed    isolate 150.1 s, default 160.2 s, stuck without end" in text(one)


def test_alternatives_of_another_tick_are_not_told() -> None:
    assert only(weighed(default=1.0), taken(tick=5)).alternatives == {}


def test_what_might_act_in_its_step_is_told() -> None:
    choice = StackChoice("full", 0.96, "full is believed 6 % faster", {"default": 0.0})
    one = only(rec.StackChosen(t_s=0.5, step=0, choice=choice), taken())
    assert "stack      full, with probability 0.96: full is believed 6 % faster" in text(one)


def test_in_shadow_the_controller_has_weighed_and_the_default_has_not() -> None:
    mine = taken(mode="shadow", enforced=False)
    assert only(weighed(default=1.0), mine).alternatives == {"default": 1.0}
    assert "only recorded (shadow)" in text(only(mine))
    assert only(weighed(default=1.0), taken(mode="shadow")).alternatives == {}


def test_what_the_guard_dropped_is_told_with_its_reason() -> None:
    dropped = rec.DecisionDropped(t_s=1.0, tick=4, decision=decision(replica="r10"), why="too late")
    one = only(weighed(default=1.0), dropped)
    assert (one.dropped, one.outcome, one.enforced) == ("too late", "", False)
    assert one.alternatives == {"default": 1.0}
    assert "dropped by the guard: too late" in text(one)
    assert "migrate r1 -> r10" in text(one)


def test_the_outcome_is_that_of_the_same_tick_and_action() -> None:
    of = {"t_s": 1.0, "trajectory_id": 0, "outcome": "superseded"}
    assert only(taken(), rec.Outcome(**of, tick=4, action="migrate")).outcome == "superseded"
    assert only(taken(), rec.Outcome(**of, tick=5, action="migrate")).outcome == ""
    assert only(taken(), rec.Outcome(**of, tick=4, action="stop")).outcome == ""


def test_the_end_is_told_with_time_tokens_weight_and_who_took_the_slot() -> None:
    coin = taken(decision=decision(Action.CONTINUE, propensity=0.25))
    one = only(coin, ended("finished", weight=4.0))
    assert "finished at 3.500 s (2.500 s later) with 7 tokens, modified, weight 4" in text(one)
    assert "propensity 0.25" in text(one)
    assert "continue on r1" in text(one)
    fresh = rec.TrajectoryQueued(t_s=3.5, trajectory_id=8, group_id=0, slot=0, replaces=0)
    assert text(only(taken(), ended("restarted"), fresh)).endswith("; 8 took its slot")
    assert "had not ended when the trace did" in text(only(taken()))


def test_reasons_are_counted_without_their_figures_and_names() -> None:
    pattern = patterns(["r1", "r10"])
    assert pattern("r10 saves 1.25 s, r1 -3e-4 of 2") == "REPLICA saves N s, REPLICA N of N"
    assert pattern("r100 in p1") == "r100 in p1"
    said = [taken(decision=decision(reason=f"saves {x} s")) for x in (1.5, 2, 0.25)]
    story = told(Selection(trajectory=0), records=[*started(), *said])
    assert [(c.reason, c.taken) for c in story.counts] == [("saves N s", 3)]


def test_the_summary_counts_how_often_each_alternative_was_the_least() -> None:
    records: list[rec.Record] = started()
    for tick, isolate in enumerate((1.0, 3.0, None)):
        seconds = {"default": 2.0, "isolate": isolate}
        records.append(rec.AlternativesWeighed(t_s=1.0, tick=tick, seconds=seconds))
        records += [taken(tick=tick), taken(tick=tick, decision=decision(Action.STOP))]
    lines = "\n".join(summary_lines(told(Selection(), records=records)))
    assert "default: 2 of 3 ticks, on average 2.0 s" in lines
    assert "isolate: 1 of 3 ticks, on average 2.0 s" in lines


def test_a_summary_of_many_reasons_stays_short() -> None:
    said = [taken(decision=decision(reason="why " + "x" * i)) for i in range(40)]
    lines = list(summary_lines(told(Selection(), records=[*started(), *said])))
    assert len(lines) < 20
    assert "... and 25 other reasons" in lines
