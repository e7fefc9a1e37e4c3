"""`steersman top [URL]`: what a gateway's fleet does, live in the terminal."""

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steersman.controller.gateway.state import GatewayState
    from steersman.controller.watching.screen import TopScreen

DEFAULT_URL = "http://127.0.0.1:8100"
ROWS = 30
"""Trajectories that `--once` prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"the gateway ({DEFAULT_URL})"
    )
    parser.add_argument("--once", action="store_true", help="print it once, and end")
    parser.add_argument("--json", action="store_true", help="print its state as JSON, and end")
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)"
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with the gateway's token (STEERSMAN_TOKEN, else STEERSMAN_ADMIN_TOKEN)",
    )
    parser.epilog = "Keys: arrows choose a trajectory, p pauses the view, q ends."


def run(args: argparse.Namespace) -> int:
    """Show it."""
    import msgspec

    from steersman.controller.watching.client import StateClient, token_of
    from steersman.estimators.errors import InvalidInputError

    if not (args.every > 0 and math.isfinite(args.every)):
        raise InvalidInputError(f"--every is {args.every}; valid: a finite number above 0")
    client = StateClient(args.url, token_of(args.token_file))
    if args.json:
        print(msgspec.json.encode(client.state()).decode())
    elif args.once:
        _print_once(client.state())
    else:
        screen = _screen()
        client.state()  # what is wrong with the address is said before the screen is taken over
        screen(client.state, args.every).run()
    return 0


def _print_once(state: "GatewayState") -> None:
    from rich.console import Console

    from steersman.controller.watching.text import page

    console = Console(highlight=False)
    console.print(page(state, console.width, ROWS))


def _screen() -> "type[TopScreen]":
    from steersman.estimators.errors import InvalidInputError

    try:
        from steersman.controller.watching.screen import TopScreen
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise InvalidInputError(
            "the live view needs Textual; valid: pip install 'steersman[top]', or --once"
        ) from None
    return TopScreen
