"""`steersman replay FILE --policy A --policy B --profile P`: policies on a run's own lengths."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steersman.controller.checklist import add_tell_argument, told_items

if TYPE_CHECKING:
    from steersman.controller.replay.summary import PolicySummary


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """What is replayed, and on what."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="FILE",
        help="a run table (.parquet, from `steersman import`), a trace (.jsonl) or a table of "
        "samples (.csv, .csv.gz)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="hardware profile of a replica: a shipped one (`steersman profile list`) or a file",
    )
    parser.add_argument("--replicas", type=int, default=8, metavar="N", help="(8)")
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="slots of a replica (the profile's)"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="only the first N steps")
    stream = parser.add_argument_group("an asynchronous trainer instead of one that waits for all")
    stream.add_argument("--inflight-groups", type=int, metavar="N", help="groups open at once")
    stream.add_argument("--batch-groups", type=int, metavar="N", help="complete groups of a batch")
    table = parser.add_argument_group("how steps are made up from a table's samples")
    table.add_argument("--group-size", type=int, metavar="N", help="samples per prompt (8)")
    table.add_argument("--prompts-per-step", type=int, metavar="N", help="(32)")
    table.add_argument("--passes", type=int, metavar="N", help="visits to each prompt (3)")
    parser.add_argument("--seed", type=int, metavar="N", help="of draws and imputations (0)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a configuration key for all policies, e.g. tick_s=0.5",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_workload_arguments(parser)
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="placement policy; several may be given, the first is what the others are compared "
        "with (sticky_least_inflight, adaptive)",
    )
    parser.add_argument(
        "--imputations",
        type=int,
        default=3,
        metavar="N",
        help="times that lengths which were cut off are drawn anew (3)",
    )
    parser.add_argument(
        "--groups-wanted",
        type=int,
        metavar="N",
        help="complete groups that a step needs, of all groups in their order; a policy may ask "
        "for more and carry the rest over (the log's own steps)",
    )
    parser.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE.toml",
        help="mixed replicas, deaths, joins and changes of speed, weight updates of a stream, "
        "speculation",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="HTML", help="write a report page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_tell_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Replay and print."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import Progress

    from steersman.controller.replay.study import Study

    told = told_items(args.tell)
    study = Study.of(args)
    policies = args.policy or ["sticky_least_inflight", "adaptive"]
    for policy in policies:
        study.config(policy)  # a wrong name is said before anything is shown
    shown = Console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as progress:
        total = study.count(args.imputations) * len(policies)
        task = progress.add_task("replaying", total=total)
        comparison = study.compare(policies, args.imputations, lambda: progress.advance(task))
    if args.out is not None:
        from steersman.controller.replay.page import write_page

        write_page(args.out, comparison, told)
    if args.json:
        from steersman.controller.replay.told import checklist_of

        print(json.dumps(
            {
                "policies": [asdict(s) for s in comparison.summaries],
                "assumed": list(comparison.workloads[0].assumed),
                "imputations": len(comparison.workloads),
                "checklist": checklist_of(comparison, told).as_dict(),
            },
            indent=2,
        ))  # fmt: skip
    else:
        _print(comparison.summaries, list(comparison.workloads[0].assumed))
        if args.out is not None:
            print(args.out)
    return 0


def _print(summaries: "list[PolicySummary]", assumed: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from steersman.controller.replay.headline import rows_of

    console = Console(file=sys.stdout)
    table = Table("tier: simulation", *(s.policy for s in summaries))
    for label, figures in rows_of(summaries):
        table.add_row(label, *figures)
    console.print(table)
    for sentence in assumed:
        console.print(f"Assumed: {sentence}.")
