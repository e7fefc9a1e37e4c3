"""The load over time is what the attempts add up to; a timeline stays readable, and says how."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.synthetic_trace import SyntheticRun

from steersman.controller.report import html, summarize, write_report
from steersman.controller.report.gantt import LANES, gantt
from steersman.controller.report.load import bin_means, load_of
from steersman.controller.report.summary import Bar
from steersman.controller.trace import records as rec


def bars(count: int, replicas: int, seed: int = 0) -> list[Bar]:
    """Attempts that begin at 0 or later and last up to 10 s."""
    rng = np.random.default_rng(seed)
    start, lasts = rng.uniform(0, 2, count), rng.uniform(0.5, 10, count)
    return [
        Bar(k, f"r{k % replicas}", float(start[k]), 5, float(start[k] + lasts[k]), 7, "finished")
        for k in range(count)
    ]


# Load


def test_a_mean_over_bins_keeps_the_area() -> None:
    rng = np.random.default_rng(1)
    time_s = np.sort(rng.uniform(0, 10, 50))
    time_s[0], value = 0.0, rng.uniform(0, 1, 50)
    at_s = np.linspace(0.0, 10.0, 33)
    area = (value * np.diff(np.append(time_s, 10.0))).sum()
    assert (bin_means(time_s, value, at_s) * np.diff(at_s)).sum() == pytest.approx(area)


def test_nothing_is_made_up_before_the_first_sample() -> None:
    means = bin_means(np.array([1.5]), np.array([0.4]), np.arange(5.0))
    assert np.isnan(means[:2]).all()
    assert means[2:] == pytest.approx([0.4, 0.4])
    assert np.isnan(bin_means(np.zeros(0), np.zeros(0), np.arange(3.0))).all()


def test_slots_taken_add_up_to_the_time_that_attempts_took() -> None:
    some, end_s = bars(20, 2), 13.0
    load = load_of(some, {"r0": 30, "r1": 30}, (0.0, end_s), {})
    spent = sum(bar.end_s - bar.start_s for bar in some)
    assert load.taken.mean() * 60 * end_s == pytest.approx(spent)
    assert not load.has_kv


def test_what_waits_inside_an_engine_takes_no_slot() -> None:
    load = load_of(bars(20, 1), {"r0": 3}, (0.0, 13.0), {})
    assert load.taken.max() == pytest.approx(1.0)


def test_the_bubble_is_the_share_of_replicas_on_which_nothing_runs() -> None:
    one = [Bar(0, "r0", 0.0, 0, 4.0, 7, "finished"), Bar(1, "r1", 0.0, 0, 8.0, 7, "finished")]
    load = load_of(one, {"r0": 1, "r1": 1}, (0.0, 8.0), {})
    assert load.idle[:100] == pytest.approx(0.0)
    assert load.idle[-100:] == pytest.approx(0.5)


def test_the_fullest_cache_is_shown() -> None:
    time_s = np.zeros(1)
    kv = {"r0": (time_s, np.array([0.3])), "r1": (time_s, np.array([0.6]))}
    load = load_of([], {"r0": 1, "r1": 1}, (0.0, 1.0), kv)
    assert load.kv == pytest.approx(0.6)
    assert load.has_kv


# The live page


def reporting(run: SyntheticRun, usage: float) -> Iterator[rec.Record]:
    for record in run.records():
        if isinstance(record, rec.ReplicaReport):
            stats = msgspec.structs.replace(record.stats, kv_cache_usage=usage)
            record = msgspec.structs.replace(record, stats=stats)
        yield record


@pytest.mark.parametrize(("usage", "shown"), [(0.0, False), (0.4, True)])
def test_a_live_page_shows_the_cache_where_the_trace_tells_of_it(
    tmp_path: Path, usage: float, shown: bool
) -> None:
    out = tmp_path / "live.html"
    write_report(out, [summarize(reporting(SyntheticRun(steps=2), usage))])
    page = out.read_text(encoding="utf-8")
    assert ("KV cache in use" in page) is shown
    assert "Slots taken" in page
    assert "Replicas without work" in page


def test_no_two_of_sixteen_runs_look_the_same() -> None:
    assert len({(html.colour(i), html.dash(i)) for i in range(16)}) == 16


# The timeline


def test_a_small_step_is_drawn_whole() -> None:
    drawn = gantt(bars(60, 3), ["r0", "r1", "r2"], (0.0, 13.0), 13.0, "")
    assert drawn.svg.count('class="bar ') == drawn.drawn == drawn.attempts == 60
    assert drawn.left_out == ""


def test_a_large_step_is_cut_and_says_so() -> None:
    names = [f"r{i}" for i in range(100)]
    some = bars(20_000, 100)
    drawn = gantt(some, names, (0.0, 13.0), 13.0, "")
    rows = {float(y) for y in re.findall(r'class="bar [a-z]+" x="[^"]*" y="([^"]*)"', drawn.svg)}
    assert len(rows) <= LANES
    assert drawn.left_out.startswith(f"{drawn.drawn:,} of 20,000 attempts are drawn, on 32 of 100")
    ends = {name: max(b.end_s for b in some if b.replica == name) for name in names}
    for name in (min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)):
        assert f"on {name}:" in drawn.svg
    last = max(some, key=lambda bar: bar.end_s)
    assert f"trajectory {last.trajectory_id} on" in drawn.svg


def test_one_replica_with_many_rows_keeps_those_that_end_last() -> None:
    some = bars(1000, 1)
    drawn = gantt(some, ["r0"], (0.0, 13.0), 13.0, "")
    assert 0 < drawn.drawn < 1000
    assert "replicas" not in drawn.left_out
    latest = sorted(some, key=lambda bar: -bar.end_s)[:10]
    assert all(f"trajectory {bar.trajectory_id} on" in drawn.svg for bar in latest)


def test_names_of_replicas_never_overlap() -> None:
    names = [f"r{i}" for i in range(100)]
    drawn = gantt(bars(100, 100), names, (0.0, 13.0), 13.0, "")
    at = sorted(float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="end">r\d+<', drawn.svg))
    assert len(at) > 10
    assert min(np.diff(at)) >= 12
