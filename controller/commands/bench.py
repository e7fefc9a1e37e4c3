"""`steersman bench`: how fast the simulator is here, settings compared on a live fleet, and prompt
policies compared by what reaching a quality costs."""

import argparse
import json
from dataclasses import asdict

from steersman.examples import ab, prompt_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    live = "compare settings on a live fleet: paired steps, equal work"
    ab.add_arguments(kinds.add_parser("live", help=live, description=f"{live.capitalize()}."))
    prompts = "compare prompt policies: real training, cost to reach a quality"
    prompt_study.add_arguments(
        kinds.add_parser("prompts", help=prompts, description=f"{prompts.capitalize()}.")
    )
    line = "measure how fast the simulator is here"
    simulator = kinds.add_parser("simulator", help=line, description=f"{line.capitalize()}.")
    simulator.add_argument(
        "--trajectories", type=_count, default=100_000, metavar="N", help="(100000; 1e6 is fine)"
    )
    simulator.add_argument("--replicas", type=_count, default=100, metavar="N", help="(100)")
    simulator.add_argument("--seed", type=int, default=0, metavar="N", help="of the lengths (0)")
    simulator.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the chosen one."""
    return {"live": ab.run, "prompts": prompt_study.run, "simulator": _simulator}[args.what](args)


def _simulator(args: argparse.Namespace) -> int:
    """Print what one run took."""
    from steersman.mechanisms.simulated import benchmark

    result = benchmark.run(args.trajectories, args.replicas, args.seed)
    if args.json:
        print(json.dumps(asdict(result), indent=2))
        return 0
    each_us = 1e6 * result.seconds / result.trajectories
    print(
        f"{result.trajectories:,} trajectories on {result.replicas:,} replicas, a decision every "
        f"{benchmark.TICK_S} s of {result.makespan_s:.0f} s of virtual time:\n"
        f"  {result.seconds:.2f} s of CPU time ({each_us:.2f} us per trajectory), "
        f"{result.policy_seconds:.2f} s of it the policy's\n"
        f"  {result.compile_seconds:.1f} s before that to compile, or to load from the cache\n"
        f"  {result.peak_mb:.0f} MB at most"
    )
    return 0


def _count(text: str) -> int:
    """A whole number >= 1, also as 1e6."""
    number = float(text)
    if not (1 <= number < 2**31 and number == int(number)):
        raise ValueError(text)
    return int(number)


_count.__name__ = "whole number"  # argparse names the type in its message
