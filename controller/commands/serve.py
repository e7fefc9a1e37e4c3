"""`steersman serve --engines URL... | --ray ADDRESS`: the gateway, until it is told to end."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steersman.estimators.errors import InvalidInputError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from steersman.controller.config import Config
    from steersman.controller.gateway.serving import Attach, Opened

EXIT_ENDED_AT_ONCE = 130
"""A second signal ended it before requests under way had."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    engines = parser.add_mutually_exclusive_group(required=True)
    engines.add_argument(
        "--engines",
        nargs="+",
        metavar="URL",
        help="the vLLM servers to steer (http://HOST:PORT); one of them must answer",
    )
    engines.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="a Ray cluster (HOST:PORT, or auto) whose Steersman replicas to steer; they take "
        "token ids only (/inference/v1/generate)",
    )
    parser.add_argument("--replicas", nargs="+", metavar="NAME", help="with --ray: their names")
    parser.add_argument("--namespace", metavar="NS", help="with --ray: the namespace of the names")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="configuration overrides (placement.name=round_robin gateway.drain_s=60); also after "
        "the URLs",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (TOML or YAML)"
    )
    parser.add_argument("--host", help="address to listen on (gateway.host, 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on, 0: any (gateway.port, 8100)")
    parser.add_argument("--trace", metavar="FILE", help="trace to write (trace.path, none)")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen without a token even where other machines reach it (gateway.insecure)",
    )
    parser.add_argument(
        "--json", action="store_true", help="announce itself in one line of JSON when it is ready"
    )
    parser.epilog = (
        "Tokens: STEERSMAN_TOKEN for requests, STEERSMAN_ADMIN_TOKEN for control, "
        "STEERSMAN_ENGINE_TOKEN for the engines, or gateway.*token_file. Ends on SIGINT or SIGTERM "
        "once requests under way have (gateway.drain_s); at once on the second."
    )


def run(args: argparse.Namespace) -> int:
    """Serve."""
    urls, overrides = told_apart(args.engines or [])
    if args.ray is not None and not (args.replicas and args.namespace):
        raise InvalidInputError("--ray needs --replicas NAME ... and --namespace NS")
    if args.ray is None and (args.replicas or args.namespace):
        raise InvalidInputError("--replicas and --namespace go with --ray")
    import asyncio
    import logging

    from steersman.controller.config import load_config
    from steersman.controller.gateway.serving import serve

    config = load_config(args.config, [*overrides, *args.overrides, *_flags(args)])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )

    def announce(opened: "Opened") -> None:
        _warn(config)
        (_show_json if args.json else _show)(opened)

    attach = _ray_fleet(args) if args.ray is not None else _http_fleet(urls, config)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        drained = runner.run(serve(config, attach, announce))
    return 0 if drained else EXIT_ENDED_AT_ONCE


def told_apart(words: list[str]) -> tuple[list[str], list[str]]:
    """URLs, and the overrides that stand after them."""
    urls = [word for word in words if "://" in word.partition("=")[0]]
    others = [word for word in words if word not in urls]
    for word in others:
        if "=" not in word:
            raise InvalidInputError(f"{word!r} is no engine URL; valid: http://HOST:PORT")
    return urls, others


def _flags(args: argparse.Namespace) -> list[str]:
    """The flags as overrides."""
    named = {"gateway.host": args.host, "gateway.port": args.port, "trace.path": args.trace}
    flags = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*flags, "gateway.insecure=true"] if args.insecure else flags


def _http_fleet(urls: list[str], config: "Config") -> "Attach":
    from steersman.controller.gateway.clock import PausableClock
    from steersman.controller.gateway.security import secret
    from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings

    async def attach(clock: PausableClock) -> HttpFleet:
        settings = HttpSettings(
            api_key=secret(config.gateway.engine_token_file, "STEERSMAN_ENGINE_TOKEN"),
            stall_timeout_s=config.gateway.stall_timeout_s,
        )
        return await HttpFleet.attach(urls, settings, clock=clock)

    return attach


def _ray_fleet(args: argparse.Namespace) -> "Attach":
    from steersman.controller.gateway.clock import PausableClock

    try:
        from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
        from steersman.mechanisms.ray_vllm.served import ServedRayFleet
    except ImportError as error:
        raise InvalidInputError(f"--ray needs Ray and vLLM (steersman[fleet]): {error}") from error

    async def attach(clock: PausableClock) -> ServedRayFleet:
        fleet = await RayVllmFleet.attach(args.replicas, args.namespace, args.ray)
        return ServedRayFleet(fleet, fleet.address)

    return attach


def _fast_loop() -> "Callable[[], AbstractEventLoop] | None":
    """uvloop's event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _warn(config: "Config") -> None:
    from steersman.controller.gateway.security import Tokens, is_loopback

    gateway = config.gateway
    if is_loopback(gateway.host) or gateway.tls_cert:
        return
    what = "tokens and prompts" if Tokens.load(gateway) else "no token is asked for, and prompts"
    print(
        f"steersman: warning: {what} go over the network in the clear (gateway.tls_cert)",
        file=sys.stderr,
    )


def _show(opened: "Opened") -> None:
    engines = f"{len(opened.engines)} engine{'s' * (len(opened.engines) != 1)}"
    line = f"steersman: serving {engines} at {opened.url} ({opened.mode})"
    for name, url in opened.shadows.items():
        line += f", {name} at {url}"
    print(line, flush=True)


def _show_json(opened: "Opened") -> None:
    from dataclasses import asdict

    print(json.dumps(asdict(opened)), flush=True)
