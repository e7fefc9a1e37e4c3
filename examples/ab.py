"""`steersman bench live`: settings against each other on one live fleet, paired, at equal work.

The fleet is started once and holds the demo's pretrained weights throughout; the steps are the
demo's (`paired` says how they are played).  A setting's ratio is the mean over blocks of log(its
seconds / the first setting's), with Student's 95 % interval; the tier is "live A/B".  Progress goes
to stderr; stdout carries the table, or one JSON object with `--json`.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.controller.checklist import (
    Checklist,
    add_tell_argument,
    each,
    length_statistics,
    told_items,
)
from steersman.estimators.errors import InvalidInputError

if TYPE_CHECKING:
    from steersman.examples.paired import Played, Setting, Work

LATE = "allow=corrected,defer_share=0.4"
PLAN, DEFER = "adaptive,stack=full", f"adaptive,stack=move,max_moves=0,{LATE}"
POLICIES = ["sticky_least_inflight", PLAN, DEFER, f"adaptive,stack=full,{LATE}"]
"""The default rule, then what ours adds to it: where things run, putting the last groups off, and
both."""
TIER = "live A/B"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `steersman bench live`."""
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME[,KEY=VALUE...]",
        help="a setting, repeatable; the first is what the others are compared with.  A KEY is an "
        "option of the policy, or of the configuration, such as tick_s or guard.max_deferrals "
        "(default: sticky_least_inflight, then adaptive that plans where, puts off, and does both)",
    )
    parser.add_argument("--steps", type=int, default=8, help="steps per block (8)")
    parser.add_argument("--blocks", type=int, default=6, help="blocks that are counted (6)")
    parser.add_argument("--seed", type=int, default=0, help="prompts, samples and policies (0)")
    parser.add_argument("--replicas", type=int, default=2, help="vLLM engines (2)")
    parser.add_argument(
        "--draft-tokens",
        type=int,
        default=0,
        metavar="K",
        help="tokens that engines can draft, for settings with speculation.name=... (0: none)",
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="a running Ray cluster (default: local)")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="other weights for the demo's task"
    )
    parser.add_argument(
        "--free",
        action="store_true",
        help="let moved answers end where they end: real sampling, work equal on average only",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep a trace per setting")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_tell_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, and print the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    from steersman.examples.paired import Setting

    settings = [Setting.parse(text, args.seed) for text in args.policy or POLICIES]
    for name in ("steps", "blocks", "replicas"):
        if getattr(args, name) < 1:
            raise InvalidInputError(f"--{name} is {getattr(args, name)}; valid: 1 or more")
    if args.draft_tokens < 0:
        raise InvalidInputError(f"--draft-tokens is {args.draft_tokens}; valid: 0 or more")
    if len({setting.name for setting in settings}) < max(2, len(settings)):
        raise InvalidInputError("--policy must name two or more different settings")
    told = told_items(args.tell)
    result = asyncio.run(_live(args, settings))
    result["checklist"] = Checklist(**result["checklist"]).told(told).as_dict()
    if args.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        _print_table(result)
    return 0


async def _live(args: argparse.Namespace, settings: Sequence["Setting"]) -> dict[str, Any]:
    from rich.console import Console

    from steersman.examples.paired import UNCOUNTED, Bench, summarize
    from steersman.examples.signs.model import load_hf, named_tensors
    from steersman.examples.signs.pretrain import pretrained
    from steersman.mechanisms.ray_vllm.fleet import EngineOptions, RayVllmFleet

    console = Console(stderr=True)
    model = args.model or await asyncio.to_thread(pretrained)
    tensors = named_tensors(load_hf(model))
    work = signs_work(args.blocks + UNCOUNTED, args.steps, args.seed)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    console.print(f"starting {args.replicas} vLLM engines on Ray ...")
    engine = EngineOptions(
        dtype="float32", max_model_len=1024, max_num_seqs=64, draft_tokens=args.draft_tokens
    )
    fleet = await RayVllmFleet.launch(
        model, replicas=args.replicas, address=args.ray, engine=engine
    )
    try:
        bench, lengths = Bench(fleet, tensors, work), None
        if not args.free:
            console.print("drawing the answers ...")
            lengths = await bench.record(settings[0])
        console.print(f"seconds per block under {', '.join(s.name for s in settings)}")
        played = await bench.compare(settings, lengths, args.out, console.print)
    finally:
        await fleet.close()
    return {
        "tier": TIER,
        "steps_per_block": args.steps,
        "blocks": args.blocks,
        "seed": args.seed,
        "replicas": args.replicas,
        "draft_tokens": args.draft_tokens,
        "lengths": "free" if args.free else "recorded",
        "settings": summarize(settings, played),
        "checklist": checklist_of(args, work, played).as_dict(),
    }


def checklist_of(
    args: argparse.Namespace, work: "Work", played: "Mapping[str, Played]"
) -> Checklist:
    """What a comparison tells of itself."""
    from steersman.controller.trace.records import machine

    names = list(played)
    groups = sum(len(prompts) for block in work.blocks for prompts in block)
    lengths = {name: list(own.lengths.values()) for name, own in played.items()}
    equal = "each answer as long as in one undisturbed draw" if not args.free else "answers free"
    return Checklist(
        baseline=f"{names[0]}, the first setting, on the same fleet in turns (ABBA)",
        phase="rollout only: steps from request to last awaited answer, and the drain of each "
        "block; training takes no part, weights are pushed outside of the time",
        unit="seconds of a block's rollouts and drain, over the first setting's",
        statistic=f"geometric mean over {args.blocks} blocks of {args.steps} steps of ratios "
        f"paired by block, Student's 95 % interval; seed {args.seed}; the first block is left out",
        hardware=f"{args.replicas} vLLM engines on Ray, on CPU, float32, 64 slots each; "
        f"{machine()}",
        workload=f"signs task, {groups:,} groups of {work.group_size}, at most {work.cap} tokens "
        f"an answer; {equal}",
        lever=f"settings {'; '.join(names)}",
        quality="weights stand still: nothing is trained, answers are of one distribution",
        response_lengths=each(
            {
                name: length_statistics(own, sum(n >= work.cap for n in own))
                for name, own in lengths.items()
            }
        ),
    )


def signs_work(blocks: int, steps: int, seed: int) -> "Work":
    """The demo's steps, dealt to blocks."""
    from steersman.controller.results import Prompt
    from steersman.examples.demo import FULL_CAP
    from steersman.examples.paired import Work
    from steersman.examples.signs.reinforce import RunSettings
    from steersman.examples.signs.task import EOS_ID, deal_prompts, make_pool, prompt_tokens
    from steersman.mechanisms.fleet import Sampling

    task = RunSettings(steps=blocks * steps, seed=seed, max_new_tokens=FULL_CAP)
    pool = make_pool(task.pool_size, task.unsolvable_share, seed)
    prompts = [Prompt(f"signs-{i}", prompt_tokens(problem)) for i, problem in enumerate(pool)]
    dealt = deal_prompts(pool, task.steps, task.prompts_per_step, seed)
    hands = [[prompts[i] for i in hand] for hand in dealt]
    return Work(
        [hands[start : start + steps] for start in range(0, len(hands), steps)],
        task.group_size,
        task.max_new_tokens,
        Sampling(stop_token_ids=(EOS_ID,), seed=seed),
    )


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    settings, console = result["settings"], Console()
    letters = [chr(ord("A") + number) for number in range(len(settings))]
    for letter, row in zip(letters, settings, strict=True):
        console.print(f"{letter}: {row['setting']}", soft_wrap=True, highlight=False)
    title = f"{TIER}: {result['blocks']} blocks of {result['steps_per_block']} steps, paired"
    table = Table(title=title, title_justify="left")
    hidden = {"setting", "block_s", "controller"} | (
        set() if result["draft_tokens"] else {"accepted_per_draft"}
    )
    table.add_column("")
    for letter in letters:
        table.add_column(letter, justify="right")
    for name in settings[0]:
        if name not in hidden:
            table.add_row(name, *(_cell(row[name]) for row in settings))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{key} {figure}" for key, figure in value.items())
    return str(value)
