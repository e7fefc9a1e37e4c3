"""The command line: a table of commands, each in a module that is imported only when it is chosen.

A command module offers `add_arguments(parser)` and `run(args) -> int`, and imports what is heavy
inside `run`, so that every `--help` answers at once.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from steersman.estimators.errors import SteersmanError

COMMANDS = {
    "demo": (
        "steersman.examples.demo",
        "train a tiny model on a local fleet, steered and unsteered, and compare",
    ),
    "serve": (
        "steersman.controller.commands.serve",
        "steer a trainer's rollouts over HTTP: a gateway before its vLLM servers",
    ),
    "attach": (
        "steersman.controller.commands.attach",
        "say whether a trainer can be attached, and what will work, before a run",
    ),
    "top": (
        "steersman.controller.commands.top",
        "watch a gateway: engines, trajectories by predicted end, and why",
    ),
    "observe": (
        "steersman.controller.commands.observe",
        "look at engines, a gateway or a trace, and change nothing",
    ),
    "calibrate": (
        "steersman.controller.commands.calibrate",
        "score the estimators' forecasts on a run's own lengths and rewards",
    ),
    "report": ("steersman.controller.commands.report", "make one HTML page from traces"),
    "replay": (
        "steersman.controller.commands.replay",
        "compare policies on a run's own lengths, on a simulated fleet",
    ),
    "tune": (
        "steersman.controller.commands.tune",
        "search a policy's options on a run's own lengths",
    ),
    "tournament": (
        "steersman.controller.commands.tournament",
        "compare all policies on all workloads, on a simulated fleet",
    ),
    "regret": (
        "steersman.controller.commands.regret",
        "what a policy that learns pays for learning, over hundreds of simulated steps",
    ),
    "evaluate": (
        "steersman.controller.commands.evaluate",
        "what a quality costs to reach, arm by arm, and where a gain comes from",
    ),
    "import": (
        "steersman.controller.commands.import_run",
        "turn a trainer's logs into a run table, the input of replay",
    ),
    "profile": (
        "steersman.controller.commands.profile",
        "hardware profiles: list, show, fit to a table, measure a live fleet",
    ),
    "bench": ("steersman.controller.commands.bench", "measure how fast the simulator is here"),
    "policies": ("steersman.controller.commands.policies", "list the parts that can be chosen"),
    "trace": ("steersman.controller.commands.trace", "check a trace, or export it as Parquet"),
    "explain": (
        "steersman.controller.commands.explain",
        "say why trajectories were moved, parked or stopped, and what came of it",
    ),
}
"""Name -> (module, one line of help)."""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parse(arguments)
        module = importlib.import_module(COMMANDS[args.command][0])
        return int(module.run(args))
    except SteersmanError as error:
        print(f"steersman: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("steersman: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `steersman ... | head`
        sys.stderr.close()
        return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest command where there is one."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: error: {message}  (try {self.prog} --help)\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Only the chosen command's module is imported, and only its arguments are built."""
    parser = _Parser(prog="steersman", description="A rollout controller for LLM RL fleets.")
    parser.add_argument("--version", action="version", version=f"steersman {version('steersman')}")
    chosen = next((text for text in arguments if not text.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        near = get_close_matches(chosen, COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        parser.error(f"unknown command {chosen!r}{hint} Valid: {', '.join(COMMANDS)}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
