"""`steersman explain RUN.jsonl`: why trajectories were moved, parked or stopped, and what then.

Without a selector: all decisions counted, and those with the largest predicted gains.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

LISTED, LARGEST = 20, 10
"""Decisions told in full, with and without a selector."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("path", type=Path, metavar="RUN.jsonl", help="the trace of a run")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--trajectory", type=int, metavar="ID", help="decisions about this one")
    which.add_argument("--tick", type=int, metavar="N", help="decisions of this tick")
    which.add_argument("--step", type=int, metavar="N", help="decisions taken in this step")
    parser.add_argument("--action", metavar="NAME", help="only this action, e.g. migrate")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"decisions told in full ({LISTED}; in the summary the {LARGEST} with most gain)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the story."""
    from steersman.controller.explain.reading import explain
    from steersman.controller.explain.story import Selection
    from steersman.controller.explain.text import decision_lines, summary_lines
    from steersman.controller.trace.reader import read
    from steersman.estimators.errors import InvalidInputError, UnknownNameError
    from steersman.policies.decision import Action

    if args.action is not None and args.action not in list(Action):
        raise UnknownNameError("action", args.action, [action.value for action in Action])
    selection = Selection(args.trajectory, args.tick, args.step, args.action)
    limit = (LISTED if selection else LARGEST) if args.limit is None else args.limit
    if limit < 0:
        raise InvalidInputError(f"--limit is {limit}; valid: 0 or more")
    story = explain(read(args.path), selection, limit)
    if args.json:
        print(json.dumps(asdict(story), indent=2))
        return 0
    if selection:
        print(f"decisions that match: {story.matching}")
        if story.matching > len(story.decisions):
            print(f"the first {len(story.decisions)} of them (--limit says how many):")
    else:
        print("\n".join(summary_lines(story)))
        if story.decisions:
            print(f"\nthe largest predicted gains, {len(story.decisions)} of them:")
    for told in story.decisions:
        print("\n".join(["", *decision_lines(told)]))
    return 0
