"""`steersman trace check|export`: is a trace sound, and the same as Parquet tables."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

EXIT_UNSOUND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="say what cannot be right in it; exit 1 if anything")
    check.add_argument("path", type=Path, help="the trace, a .jsonl file")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    export = actions.add_parser("export", help="write one Parquet file per kind of record")
    export.add_argument("path", type=Path, help="the trace, a .jsonl file")
    export.add_argument("-o", "--out", type=Path, help="folder; default: the trace's name")


def run(args: argparse.Namespace) -> int:
    """Check or export."""
    return _check(args) if args.action == "check" else _export(args)


def _check(args: argparse.Namespace) -> int:
    from steersman.controller.trace.reader import check, read
    from steersman.controller.trace.records import Record

    counts: Counter[str] = Counter()

    def counted() -> Iterator[Record]:
        for record in reader:
            counts[str(record.__struct_config__.tag)] += 1
            yield record

    reader = read(args.path)
    problems = check(counted())
    if args.json:
        found = {"records": dict(counts), "torn_lines": reader.torn_lines, "problems": problems}
        print(json.dumps(found, indent=2))
    else:
        for problem in problems:
            print(problem)
        total = f"{counts.total()} records, {counts['trajectory_queued']} trajectories"
        print(f"{args.path}: {total}, {len(problems)} problems")
    return EXIT_UNSOUND if problems else 0


def _export(args: argparse.Namespace) -> int:
    from steersman.controller.trace.export import to_parquet

    folder = args.out if args.out is not None else args.path.with_suffix("")
    for file in to_parquet(args.path, folder):
        print(file)
    return 0
