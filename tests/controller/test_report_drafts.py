"""A report says what was drafted, from where, and what came of it."""

from pathlib import Path

from msgspec.structs import replace
from support.synthetic_trace import SyntheticRun

from steersman.controller.report import summarize, write_report
from steersman.controller.report.drafts import DraftCounts, Drafted, total
from steersman.controller.trace import records as rec
from steersman.mechanisms.fleet import ReplicaStats
from steersman.policies.decision import Action

PLAIN = list(SyntheticRun(policy="sticky_least_inflight", steer=False, steps=4).records())


def report(t_s: float, **classes: list[int]) -> rec.ReplicaReport:
    stats = ReplicaStats(draft_classes=classes)
    return rec.ReplicaReport(t_s=t_s, replica="drafter", alive=True, stats=stats)


def with_drafts() -> list[rec.Record]:
    """Three drafts a step on a replica of their own: the others report that they draft nothing."""
    reports = [report(0.0)]
    starts = [r.t_s for r in PLAIN if isinstance(r, rec.StepStarted)]
    for n, start_s in enumerate(starts[:4], 1):
        reports.append(report(start_s + 0.01, self=[n, 8 * n, n], sibling=[2 * n, 16 * n, 8 * n]))
    return sorted([*PLAIN, *reports], key=lambda record: record.t_s)


def test_what_engines_drafted_before_the_run_is_not_the_run_s() -> None:
    counts = DraftCounts()
    assert not counts.grown("a", {"self": [100, 800, 300]})
    assert total(counts.grown("a", {"self": [110, 880, 320]})) == Drafted(10, 80, 20)
    assert not counts.grown("b", {"self": [7, 7, 7]})


def test_an_engine_that_was_started_anew_counts_from_nothing() -> None:
    counts = DraftCounts()
    counts.grown("a", {"self": [100, 800, 300], "other": [5, 5, 5]})
    grown = counts.grown("a", {"self": [3, 24, 6]})
    assert total(grown) == total(grown, "self") == Drafted(3, 24, 6)


def test_drafts_are_counted_by_source_and_step() -> None:
    run = summarize(with_drafts())
    assert total(run.drafts, "self") == Drafted(4, 32, 4)
    assert total(run.drafts, "sibling") == Drafted(8, 64, 32)
    assert [step.drafts for step in run.timed_steps] == [3, 3, 3, 3]
    assert [step.accepted_per_draft for step in run.timed_steps] == [3.0] * 4
    assert run.steps[-1].accepted_per_draft is None


def test_to_draft_for_a_trajectory_is_not_to_interrupt_it() -> None:
    taken = next(r for r in PLAIN if isinstance(r, rec.DecisionTaken))
    decision = replace(taken.decision, action=Action.SPECULATE, draft_tokens=4, replica="")
    drafting = replace(taken, decision=decision)
    assert summarize([*PLAIN, drafting]).decisions == summarize(PLAIN).decisions == []


def test_the_page_shows_drafts_only_where_there_were_any(tmp_path: Path) -> None:
    def page(*runs: list[rec.Record]) -> str:
        write_report(tmp_path / "report.html", [summarize(run) for run in runs])
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    assert "drafted" not in page(PLAIN)
    html = page(PLAIN, with_drafts())
    assert "Tokens drafted ahead" in html
    assert "finished samples of its group" in html
    assert "earlier samples of its prompt" not in html
    row = html[html.index("finished samples of its group") :][:200]
    assert [cell.split("</td>")[0] for cell in row.split("<td>")[1:5]] == [
        "8",
        "8.00",
        "4.00",
        "32",
    ]
