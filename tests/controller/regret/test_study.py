"""What is made of a workload's games, and its page."""

import re
from pathlib import Path
from xml.etree import ElementTree

from support.long_games import made_up_games

from steersman.controller.regret.long_runs import long_run
from steersman.controller.regret.page import write_page
from steersman.controller.regret.study import DEFAULT, Finding, figures, finding, sentences

LONG = "tail_planner,max_moves=0,length.use_history=false"
RUN = long_run("changing")
SECONDS = {
    DEFAULT: [[12.0] * 30, [12.0] * 30],
    LONG: [[10.0] * 10 + [12.0] * 20] * 2,
    "learner": [[12.0] * 3 + [10.0] * 7 + [12.0] * 20] * 2,
}


def found() -> Finding:
    made = finding(RUN, made_up_games("changing", SECONDS), "learner")
    assert made is not None
    return made


def test_the_judged_entry_is_compared_with_the_best_fixed_one_and_with_the_default() -> None:
    one = found()
    assert (one.best, one.against_best.total_s, one.against_default.total_s) == (LONG, 6.0, -14.0)
    assert [line.entry for line in one.lines] == ["learner", DEFAULT, LONG]
    assert one.changes[0].best == LONG
    assert one.changes[0].steps_until_near == (2, 2)
    assert figures(one.lines[2], one)[4:7] == ["best fixed", "-", "-"]


def test_where_the_default_is_the_best_fixed_entry_it_is_said_once() -> None:
    games = made_up_games("changing", {DEFAULT: [[1.0] * 6], "learner": [[2.0] * 6]})
    one = finding(RUN, games, "learner")
    assert one is not None
    assert sentences(one) == [
        f"Regret of learner against {DEFAULT}: +6.0 s in 6 steps, grows like steps^1.00 in the "
        "second half; per step by thirds +1.00 s (+100.0%), +1.00 s (+100.0%), +1.00 s (+100.0%)."
    ]


def test_an_entry_without_all_seeds_is_left_out_and_nothing_is_said_without_the_judged() -> None:
    games = made_up_games("changing", {**SECONDS, "half": [[1.0] * 30]})
    one = finding(RUN, games, "learner")
    assert one is not None
    assert "half" not in [line.entry for line in one.lines]
    assert finding(RUN, games, "half") is None
    assert finding(RUN, games, "absent") is None
    assert finding(RUN, [], "learner") is None


def test_the_page_draws_every_entry_and_marks_the_regimes(tmp_path: Path) -> None:
    write_page(tmp_path / "regret.html", [found()])
    page = (tmp_path / "regret.html").read_text(encoding="utf-8")
    main = re.search(r"<main>.*</main>", page, flags=re.DOTALL)
    assert main is not None
    root = ElementTree.fromstring(main.group())
    plots = [svg for svg in root.iter("svg") if svg.get("role") == "img"]
    assert [svg.get("aria-label") for svg in plots] == [
        "Cumulative regret", "Seconds over the best's",
    ]  # fmt: skip
    for svg in plots:
        assert len([path for path in svg.iter("path") if "line" in (path.get("class") or "")]) == 3
        assert [text.text for text in svg.iter("text") if text.get("class") == "note"] == [
            "waves", "agents",
        ]  # fmt: skip
    entries, regimes, _checklist = root.iter("table")
    assert len([*entries.iter("tr")]) == 1 + 3
    assert len([*regimes.iter("tr")]) == 1 + 3
    assert "tier: simulation" in "".join(root.itertext())
    assert "length.use_history=false" in "".join(root.itertext())
