"""Every report that is written holds the whole reporting checklist, each item with an answer."""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from support.cells import table_row
from support.long_games import made_up_games
from support.quality_study import SyntheticStudy
from support.small_replay import small_comparison, small_workload
from support.synthetic_trace import SyntheticRun

from steersman.controller.checklist import (
    ITEMS,
    Checklist,
    checklist_markdown,
    length_statistics,
    told_items,
)
from steersman.controller.evaluate.curves import curves
from steersman.controller.evaluate.page import write_page as write_evaluation
from steersman.controller.evaluate.told import checklist_of
from steersman.controller.regret.long_runs import long_run
from steersman.controller.regret.page import write_page as write_regret
from steersman.controller.regret.study import DEFAULT, finding
from steersman.controller.replay.page import write_page as write_replay
from steersman.controller.report import summarize, write_report
from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.page import write_page as write_tournament
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.examples.ab import checklist_of as live_checklist
from steersman.examples.paired import Played, Work
from steersman.mechanisms.fleet import Sampling

Told = dict[str, str]


def live(out: Path, told: Told) -> None:
    runs = [SyntheticRun(policy="sticky", steer=False, steps=3), SyntheticRun(steps=3)]
    write_report(out, [summarize(run.records()) for run in runs], told)


def replay(out: Path, told: Told) -> None:
    write_replay(out, small_comparison(small_workload()), told)


def tournament(out: Path, told: Told) -> None:
    rows = [table_row(policy, "strong_tail", 1.0) for policy in ("adaptive", "round_robin")]
    write_tournament(out, rows, Settings("1.0", quick=True, profile=""), told)


def regret(out: Path, told: Told) -> None:
    run = long_run("steady_tail")
    seconds = {DEFAULT: [[12.0] * 6], "learner": [[10.0] * 6]}
    made = finding(run, made_up_games(run.name, seconds), "learner")
    assert made is not None
    write_regret(out, [made], told)


def evaluation(out: Path, told: Told) -> None:
    study = SyntheticStudy().study(np.random.default_rng(0))
    write_evaluation(out, curves(study), checklist_of(study, "uniform", told), study)


PAGES: dict[str, Callable[[Path, Told], None]] = {
    "report": live,
    "replay": replay,
    "tournament": tournament,
    "regret": regret,
    "evaluate": evaluation,
}
NAMED = {"sticky": 6, "ours": 4}
KNOWN_BY_ALL = ("baseline", "phase", "unit", "statistic", "workload", "lever", "quality")


def answers(page: str) -> dict[str, str]:
    """Of the page's checklist, by item."""
    section = re.search(r'<section id="checklist">(.*?)</section>', page, flags=re.DOTALL)
    assert section is not None
    rows = re.findall(
        r'<tr><th scope="row">(.*?)</th><td class="unit">.*?</td><td[^>]*>(.*?)</td></tr>',
        section.group(1),
    )
    return {item.replace(" ", "_"): unescape(answer) for item, answer in rows}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_holds_the_whole_checklist(name: str, tmp_path: Path) -> None:
    PAGES[name](tmp_path / "page.html", {})
    told = answers((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert list(told) == list(ITEMS)
    assert all(answer.strip() for answer in told.values())
    for item in KNOWN_BY_ALL:
        assert not told[item].startswith("not known"), item
    if name != "evaluate":  # a quality log may tell neither
        assert not told["hardware"].startswith("not known")
        assert re.search(r"mean [\d,]+ tokens, median", told["response_lengths"])


@pytest.mark.parametrize("name", PAGES)
def test_what_the_user_tells_is_on_the_page(name: str, tmp_path: Path) -> None:
    PAGES[name](tmp_path / "page.html", {"quality": "pass@1 .61 & falling"})
    told = answers((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert told["quality"] == "pass@1 .61 & falling"


def test_a_live_comparison_tells_all_items() -> None:
    args = Namespace(blocks=2, steps=3, seed=0, replicas=2, free=False)
    played = {name: Played(lengths=Counter({(0, 0): n, (0, 1): 8})) for name, n in NAMED.items()}
    made = live_checklist(args, Work([[[], []]], 2, 8, Sampling()), played)
    assert made.missing == []
    assert made.baseline.startswith("sticky, the first setting")
    assert "ours: 2 answers: mean 6 tokens" in made.response_lengths
    assert "50.0% at the token cap" in made.response_lengths


def test_what_nobody_knows_says_how_to_tell_it() -> None:
    made = Checklist(baseline="x", quality=" ")
    assert made.quality == 'not known: give it with --tell quality="..."'
    assert "quality" in made.missing
    assert "baseline" not in made.missing
    assert not made.told(dict.fromkeys(ITEMS, "y")).missing


def test_an_unknown_item_is_an_error_that_names_the_nearest() -> None:
    assert told_items(["response-lengths=long", "lever = x=y"]) == {
        "response_lengths": "long",
        "lever": "x=y",
    }
    with pytest.raises(UnknownNameError, match="did you mean 'hardware'"):
        told_items(["hardwear=x"])
    with pytest.raises(InvalidInputError, match="tells nothing"):
        told_items(["hardware"])


def test_markdown_has_a_line_for_each_item() -> None:
    lines = checklist_markdown(Checklist(lever="a | b")).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 1 + len(ITEMS)
    assert r"| lever | a \| b |" in lines


def test_lengths_are_told_with_their_tail() -> None:
    said = length_statistics(list(range(1, 101)), at_cap=3)
    assert said == (
        "100 answers: mean 50 tokens, median 51, 90th percentile 91, 99th 100, longest 100; 3.0% "
        "at the token cap"
    )
    assert length_statistics([]) == ""
