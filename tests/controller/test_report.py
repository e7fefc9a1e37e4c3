"""The report says what the trace says, and nothing that needs a network to be read."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.synthetic_trace import SyntheticRun

from steersman.controller.report import RunSummary, charts, summarize, write_report
from steersman.controller.report.gantt import gantt
from steersman.controller.report.summary import distinguished
from steersman.controller.report.svg import ticks
from steersman.controller.trace import records as rec
from steersman.estimators.errors import InvalidInputError

STEERED = list(SyntheticRun(steps=6).records())
PLAIN = list(SyntheticRun(policy="sticky_least_inflight", steer=False, steps=6).records())


def page(tmp_path: Path, *runs: RunSummary) -> str:
    write_report(tmp_path / "out" / "report.html", runs)
    return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


# The numbers


def test_every_answer_and_token_of_the_trace_is_counted_once() -> None:
    run = summarize(STEERED)
    ended = [r for r in STEERED if isinstance(r, rec.TrajectoryEnded)]
    assert len(run.lengths) == len(ended) == run.asked == 6 * 6 * 8
    assert run.tokens == sum(r.generated_tokens for r in ended)
    assert run.tokens == sum(step.tokens for step in run.steps)
    assert sum(run.total(name) for name in ("finished", "truncated", "other")) == len(ended)


def test_moves_are_counted_where_they_happened() -> None:
    run = summarize(STEERED)
    ended = [r for r in STEERED if isinstance(r, rec.TrajectoryEnded)]
    assert run.total("deferred") == sum(r.deferred for r in ended) > 0
    assert run.total("migrated") == sum(r.moves - r.deferred for r in ended) > 0
    assert run.total("resumed") == run.total("deferred")
    assert run.steps[0].resumed == 0
    assert run.steps[1].resumed == run.steps[0].deferred


def test_the_final_drain_is_in_the_total_and_not_among_the_steps() -> None:
    run = summarize(STEERED)
    assert [step.drains for step in run.steps] == [False] * 6 + [True]
    assert len(run.timed_steps) == 6
    drained = run.steps[-1].seconds
    assert run.rollout_s == pytest.approx(sum(s.seconds for s in run.timed_steps) + drained)


def test_answers_that_came_late_are_missing_from_the_length_kept() -> None:
    run = summarize(STEERED)
    assert len(run.on_time_lengths) < len(run.lengths)
    plain = summarize(PLAIN)
    assert plain.mean_length_kept == plain.mean_length_asked


def test_what_a_step_writes_before_its_own_record_still_belongs_to_it() -> None:
    shuffled = list(STEERED)
    at = [i for i, r in enumerate(shuffled) if isinstance(r, rec.StepStarted)][2]
    started = shuffled.pop(at)
    admitted = next(i for i in range(at, len(shuffled)) if shuffled[i].t_s > started.t_s)
    shuffled.insert(admitted, started)
    assert summarize(shuffled).steps == summarize(STEERED).steps


def test_a_lost_and_a_doubled_answer_are_seen() -> None:
    assert (summarize(STEERED).lost, summarize(STEERED).doubled) == (0, 0)
    at = next(i for i, r in enumerate(STEERED) if isinstance(r, rec.TrajectoryEnded))
    without = summarize([*STEERED[:at], *STEERED[at + 1 :]])
    assert (without.lost, without.doubled) == (1, 0)
    ended = STEERED[at]
    assert isinstance(ended, rec.TrajectoryEnded)
    again = rec.TrajectoryEnded(
        t_s=ended.t_s,
        trajectory_id=10**6,
        group_id=ended.group_id,
        slot=ended.slot,
        disposition="finished",
        correctness="exact",
        weight=1.0,
        generated_tokens=0,
        segments=[],
        moves=0,
        deferred=0,
    )
    doubled = summarize([*STEERED, again])
    assert (doubled.lost, doubled.doubled) == (0, 1)
    assert doubled.problems


def test_decisions_are_ranked_by_what_they_promised() -> None:
    run = summarize(STEERED)
    worth = [d.gain_s - d.cost_s for d in run.decisions]
    assert worth == sorted(worth, reverse=True)
    assert {d.action for d in run.decisions} == {"migrate", "defer"}
    assert {d.outcome for d in run.decisions} == {"applied"}


def test_a_degenerate_group_is_one_without_a_difference_in_reward() -> None:
    same = [
        rec.Rewarded(t_s=r.t_s, trajectory_id=r.trajectory_id, reward=1.0)
        if isinstance(r, rec.Rewarded)
        else r
        for r in STEERED
    ]
    run = summarize(same)
    assert run.degenerate_groups == run.rewarded_groups == 36
    assert run.edge_rewards() == (1.0, 1.0)


def test_runs_of_one_policy_are_told_apart_by_what_else_was_set() -> None:
    run = RunSummary(policy="a", levers={"placement": "a", "speculation": "unchanged"})
    drafting = RunSummary(policy="a", levers={"placement": "a", "speculation": "latch,k=4"})
    other = RunSummary(policy="b", levers={"placement": "b", "speculation": "latch"})
    names = [each.policy for each in distinguished([run, drafting, other])]
    assert names == ["a, unchanged", "a, latch,k=4", "b"]
    assert run.policy == "a"


# The page


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    html = page(tmp_path, summarize(PLAIN), summarize(STEERED))
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", html)


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    html = page(tmp_path, summarize(PLAIN), summarize(STEERED))
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    for tag in ("section", "figure", "table", "tr", "td", "div", "ul", "p", "h2"):
        assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag


def test_names_from_a_trace_cannot_break_the_page(tmp_path: Path) -> None:
    run = summarize(list(SyntheticRun(policy="<b>&'\"", steps=2).records()))
    assert "<b>&'" not in page(tmp_path, run)


def test_lost_answers_are_shown_in_red(tmp_path: Path) -> None:
    run = summarize(STEERED)
    assert 'class="bad"' not in page(tmp_path, run)
    run.lost = 2
    assert '<td class="bad">2</td>' in page(tmp_path, run)


def test_a_run_that_did_nothing_can_be_reported(tmp_path: Path) -> None:
    empty = [r for r in STEERED if isinstance(r, rec.RunStarted | rec.RunEnded)]
    assert "none" in page(tmp_path, summarize(empty))


def test_a_run_that_was_killed_can_be_reported(tmp_path: Path) -> None:
    assert "the run has no end" in page(tmp_path, summarize(STEERED[: len(STEERED) // 3]))


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least one run"):
        write_report(tmp_path / "x.html", [])


def test_the_timeline_holds_every_attempt_of_its_step() -> None:
    run = summarize(STEERED)
    step = charts.busiest_step([run])
    assert step is not None
    chosen = run.steps[step]
    span_s = (chosen.started_s, chosen.started_s + chosen.seconds)
    picture = gantt(run.bars, run.replicas, span_s, chosen.seconds, "").svg
    inside = [b for b in run.bars if 0 <= b.start_s - chosen.started_s < chosen.seconds]
    assert picture.count('class="bar ') == len(inside)
    assert picture.count('class="mark ') == chosen.migrated + chosen.deferred


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 48, [0, 10, 20, 30, 40]),
        (3, 3, [3]),
        (0, 0.03, [0, 0.01, 0.02, 0.03]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
