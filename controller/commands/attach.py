"""`steersman attach --list | --check TRAINER`: which trainers can be attached, and will this."""

import argparse
import json

EXIT_WILL_NOT_WORK = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--check",
        metavar="TRAINER",
        help="look at its version, its endpoints and permissions, and say what will work; "
        "exit 1 if it will not",
    )
    what.add_argument("--list", action="store_true", help="the trainers, and what works with each")
    parser.add_argument(
        "--url", metavar="GATEWAY", help="the gateway that the trainer will speak to"
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        default=[],
        metavar="URL",
        help="the vLLM servers (those that the gateway tells of)",
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="with the token that the trainer will send (STEERSMAN_ADMIN_TOKEN, else "
        "STEERSMAN_TOKEN)",
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="PATH",
        help="interpreter of the environment that the trainer runs in (this one)",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--json", action="store_true", help="print one JSON object")
    kinds.add_argument("--markdown", action="store_true", help="with --list: as in the README")
    parser.epilog = "STEERSMAN_ENGINE_TOKEN is sent to the engines. Nothing is changed by it."


def run(args: argparse.Namespace) -> int:
    """List, or check."""
    from steersman.estimators.errors import InvalidInputError

    if args.list:
        if args.url or args.engines or args.token_file or args.python:
            raise InvalidInputError("--url, --engines, --token-file and --python go with --check")
        _list(args)
        return 0
    if args.markdown:
        raise InvalidInputError("--markdown goes with --list")
    return _check(args)


def _list(args: argparse.Namespace) -> None:
    from steersman.controller.attach import table
    from steersman.controller.attach.trainers import TRAINERS

    if args.json:
        told = {
            name: {
                "tested": trainer.tested,
                "link": trainer.link.value,
                "how": trainer.how,
                "works": {a.value: v.works.value for a, v in trainer.works.items()},
                "cannot": trainer.cannot,
            }
            for name, trainer in TRAINERS.items()
        }
        print(json.dumps(told, indent=2))
    else:
        print(table.markdown() if args.markdown else "\n".join(table.lines()))


def _check(args: argparse.Namespace) -> int:
    from steersman.controller.attach.check import check
    from steersman.controller.attach.trainers import trainer_of
    from steersman.controller.gateway.security import secret

    token = secret(args.token_file, "STEERSMAN_ADMIN_TOKEN") or secret("", "STEERSMAN_TOKEN")
    report = check(
        trainer_of(args.check),
        url=args.url or "",
        engines=args.engines,
        token=token,
        engine_token=secret("", "STEERSMAN_ENGINE_TOKEN"),
        python=args.python,
    )
    print(json.dumps(report.plain(), indent=2) if args.json else "\n".join(report.lines()))
    return 0 if report.good else EXIT_WILL_NOT_WORK
