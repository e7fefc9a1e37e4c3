"""`steersman policies`: which parts there are, by kind, and what each does."""

import argparse
import ast
import json
from pathlib import Path

from steersman.controller.plugins import KINDS, files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the parts; none of them is imported."""
    parts = {
        kind: {name: _summary(path) for name, path in sorted(files(kind).items())} for kind in KINDS
    }
    if args.json:
        print(json.dumps(parts, indent=2))
        return 0
    width = max(len(name) for lines in parts.values() for name in lines)
    for kind, lines in parts.items():
        print(kind)
        for name, line in lines.items():
            print(f"  {name:<{width}}  {line}")
    return 0


def _summary(path: Path) -> str:
    """The first sentence of the file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())
