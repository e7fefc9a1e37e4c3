"""`steersman tournament`: policies on workloads, in the simulator, one table."""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.controller.checklist import add_tell_argument, told_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steersman.controller.tournament.standing import Row

SEEDS, QUICK_SEEDS = 5, 2
WIDTH = 140
"""Columns of the table where there is no terminal that has a width."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME|PATH.csv",
        help="a workload by name (`--list` shows them), or a table of samples (columns prompt_id, "
        "length; where known reward, truncated, max_tokens, assistant_turns); repeatable (all)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="ENTRY",
        help="a policy of any kind, or the dotted path of your own placement policy, and after "
        "commas what differs from its defaults and from the default stack, e.g. "
        "tail_planner,max_moves=0,length.use_siblings=false,guard.max_deferrals=0; repeatable; "
        "the default of its kind always takes part (all)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="hardware profile of the replicas instead of each workload's own",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help=f"draws of each workload ({SEEDS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"few steps, few workloads, {QUICK_SEEDS} seeds"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="keep every game there, go on where an earlier run stopped, and write the tables "
        "(.md) and a page (.html)",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_tell_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Play, and print the table."""
    from importlib.metadata import version

    from steersman.controller.tournament.cell import Settings
    from steersman.controller.tournament.entries import entries
    from steersman.controller.tournament.schedule import games, play_all
    from steersman.controller.tournament.standing import rows
    from steersman.controller.tournament.store import Store
    from steersman.controller.tournament.told import checklist_of
    from steersman.controller.tournament.workloads import arenas, chosen_arenas
    from steersman.estimators.errors import InvalidInputError

    if args.list:
        _list(arenas().values())
        return 0
    told = told_items(args.tell)
    seeds = args.seeds if args.seeds is not None else QUICK_SEEDS if args.quick else SEEDS
    for name, value in (("seeds", seeds), ("workers", args.workers)):
        if value is not None and value < 1:
            raise InvalidInputError(f"{name} is {value}; valid: 1 or more")
    settings = Settings(version("steersman"), args.quick, args.profile or "")
    chosen = chosen_arenas(args.workload or (), settings)
    wanted = games(chosen, entries(args.policy or ()), seeds)
    if not wanted:
        raise InvalidInputError("none of the policies applies to any of the workloads")
    store = Store(args.out, settings)
    failures = _with_progress(play_all, wanted, settings, store, args.workers)
    order = {game: i for i, game in enumerate(wanted)}
    played = sorted((c for c in store if c.game in order), key=lambda c: order[c.game])
    table = rows(played, [arena.name for arena in chosen if arena.is_stream])
    checklist = checklist_of(table, settings, told)
    if args.out is not None:
        from steersman.controller.tournament.markdown import write_markdown
        from steersman.controller.tournament.page import write_page

        (args.out / "tournament.md").write_text(write_markdown(table, checklist), encoding="utf-8")
        write_page(args.out / "tournament.html", table, settings, told)
    if args.json:
        plain = {"rows": [_plain(row) for row in table], "checklist": checklist.as_dict()}
        print(json.dumps(plain, indent=2))
    else:
        _print(table)
        if args.out is not None:
            print(args.out / "tournament.html")
    for failure in failures:
        game = failure.game
        print(
            f"steersman: {game.policy} failed on {game.workload}, seed {game.seed}: {failure.why}",
            file=sys.stderr,
        )
    return 1 if failures else 0


def _with_progress(play_all: Any, wanted: Any, settings: Any, store: Any, workers: Any) -> Any:
    import os

    from steersman.controller.tournament.console import progress_bar

    with progress_bar() as bar:
        missing = sum(game not in store for game in wanted)
        task = bar.add_task("games", total=missing)
        count = workers or os.cpu_count() or 1
        return play_all(wanted, settings, store, count, lambda: bar.advance(task))


def _plain(row: "Row") -> dict[str, Any]:
    """As JSON can hold it."""
    from dataclasses import asdict

    def known(value: Any) -> Any:
        if isinstance(value, tuple):
            return [known(v) for v in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return {name: known(value) for name, value in asdict(row).items()}


def _print(table: "Sequence[Row]") -> None:
    from rich.table import Table

    from steersman.controller.tournament.console import name_column, output, shown_name
    from steersman.controller.tournament.page import HEAD, figures

    console = output(WIDTH)
    for workload in dict.fromkeys(row.workload for row in table):
        own = [row for row in table if row.workload == workload]
        entry = name_column(HEAD[0], [row.policy for row in own])
        title = f"{workload} (tier: simulation)"
        shown = Table(entry, *HEAD[1:], title=title, title_justify="left")
        for row in sorted(own, key=lambda r: r.makespan_ratio):
            name, *others = figures(row)
            shown.add_row(shown_name(name), *others)
        console.print(shown)


def _list(known: Any) -> None:
    width = max(len(arena.name) for arena in known)
    for arena in known:
        print(f"{arena.name:<{width}}  {arena.summary}")
