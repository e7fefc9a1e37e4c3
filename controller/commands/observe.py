"""`steersman observe --engines URL... | --gateway [URL] | TRACE`: look, and touch nothing."""

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from steersman.controller.watching.observed import Observed

DEFAULT_URL = "http://127.0.0.1:8100"
FOR_S, EVERY_S = 30.0, 0.5
"""Long enough for a few seconds at everybody's best, and as often as engines have news."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="a finished run")
    what.add_argument(
        "--engines", nargs="+", metavar="URL", help="vLLM servers, by their own metrics"
    )
    what.add_argument(
        "--gateway",
        nargs="?",
        const=DEFAULT_URL,
        metavar="URL",
        help=f"a gateway ({DEFAULT_URL}): also rewards, and what its controller decides or would",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=float,
        metavar="SECONDS",
        help=f"how long to look ({FOR_S:g}); Ctrl-C ends it early and still tells",
    )
    parser.add_argument(
        "--every",
        dest="every_s",
        type=float,
        metavar="SECONDS",
        help=f"between two looks ({EVERY_S:g})",
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with the gateway's token (STEERSMAN_TOKEN, else STEERSMAN_ADMIN_TOKEN)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "Exactly one of TRACE, --engines and --gateway."


def run(args: argparse.Namespace) -> int:
    """Look, and tell."""
    tell(_from_trace(args) if args.trace is not None else _live(args), as_json=args.json)
    return 0


def tell(observed: "Observed", *, as_json: bool) -> None:
    """Print what was found."""
    import msgspec

    from steersman.controller.watching.observed import lines_of

    if as_json:
        print(msgspec.json.encode(observed).decode())
    else:
        print("\n".join(lines_of(observed)))


def _from_trace(args: argparse.Namespace) -> "Observed":
    from steersman.controller.trace.reader import read
    from steersman.controller.watching.finished import observe_trace
    from steersman.estimators.errors import InvalidInputError

    for name, value in (("--for", args.for_s), ("--every", args.every_s)):
        if value is not None:
            raise InvalidInputError(f"{name} is for looks at what runs; a trace is read whole")
    return observe_trace(read(args.trace))


def _live(args: argparse.Namespace) -> "Observed":
    import asyncio
    import signal

    for_s = _seconds("--for", args.for_s, FOR_S)
    every_s = _seconds("--every", args.every_s, EVERY_S)

    async def look() -> "Observed":
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            return await _looking(args, for_s, every_s, stop)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    return asyncio.run(look())


def _looking(
    args: argparse.Namespace, for_s: float, every_s: float, stop: "asyncio.Event"
) -> "Coroutine[None, None, Observed]":
    from steersman.controller.gateway.security import secret
    from steersman.controller.watching.client import StateClient, token_of
    from steersman.controller.watching.engines import observe_engines
    from steersman.controller.watching.steered import observe_gateway

    progress = _progress(for_s)
    if args.engines is not None:
        token = secret("", "STEERSMAN_ENGINE_TOKEN")
        return observe_engines(args.engines, for_s, every_s, stop, progress, token)
    client = StateClient(args.gateway, token_of(args.token_file))
    return observe_gateway(client, for_s, every_s, stop, progress)


def _progress(for_s: float) -> "Callable[[float], None]":
    """Counts the seconds, for a person who waits."""
    if not sys.stderr.isatty():
        return lambda passed_s: None

    def tell(passed_s: float) -> None:
        end = "\r" if passed_s < for_s else "\r\033[K"
        words = f"looking, {min(passed_s, for_s):.0f} of {for_s:g} s (Ctrl-C ends it)"
        print(words if passed_s < for_s else "", end=end, file=sys.stderr, flush=True)

    return tell


def _seconds(name: str, value: float | None, default: float) -> float:
    from steersman.estimators.errors import InvalidInputError

    if value is None:
        return default
    if not (value > 0 and math.isfinite(value)):
        raise InvalidInputError(f"{name} is {value}; valid: a finite number above 0")
    return value
