"""`steersman report RUN.jsonl [RUN2.jsonl ...] -o report.html`."""

import argparse
from pathlib import Path

from steersman.controller.checklist import add_tell_argument, told_items


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        metavar="RUN.jsonl",
        help="one trace per run; the first is what the others are compared with",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        help="the page to write (report.html)",
    )
    add_tell_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from steersman.controller.report import summarize, write_report
    from steersman.controller.trace.reader import read

    told = told_items(args.tell)
    write_report(args.out, [summarize(read(path)) for path in args.traces], told)
    print(args.out)
    return 0
