"""`steersman tune FILE --profile P -o OUT.toml`: a policy's options searched by replay."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steersman.controller.commands.replay import add_workload_arguments

if TYPE_CHECKING:
    from steersman.controller.replay.tuning import Tuning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_workload_arguments(parser)
    parser.add_argument(
        "--policy", default="tail_planner", metavar="NAME", help="placement policy (tail_planner)"
    )
    parser.add_argument(
        "--trials", type=int, default=40, metavar="N", help="replays, the defaults first (40)"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.34,
        metavar="SHARE",
        help="of the steps: the last ones, on which the find is judged (0.34)",
    )
    parser.add_argument(
        "--imputations",
        type=int,
        default=1,
        metavar="N",
        help="times that lengths which were cut off are drawn anew, for every trial (1)",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FILE.toml",
        help="the configuration to write: with the tuned options if they hold on the held-out "
        "steps, else with the defaults",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Search, judge, write and print."""
    from dataclasses import asdict

    import msgspec
    from rich.console import Console
    from rich.progress import Progress

    from steersman.controller.replay.study import Study
    from steersman.controller.replay.tuned_file import check_target, write_config
    from steersman.controller.replay.tuning import Settings, replayed_steps, tune

    check_target(args.out)
    settings = Settings(args.policy, args.trials, args.held_out, args.imputations)
    study = Study.of(args)
    console = Console(stderr=True)
    # where nobody watches it would leave an empty line, before an error's one line too
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("tuning", total=replayed_steps(study, settings))
        found = tune(study, settings, lambda: progress.advance(task))
    write_config(args.out, args.path, study, settings, found)
    for warning in found.verdict.warnings:
        print(f"steersman: warning: {warning}", file=sys.stderr)
    if args.json:
        summary = {
            **asdict(found),
            "config": msgspec.to_builtins(found.config),
            "assumed": list(study.workload.assumed),
            "file": str(args.out),
        }
        print(json.dumps(summary, indent=2))
    else:
        _print(found, list(study.workload.assumed))
        print(args.out)
    return 0


def _print(found: "Tuning", assumed: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from steersman.controller.replay.tuned_file import shown

    console = Console(file=sys.stdout)
    columns = {
        "tuned": found.tuned,
        "defaults": found.defaults,
        found.trainer.policy: found.trainer,
    }
    table = Table(f"tier: {found.tier}", *columns)
    own = columns.values()
    table.add_row("rollout", *(f"{c.total_s:.1f} s" for c in own))
    table.add_row("over the defaults' (90 %)", *(shown(c.over_defaults) for c in own))
    table.add_row(f"over {found.trainer.policy}'s", *(shown(c.over_trainer) for c in own))
    table.add_row("migrated, deferred", *(f"{c.moves:,}, {c.deferred:,}" for c in own))
    table.add_row(
        "mean length kept, asked",
        *(f"{c.mean_length_kept:.0f}, {c.mean_length_asked:.0f}" for c in own),
    )
    table.add_row("load beyond the profile's", *(f"{c.unsupported_share:.1%}" for c in own))
    print(f"On the {found.held_out_steps} held-out steps:")
    console.print(table)
    print(
        f"The best of {len(found.trials_s)} trials over the defaults, on the {found.tuning_steps} "
        f"steps tuned on: {shown(found.on_tuning_steps)}."
    )
    for option, value in found.tuned_options.items():
        print(f"  {option:<14} {value:<8} (default {found.default_options[option]})")
    for sentence in (found.verdict.sentence, *(f"assumed: {line}" for line in assumed)):
        print(f"{sentence[0].upper()}{sentence[1:]}.")
