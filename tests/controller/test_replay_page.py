"""The page of a replay says what the comparison says, and what it rests on."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from support.small_replay import small_comparison, small_workload

from steersman.controller.replay import plots
from steersman.controller.replay.headline import ROWS
from steersman.controller.replay.page import STEPS_SHOWN, write_page
from steersman.controller.replay.picture import replay_bars, replay_load, slowest_step
from steersman.controller.replay.run import Options, StepResult
from steersman.controller.replay.study import Comparison

CENSORED = small_comparison(small_workload(censored=True))


def page(tmp_path: Path, comparison: Comparison = CENSORED) -> str:
    write_page(tmp_path / "out" / "replay.html", comparison)
    return (tmp_path / "out" / "replay.html").read_text(encoding="utf-8")


def with_steps(comparison: Comparison, steps: Sequence[StepResult]) -> Comparison:
    """The last policy's first replay has taken these steps."""
    *others, last = comparison.results
    changed = [replace(last[0], steps=list(steps)), *last[1:]]
    return replace(comparison, results=[*others, changed])


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", page(tmp_path))


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    html = page(tmp_path)
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    for tag in ("section", "figure", "table", "tr", "td", "th", "div", "ul", "li", "p", "h2", "b"):
        assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag


def test_every_figure_of_the_terminal_is_on_the_page(tmp_path: Path) -> None:
    html = page(tmp_path)
    for figure in ROWS.values():
        cells = "".join(f"<td>{figure(summary)}</td>" for summary in CENSORED.summaries)
        assert cells in html


def test_the_page_says_what_it_is_and_what_it_rests_on(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert "tier: simulation" in html
    assert "<li>every prompt has 20 &lt;tokens&gt;.</li>" in html
    assert "drawn 2 times" in html
    assert "fitted on batches of 1 to 4" in html


def test_load_beyond_the_profile_is_warned_of(tmp_path: Path) -> None:
    for share, warned in ((0.23, True), (0.01, False)):
        said = [replace(s, unsupported_share=share) for s in CENSORED.summaries]
        html = page(tmp_path, replace(CENSORED, summaries=said))
        assert f">{share:.1%}</b>" in html
        assert ('class="bad"' in html) is warned


def test_no_step_is_faster_than_its_bounds() -> None:
    best = np.maximum.reduce(list(plots.bounds_s(CENSORED).values()))
    for some in plots.spans(CENSORED):
        achieved = np.stack(some)
        assert achieved.shape == best.shape == (2, 2)
        assert (achieved >= best).all()


def test_the_timeline_holds_every_attempt_of_the_slowest_step(tmp_path: Path) -> None:
    first = [runs[0] for runs in CENSORED.results]
    number = slowest_step(first)
    longest = max(step.makespan_s for result in first for step in result.steps)
    assert longest in [result.steps[number].makespan_s for result in first]
    attempts = 0
    for result in first:
        step = result.steps[number]
        bars = replay_bars(result, step, CENSORED.workloads[0], CENSORED.plan)
        asked = CENSORED.workloads[0].steps[number]
        assert sum(bar.tokens for bar in bars) == asked.length.sum() == step.tokens
        attempts += len(bars)
    assert page(tmp_path).count('class="bar ') == attempts


def test_the_load_is_that_of_the_step() -> None:
    result = CENSORED.results[0][0]
    step = result.steps[1]
    bars = replay_bars(result, step, CENSORED.workloads[0], CENSORED.plan)
    load = replay_load(result, step, bars, CENSORED.plan)
    assert load.edges_s[[0, -1]] == pytest.approx([0.0, step.makespan_s])
    spent = sum(bar.end_s - bar.start_s for bar in bars)
    assert load.taken.mean() * 12 * step.makespan_s == pytest.approx(spent)
    assert load.has_kv
    assert load.kv.max() <= 1.0


def test_the_final_drain_is_a_row_of_its_own_and_said_to_be_spread(tmp_path: Path) -> None:
    assert "drain" not in page(tmp_path)
    own = CENSORED.results[-1][0].steps
    drain = replace(own[-1], step=2, asked=0, tokens=77_777, mean_length_kept=float("nan"))
    html = page(tmp_path, with_steps(CENSORED, [*own, drain]))
    assert "<td>2, drain</td>" in html
    assert "<td>77,777</td>" in html
    assert "final drain is spread over the steps" in html
    assert "nan" not in re.sub(r"<style>.*</style>", "", html)


def test_a_long_run_shows_the_work_of_its_slowest_steps(tmp_path: Path) -> None:
    many = small_comparison(small_workload(steps=STEPS_SHOWN + 5, groups=1), imputations=1)
    html = page(tmp_path, many)
    assert f"The {STEPS_SHOWN} slowest of {STEPS_SHOWN + 5} steps" in html
    work = html[html.index("<h2>Work done</h2>") : html.index('<section id="checklist">')]
    assert work.count('<th scope="row">') == 2 * STEPS_SHOWN
    steps = [step for runs in many.results for step in runs[0].steps]
    assert f"<td>{max(step.makespan_s for step in steps):.2f}</td>" in work


def test_a_stream_is_shown_by_its_batches(tmp_path: Path) -> None:
    stream = small_comparison(
        small_workload(steps=4), imputations=1, options=Options(inflight_groups=3, batch_groups=2)
    )
    html = page(tmp_path, stream)
    assert "Overlapping steps, 32 trajectories" in html
    assert "Efficiency of each step" not in html
    assert "one sample, which has no interval" in html
    first = [runs[0] for runs in stream.results]
    number = slowest_step(first)
    step = first[0].steps[number]
    bars = replay_bars(first[0], step, stream.workloads[0], stream.plan)
    # what began before the batch and goes on in it is part of its load
    assert any(bar.start_s < step.start_s < bar.end_s for bar in bars)


def test_one_policy_on_one_step_makes_a_page(tmp_path: Path) -> None:
    one = small_comparison(small_workload(steps=1, groups=1, size=1), ["round_robin"], 1)
    html = page(tmp_path, one)
    assert "<h1>round_robin</h1>" in html
    assert "No length in the log was cut off" in html


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    named = [replace(s, policy="<b>&'\"") for s in CENSORED.summaries]
    plan = replace(CENSORED.plan, profile=replace(CENSORED.plan.profile, name="<i>x"))
    html = page(tmp_path, replace(CENSORED, summaries=named, plan=plan))
    assert "<b>&'" not in html
    assert "<i>x" not in html
