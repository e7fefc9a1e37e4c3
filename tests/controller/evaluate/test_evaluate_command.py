"""`steersman evaluate`: tables, JSON and pages; one line and exit code 2 for what is missing."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.browser import look_at
from support.quality_study import SyntheticStudy

from steersman.controller.checklist import ITEMS
from steersman.controller.cli import main
from steersman.controller.evaluate.quality_log import QualityLog

ARMS = {"base": 1.0, "a": 0.7, "b": 0.8, "both": 0.56}
ACTIONS = {
    "curves": [],
    "matched": [],
    "control": ["--selection", "a", "--control", "b", "--baseline", "base"],
    "ablation": ["--arm", "base", "--arm", "a", "--arm", "both"],
    "staleness": ["--lag", "base=0", "--lag", "a=1", "--lag", "b=2", "--lag", "both=4"],
    "compose": ["--baseline", "base", "--a", "a", "--b", "b", "--both", "both"],
    "checklist": [],
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four arms."""
    path = tmp_path_factory.mktemp("study") / "log.jsonl"
    with QualityLog(path, {"metric": "pass@1", "hardware": "one laptop"}) as log:
        for point in SyntheticStudy(arms=ARMS).points(np.random.default_rng(0)):
            log.append(point)
    return path


def run(*argv: object) -> int:
    """The exit code, however it comes."""
    try:
        return main([str(arg) for arg in argv])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_prints_a_table_and_a_sentence(
    action: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", action, log, *ACTIONS[action]) == 0
    shown = capsys.readouterr().out
    assert "┏" in shown
    assert shown.rstrip().endswith((".", ")."))


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_json_with_the_whole_checklist(
    action: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", action, log, *ACTIONS[action], "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]
    assert list(told["checklist"]) == list(ITEMS)
    assert told["checklist"]["hardware"] == "one laptop"


def test_the_user_s_word_stands_over_the_log_s(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", "curves", log, "--json", "--tell", "hardware=8 x H200") == 0
    assert json.loads(capsys.readouterr().out)["checklist"]["hardware"] == "8 x H200"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["curves", "LOG", "--baseline", "bse"], "unknown arm 'bse'; did you mean 'base'?"),
        (["control", "LOG", "--selection", "a"], "arguments are required: --control"),
        (["control", "LOG", "--selection", "a", "--control", "rnd"], "unknown arm 'rnd'"),
        (["compose", "LOG", "--baseline", "base", "--a", "a", "--b", "b"], "required: --both"),
        (["staleness", "LOG", "--lag", "base=x"], "--lag 'base=x'; valid: ARM=N"),
        (["staleness", "LOG", "--lag", "base=1"], "the lag bound of arm 'a' is not known"),
        (["matched", "LOG", "--at", "5"], "--at needs one --axis"),
        (["curves", "LOG", "--effect", "1"], "--effect is 1.0; valid: a ratio"),
        (["curves", "LOG", "--tell", "hardwre=x"], "did you mean 'hardware'?"),
        (["curves", "LOG", "--tell", "hardware="], "valid: ITEM=TEXT"),
        (["curves", "/no/such.jsonl"], "/no/such.jsonl: No such file"),
        (["acceptance", "LOG"], "is not a trace"),
        (["curvs", "LOG"], "invalid choice: 'curvs'"),
    ],
)
def test_what_is_missing_is_one_line_and_exit_code_2(
    argv: list[str], message: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", *(str(log) if a == "LOG" else a for a in argv)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("action", ACTIONS)
def test_the_page_is_drawn_in_a_browser(action: str, log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("evaluate", action, log, *ACTIONS[action], "-o", page) == 0
    seen = look_at(page, tmp_path)
    assert seen.problems == []
    assert seen.too_wide <= 0
    assert len(seen.plots) == {"curves": 6, "matched": 3, "checklist": 0}.get(action, 1)
    for plot in seen.plots:
        assert (plot.outside, plot.collisions) == (0, []), plot.title
        assert plot.marks >= 1
    assert all(table.hidden == 0 for table in seen.tables)


def test_the_same_study_gives_the_same_page(log: Path, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        assert run("evaluate", "curves", log, "--axis", "tokens", "-o", tmp_path / name) == 0
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
