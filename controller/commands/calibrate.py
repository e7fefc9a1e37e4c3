"""`steersman calibrate PATH`: how well the estimators would have forecast this run."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PLAN = ("group_size", "prompts_per_step", "passes", "concurrency", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a trace (.jsonl), or a table of samples (.csv, .csv.gz) with the columns prompt_id "
        "and length, and where known source, reward, truncated, max_tokens",
    )
    table = parser.add_argument_group("how steps are made up from a table's samples")
    table.add_argument("--group-size", type=int, metavar="N", help="samples per prompt (8)")
    table.add_argument("--prompts-per-step", type=int, metavar="N", help="(32)")
    table.add_argument("--passes", type=int, metavar="N", help="visits to each prompt (3)")
    table.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="trajectories that run at once (as many as a step has prompts)",
    )
    table.add_argument("--seed", type=int, metavar="N", help="of order and draws (0)")
    parser.add_argument(
        "--length", default="length", metavar="NAME", help="length estimator to score (length)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the scores."""
    from rich.console import Console
    from rich.progress import Progress

    from steersman.controller.calibration.steps import Plan
    from steersman.controller.calibration.summary import TABLES, calibrate, steps_of
    from steersman.controller.plugins import build
    from steersman.estimators.errors import InvalidInputError

    given = {name: value for name in PLAN if (value := getattr(args, name)) is not None}
    if given and not args.path.name.endswith(TABLES):
        option = "--" + next(iter(given)).replace("_", "-")
        raise InvalidInputError(f"{option} is for tables; a trace has its own steps")
    plan = Plan(**given)
    estimator = build("estimators.length", args.length, {})
    steps = steps_of(args.path, plan)
    shown = Console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as progress:
        task = progress.add_task("replaying", total=len(steps))
        scores = calibrate(steps, estimator, lambda: progress.advance(task))
    if args.json:
        print(json.dumps(scores, indent=2))
    else:
        _print(scores)
    return 0


def _print(scores: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    work = scores["work"]
    console.print(
        f"{work['trajectories']} trajectories in {work['steps']} steps; {work['forecasts_scored']} "
        f"forecasts of lengths, {work['groups_rewarded']} of groups.  Tier: replay of real samples."
    )
    for what in ("length", "success"):
        own = scores[what]
        if own is None:
            console.print(f"{what}: no rewards, nothing to score")
            continue
        rows = {"steersman": own, **own["baselines"]}
        names = [name for name in own if name != "baselines"]
        table = Table(what, *names)
        for name, row in rows.items():
            table.add_row(name, *(_figure(row[column]) for column in names))
        console.print(table)


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"
