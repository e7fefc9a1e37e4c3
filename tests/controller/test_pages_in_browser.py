"""The pages are looked at in a real browser: nothing fails, and every plot and table is drawn."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from support.browser import Seen, look_at
from support.cells import table_row
from support.small_replay import small_comparison, small_workload
from support.synthetic_trace import SyntheticRun

from steersman.controller.replay.page import write_page
from steersman.controller.report import summarize, write_report
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.page import write_page as write_tournament
from steersman.controller.trace import records as rec


def with_kv(run: SyntheticRun) -> Iterator[rec.Record]:
    """The run's trace, its replicas reporting a KV cache that fills with what runs."""
    for record in run.records():
        if isinstance(record, rec.ReplicaReport):
            usage = record.stats.running / 40
            stats = msgspec.structs.replace(record.stats, kv_cache_usage=usage)
            record = msgspec.structs.replace(record, stats=stats)
        yield record


def replay_page(folder: Path) -> Path:
    workload = small_workload(steps=5, groups=4, size=8)
    write_page(folder / "replay.html", small_comparison(workload))
    return folder / "replay.html"


def live_page(folder: Path) -> Path:
    runs = [SyntheticRun(policy="sticky", steer=False, steps=6), SyntheticRun(steps=6)]
    write_report(folder / "live.html", [summarize(with_kv(run)) for run in runs])
    return folder / "live.html"


EXACT = ("sticky_least_inflight", "tail_planner", "my_own.rather_long_module:Policy")
WORKLOADS = [f"a_workload_of_some_kind_{i}" for i in range(12)]


def tournament_page(folder: Path) -> Path:
    """Its table of ratios is wider than the window, as that of all workloads is."""
    rows = [
        table_row(policy, workload, ratio, (ratio - 0.1, ratio + 0.1))
        for workload in WORKLOADS
        for policy, ratio in zip(EXACT, (1.0, 0.8, 1.2), strict=True)
    ]
    rows.append(table_row("april", WORKLOADS[0], 0.7, correctness="corrected"))
    write_tournament(folder / "tournament.html", rows, Settings("1.0", quick=True, profile=""))
    return folder / "tournament.html"


PLOTS = {
    replay_page: (
        "Distribution of the rollout time of a step",
        "Rollout time of each step",
        "Rollout time of each step and its four lower bounds",
        "Efficiency of each step",
        "Slots taken",
        "Replicas without work",
        "KV cache in use",
        "Timeline of step",
        "Timeline of step",
    ),
    live_page: (
        "Rollout time of each step",
        "Mean reward of each step",
        "Length of the answers",
        "Slots taken",
        "Replicas without work",
        "KV cache in use",
        "Timeline of step",
        "Timeline of step",
    ),
    tournament_page: (),
}
TABLES = {replay_page: 3, live_page: 4, tournament_page: 3 + len(WORKLOADS)}
"""The checklist included."""


class LookedAt(NamedTuple):
    """A page, and how the browser shows it."""

    page: Callable[[Path], Path]
    light: Seen
    dark: Seen


@pytest.fixture(scope="module", params=PLOTS, ids=["replay", "live", "tournament"])
def looked_at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LookedAt:
    """The page in light and in dark."""
    folder = tmp_path_factory.mktemp("page")
    page = request.param(folder)
    light, dark = look_at(page, folder), look_at(page, folder, dark=True)
    return LookedAt(request.param, light, dark)


def test_nothing_on_the_page_fails(looked_at: LookedAt) -> None:
    _, *themes = looked_at
    assert [seen.problems for seen in themes] == [[], []]


def test_every_plot_is_drawn(looked_at: LookedAt) -> None:
    page, *themes = looked_at
    titles = PLOTS[page]
    for seen in themes:
        assert len(seen.plots) == len(titles)
        for plot, title in zip(seen.plots, titles, strict=True):
            assert plot.title.startswith(title)
            assert plot.width > 300, title
            assert plot.height > 100, title
            assert plot.marks >= 2, title  # at least one of each policy
            assert plot.outside == 0, title


def test_every_table_is_drawn_and_filled(looked_at: LookedAt) -> None:
    page, *themes = looked_at
    for seen in themes:
        assert len(seen.tables) == TABLES[page]
        for table in seen.tables:
            assert table.rows >= 1
            assert table.columns >= 3
            assert table.hidden == 0


@pytest.mark.parametrize("looked_at", [tournament_page], indirect=True, ids=["tournament"])
def test_gains_and_losses_of_a_tournament_are_told_apart(looked_at: LookedAt) -> None:
    _, *themes = looked_at
    for seen in themes:
        ratios = seen.tables[0]
        assert (ratios.rows, ratios.columns) == (len(EXACT), 2 + len(WORKLOADS))
        assert {*ratios.colours} == {"", "bad", "good"}
        assert len({*ratios.colours.values()}) == 3


def test_labels_do_not_collide(looked_at: LookedAt) -> None:
    _, seen, _ = looked_at
    assert {plot.title: plot.collisions for plot in seen.plots if plot.collisions} == {}


def test_the_page_fits_its_window(looked_at: LookedAt) -> None:
    _, seen, _ = looked_at
    assert seen.too_wide <= 0


def test_the_page_follows_the_readers_theme(looked_at: LookedAt) -> None:
    _, light, dark = looked_at
    assert light.paper != dark.paper


def test_a_bad_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><html><head></head><body><img src='missing.png'>"
        "<script>undefinedFunction()</script><figure>"
        '<svg role="img" aria-label="bare" viewBox="0 0 9 9" width="90" height="90">'
        '<path class="line" d=""/><text class="tick" y="5">one</text>'
        '<text class="tick" y="5">two</text></svg></figure></body></html>'
    )
    seen = look_at(page, tmp_path)
    assert any("undefinedFunction" in problem for problem in seen.problems)
    assert any("missing.png" in problem for problem in seen.problems)
    assert [(plot.marks, plot.collisions) for plot in seen.plots] == [(0, ["one on two"])]
