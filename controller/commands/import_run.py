"""`steersman import FORMAT PATH -o RUN`: a trainer's logs as a run table, the input of replay."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steersman.controller.importers import KIND, formats, part

if TYPE_CHECKING:
    from steersman.controller.runs.table import RunInfo

NEEDS = {
    "tokenizer": "{format} logs text, not lengths: give --tokenizer DIR, a folder with the model's "
    "tokenizer.json",
}
"""Option that an importer may need -> what to say where it is not given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("format", metavar="FORMAT", help=f"one of {', '.join(formats())}")
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a log file, or the folder the trainer wrote"
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="RUN.parquet", help="the table to write"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="folder with the model's tokenizer.json, for formats that log text and no lengths",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="the run's cap on new tokens, where its logs do not tell",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="count bad records and go on, instead of stopping"
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read pickles (slime): their writer can run any code here",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Import, and say what came of it."""
    from collections.abc import Callable

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from steersman.controller.runs.importing import import_run

    options = _options(args)
    columns = (
        TextColumn("importing"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:

        def watch(size: int) -> Callable[[int], None]:
            task = progress.add_task("importing", total=size)
            return lambda amount: progress.advance(task, amount)

        info = import_run(
            args.format,
            args.path,
            args.out,
            options,
            max_new_tokens=args.max_new_tokens,
            skip_bad=args.skip_bad,
            watch=watch,
        )
    if args.json:
        print(json.dumps({"out": str(args.out), **msgspec.to_builtins(info)}, indent=2))
    else:
        _print(args.out, info)
    return 0


def _options(args: argparse.Namespace) -> dict[str, object]:
    """What was given of the importer's own options; raises where one is needed or unknown."""
    from dataclasses import fields

    from steersman.controller import plugins
    from steersman.estimators.errors import InvalidInputError, UnknownNameError

    if args.format not in formats():
        raise UnknownNameError("format of run logs", args.format, formats())
    own = {f.name for f in fields(plugins.load(KIND, part(args.format)))}
    options: dict[str, object] = {}
    for name in ("tokenizer", "trust_pickle"):
        value = getattr(args, name)
        if value and name not in own:
            option = "--" + name.replace("_", "-")
            raise InvalidInputError(f"{option} means nothing for {args.format}")
        if value:
            options[name] = value
        elif name in own and name in NEEDS:
            raise InvalidInputError(NEEDS[name].format(format=args.format))
    return options


def _print(out: Path, info: "RunInfo") -> None:
    skipped = f", {info.skipped} bad records skipped" if info.skipped else ""
    repeated = f", {info.repeated} repeated records left out" if info.repeated else ""
    print(f"{out}: {info.rows} trajectories from {info.files} files{skipped}{repeated}")
    for example in info.skipped_examples:
        print(f"  skipped: {example}")
    if info.missing:
        print(f"missing: {', '.join(info.missing)}")
    if info.partly_missing:
        parts = (f"{name} ({count})" for name, count in info.partly_missing.items())
        print(f"missing in some: {', '.join(parts)}")
    for sentence in info.assumed:
        print(f"assumed: {sentence}")
