"""`steersman regret`: what a policy that learns pays for learning, over hundreds of steps."""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.controller.checklist import add_tell_argument, told_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steersman.controller.regret.games import LongGame
    from steersman.controller.regret.study import Finding

STEPS, LEAST_STEPS, SEEDS = 300, 3, 2
WIDTH = 160
"""Columns of the table where there is no terminal that has a width."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--policy",
        action="append",
        metavar="ENTRY",
        help="a placement policy, and after commas what differs from its defaults and from the "
        "default stack, e.g. tail_planner,max_moves=0,length.use_siblings=false; repeatable: the "
        "first is judged, the others and the default are the fixed ones",
    )
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME",
        help="a long run (`--list` shows them), or a workload of `steersman tournament` whose "
        "steps wait for all their answers; repeatable (all long runs)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"({STEPS})")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="N", help=f"draws of each workload ({SEEDS})"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write regret.json, with the seconds of every step, and a page with the curves",
    )
    parser.add_argument("--list", action="store_true", help="list the long runs and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_tell_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Play, compare and print."""
    from steersman.controller.regret.games import LongGame, contestants
    from steersman.controller.regret.long_runs import long_run, long_runs
    from steersman.controller.regret.study import finding
    from steersman.estimators.errors import InvalidInputError

    if args.list:
        for known in long_runs().values():
            print(f"{known.name:<14}  {known.summary}")
        return 0
    told = told_items(args.tell)
    for name, least in (("steps", LEAST_STEPS), ("seeds", 1), ("workers", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InvalidInputError(f"{name} is {value}; valid: {least} or more")
    runs = [long_run(name) for name in dict.fromkeys(args.workload or long_runs())]
    judged, fixed = contestants(args.policy or ())
    _make_folder(args.out)
    games = [
        LongGame(each.name, entry, seed, args.steps)
        for seed in range(args.seeds)
        for each in runs
        for entry in (judged, *fixed)
    ]
    played, failures = _with_progress(games, args.workers or os.cpu_count() or 1)
    for failure in failures:
        game = failure.game
        print(
            f"steersman: {game.entry} failed on {game.workload}, seed {game.seed}: {failure.why}",
            file=sys.stderr,
        )
    of_run = [[one for one in played if one.game.workload == each.name] for each in runs]
    made = [finding(each, own, judged) for each, own in zip(runs, of_run, strict=True)]
    _tell([one for one in made if one is not None], args.out, args.json, told)
    return 1 if failures else 0


def _make_folder(out: Path | None) -> None:
    """Before minutes are spent."""
    from steersman.estimators.errors import InvalidInputError

    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(f"cannot write to {out}: {error.strerror}") from error


def _with_progress(games: "Sequence[LongGame]", workers: int) -> Any:
    from steersman.controller.regret.games import play_all
    from steersman.controller.tournament.console import progress_bar

    with progress_bar() as bar:
        task = bar.add_task("steps", total=sum(game.steps for game in games))
        return play_all(games, workers, lambda steps: bar.update(task, completed=steps))


def _tell(
    findings: "Sequence[Finding]", out: Path | None, as_json: bool, told: dict[str, str]
) -> None:
    from steersman.controller.regret.told import checklist_of

    plain: dict[str, Any] = {
        "tier": "simulation",
        "workloads": [_plain(one) for one in findings],
    }
    if findings:
        plain["checklist"] = checklist_of(findings, told).as_dict()
    text = json.dumps(plain)
    if out is not None and findings:
        from steersman.controller.regret.page import write_page

        (out / "regret.json").write_text(text + "\n", encoding="utf-8")
        write_page(out / "regret.html", findings, told)
    if as_json:
        print(text)
        return
    for one in findings:
        _print(one)
    if out is not None and findings:
        print(out / "regret.html")


def _plain(one: "Finding") -> dict[str, Any]:
    """As JSON can hold it."""
    from dataclasses import asdict

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [known(v) for v in value]
        if isinstance(value, float):
            return round(value, 6) if math.isfinite(value) else None
        return value

    whole = known(asdict(one))
    for name in ("against_best", "against_default"):
        whole[name]["total_s"] = round(getattr(one, name).total_s, 6)
    return dict(whole)


def _print(one: "Finding") -> None:
    from rich.table import Table

    from steersman.controller.regret.study import (
        CHANGE_HEAD,
        HEAD,
        change_figures,
        figures,
        sentences,
    )
    from steersman.controller.tournament.console import name_column, output, shown_name

    console = output(WIDTH)
    entry = name_column(HEAD[0], [line.entry for line in one.lines])
    title = f"{one.workload} (tier: simulation)"
    shown = Table(entry, *HEAD[1:], title=title, title_justify="left")
    for line in one.lines:
        name, *others = figures(line, one)
        shown.add_row(shown_name(name), *others)
    console.print(shown)
    for text in sentences(one):
        console.print(text, markup=False, highlight=False)
    regimes = Table(*CHANGE_HEAD)
    for change in one.changes:
        step, regime, best, *others = change_figures(change)
        regimes.add_row(step, regime, shown_name(best), *others)
    console.print(regimes)
