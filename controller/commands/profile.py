"""`steersman profile list|show|fit|live|adapt`: how long an iteration takes on which hardware."""

import argparse
import asyncio
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
    from steersman.mechanisms.simulated.profile import HardwareProfile

CPU_MAX_MODEL_LEN, CPU_MAX_NUM_SEQS = 1024, 64
"""What `live` launches unless told otherwise: the demo's engines."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the shipped profiles, one a line")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    show = actions.add_parser("show", help="one profile, and where its numbers come from")
    show.add_argument("name", metavar="NAME", help="a shipped profile, or a file ending in .json")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    _add_fit(actions.add_parser("fit", help="fit a profile to tables of measured iterations"))
    _add_live(actions.add_parser("live", help="measure a local fleet, or one that runs"))
    _add_adapt(actions.add_parser("adapt", help="scale a profile to how long a run's steps took"))


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    actions = {"list": _list, "show": _show, "fit": _fit, "live": _live, "adapt": _adapt}
    return actions[args.action](args)


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables",
        nargs="+",
        type=Path,
        metavar="TABLE.csv",
        help="columns gpu, model, tp with batch, context, step_ms or with prompt_tokens, "
        "prefill_ms; both kinds are needed",
    )
    parser.add_argument("--gpu", help="which of the tables' (their only one)")
    parser.add_argument("--model", help="likewise")
    parser.add_argument("--tp", type=int, metavar="N", help="GPUs per replica, likewise")
    parser.add_argument("--name", help="of the profile (MODEL-GPU-tpN)")
    parser.add_argument(
        "--kv-capacity",
        type=int,
        metavar="TOKENS",
        help="of a replica's KV cache, 0: unlimited (derived from the GPU's and the model's size)",
    )
    parser.add_argument(
        "--overhead-ms",
        type=float,
        metavar="MS",
        help="per iteration, beside the tables; 0 for times of whole engine steps (typical)",
    )
    _add_out(parser)


def _add_live(parser: argparse.ArgumentParser) -> None:
    launch = parser.add_argument_group("launch engines")
    launch.add_argument("--model", type=Path, metavar="DIR", help="checkpoint folder")
    launch.add_argument("--replicas", type=int, default=1, metavar="N", help="(1)")
    launch.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="per replica; 0: run on CPU (0)"
    )
    launch.add_argument("--max-model-len", type=int, default=CPU_MAX_MODEL_LEN, metavar="N")
    launch.add_argument("--max-num-seqs", type=int, default=CPU_MAX_NUM_SEQS, metavar="N")
    attach = parser.add_argument_group("or attach to replicas that run and that nobody uses")
    attach.add_argument("--attach", nargs="+", metavar="NAME", help="their names")
    attach.add_argument("--namespace", help="their Ray namespace")
    parser.add_argument("--address", help="of a Ray cluster (start one; to attach: find it)")
    parser.add_argument("--name", default="live", help="of the profile (live)")
    _add_out(parser)


def _add_adapt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="RUN.jsonl", help="a trace of the run")
    parser.add_argument(
        "--profile", required=True, metavar="NAME", help="a shipped one, or a file ending in .json"
    )
    _add_out(parser)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE.json", help="the profile to write"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _list(args: argparse.Namespace) -> int:
    from steersman.mechanisms.simulated.profile import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if args.json:
        print(json.dumps([asdict(profile) for profile in profiles], indent=2))
        return 0
    width = max(len(profile.name) for profile in profiles)
    for p in profiles:
        error = "-" if p.fit_error_median is None else f"{p.fit_error_median:.1%}"
        alone_ms, many_ms = (p.iteration_s(b, b * 2048.0) * 1e3 for b in (1.0, 64.0))
        print(
            f"{p.name:<{width}}  {p.tensor_parallel} x {p.gpu:<9} {alone_ms:5.1f} ms at 1 x 2048, "
            f"{many_ms:5.1f} ms at 64 x 2048; fit error {error}"
        )
    return 0


def _show(args: argparse.Namespace) -> int:
    from steersman.mechanisms.simulated.profile import load_profile

    _print(load_profile(args.name), args.json)
    return 0


def _fit(args: argparse.Namespace) -> int:
    from steersman.mechanisms.simulated.profile import save_profile
    from steersman.mechanisms.simulated.tables import TYPICAL_OVERHEAD, Overhead, profile_of_tables

    given = args.overhead_ms
    overhead = TYPICAL_OVERHEAD if given is None else Overhead(given / 1e3, 0.0, "given")
    profile = profile_of_tables(
        args.tables,
        gpu=args.gpu,
        model=args.model,
        tensor_parallel=args.tp,
        name=args.name,
        kv_capacity=args.kv_capacity,
        overhead=overhead,
    )
    save_profile(profile, args.out)
    _print(profile, args.json)
    return 0


def _adapt(args: argparse.Namespace) -> int:
    from steersman.controller.replay.adapting import adapt
    from steersman.mechanisms.simulated.profile import load_profile, save_profile

    found = adapt(args.trace, load_profile(args.profile))
    save_profile(found.profile, args.out)
    error = None if math.isnan(found.error_median) else found.error_median
    if args.json:
        print(json.dumps({**asdict(found), "error_median": error}, indent=2))
        return 0
    held = "no other step to try it on"
    if error is not None:
        held = f"median error {error:.1%} on the {found.held_out_steps} between"
    print(f"{args.out}: times x {found.factor:.3f}, from {found.fitted_steps} steps; {held}")
    return 0


def _live(args: argparse.Namespace) -> int:
    from steersman.estimators.errors import InvalidInputError
    from steersman.mechanisms.simulated.profile import save_profile

    if (args.model is None) == (args.attach is None):
        raise InvalidInputError("give either --model, to launch engines, or --attach")
    if args.attach is not None and args.namespace is None:
        raise InvalidInputError("--attach needs the --namespace of the replicas")
    if args.model is not None and not args.model.is_dir():
        raise InvalidInputError(f"no model folder {args.model}")
    if not args.out.parent.is_dir():
        raise InvalidInputError(f"no folder {args.out.parent} to write to")
    profile = asyncio.run(_measure(args))
    save_profile(profile, args.out)
    _print(profile, args.json)
    return 0


async def _measure(args: argparse.Namespace) -> "HardwareProfile":
    from rich.console import Console
    from rich.progress import Progress

    from steersman.mechanisms.simulated.live import measure
    from steersman.mechanisms.simulated.profile import HardwareProfile

    console = Console(stderr=True)
    fleet = await _fleet(args)
    try:
        info = fleet.replicas[0]
        labels = HardwareProfile(
            name=args.name,
            gpu="cpu" if args.model is not None and args.gpus == 0 else "as attached",
            model=str(args.model.name if args.model is not None else ", ".join(args.attach)),
            tensor_parallel=max(args.gpus, 1),
            fixed_s=1.0,
            sequence_s=0.0,
            token_s=0.0,
            prefill_token_s=0.0,
            kv_capacity_tokens=info.kv_capacity_tokens,
            max_num_seqs=info.max_num_seqs,
            overhead_source="measured: within the other times",
            source=f"measured on {len(fleet.replicas)} live replicas at once",
        )
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("measuring", total=1.0)
            return await measure(
                fleet, labels, progress=lambda share: bar.update(task, completed=share)
            )
    finally:
        await fleet.close()


async def _fleet(args: argparse.Namespace) -> "RayVllmFleet":
    from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

    if args.attach is not None:
        return await RayVllmFleet.attach(args.attach, args.namespace, args.address)
    print(f"starting {args.replicas} engines ...", file=sys.stderr)
    engine = EngineOptions(max_model_len=args.max_model_len, max_num_seqs=args.max_num_seqs)
    return await RayVllmFleet.launch(
        args.model,
        replicas=args.replicas,
        address=args.address,
        engine=engine,
        num_gpus=float(args.gpus),
    )


def _print(profile: "HardwareProfile", as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(profile), indent=2))
        return
    for name, value in asdict(profile).items():
        if value not in ((), "", None):
            print(
                f"{name:<22}  {value:.6g}" if isinstance(value, float) else f"{name:<22}  {value}"
            )
