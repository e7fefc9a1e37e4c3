"""`steersman demo`: a real reinforcement run, steered, on a local Ray + vLLM fleet.

Pretrains a tiny language model once, starts the fleet, and improves the model by GRPO under each
policy in turn, from the same weights and with the same sampling seeds; the prompts are the same as
well, unless prompt policies are compared: those choose them from the same pool.  Progress goes to
stderr; stdout carries the table, or one JSON object with `--json`.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from steersman.controller.checklist import add_tell_argument, told_items
from steersman.controller.plugins import load
from steersman.estimators.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

    from steersman.examples.signs.reinforce import Arm, RunReport, RunSettings, StepReport
    from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

POLICIES = ["sticky_least_inflight", "adaptive"]
OPTIONS = {"adaptive": ["placement.options.allow=corrected", "placement.options.defer_share=0.4"]}
"""A step of 16 groups is short: of a quarter of them, those that were put off before leave few."""
FULL_STEPS, QUICK_STEPS = 30, 12
FULL_CAP, QUICK_CAP = 768, 512
"""Tokens per answer: the higher one leaves the tail of the lengths whole (4 % reach it)."""
DRAFT_TOKENS = 8
"""What engines can draft; they do where a policy says so, as `adaptive` does."""
DEALT = "uniform"
"""The prompt policy under which every placement policy is dealt the same prompts."""
UNDIVIDED = "normaliser=none"
"""The demo's trainer does not divide advantages by their deviation (`signs.grpo`)."""
EVALUATIONS = 10
"""Of the held-out problems, in a run in which prompt policies are compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `steersman demo`."""
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps per policy")
    parser.add_argument("--steps", type=int, help=f"steps per policy (default {FULL_STEPS})")
    parser.add_argument("--seed", type=int, default=0, help="prompts, samples and policies")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"placement policy, repeatable (default {' and '.join(POLICIES)})",
    )
    parser.add_argument(
        "--prompt-policy",
        action="append",
        metavar="NAME[,KEY=VALUE...]",
        help=f"policy that chooses prompts, repeatable (default {DEALT}); each is run with each "
        f"placement policy (then by default {POLICIES[0]} alone), and what it costs to reach a "
        "quality is shown",
    )
    parser.add_argument(
        "--unsolvable",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="of the pool's prompts (0.2)",
    )
    parser.add_argument("--replicas", type=int, default=2, help="vLLM engines (default 2)")
    parser.add_argument("--ray", metavar="ADDRESS", help="a running Ray cluster (default: local)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration, e.g. from `steersman tune`; its placement is for that policy alone",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="configuration override"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="traces and report (default runs/demo-TIME)"
    )
    add_tell_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    # before torch is imported: two OpenMP threads per process spin against the engines' own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args.out = args.out or Path(time.strftime("runs/demo-%Y%m%d-%H%M%S"))
    arms = arms_of(args)
    _validate(args, arms)
    from rich.console import Console

    from steersman.examples.demo_results import print_table, results, write_report

    console = Console(stderr=True)
    reports = asyncio.run(_demo(args, arms, console))
    traces = {arm.name: _trace_file(args.out, arm) for arm in arms}
    report_file = args.out / "report.html"
    told = {**_told(args, reports), **told_items(args.tell)}
    summary = results(reports, traces, told, curves=bool(args.prompt_policy))
    write_report(report_file, list(traces.values()), told)
    if args.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        print_table(summary["policies"])
    console.print(f"report: {report_file}")
    if args.prompt_policy:
        files = " ".join(f"{name}={path}" for name, path in traces.items())
        console.print(f"curves: steersman evaluate curves {files}", soft_wrap=True)
    return 0


def arms_of(args: argparse.Namespace) -> list["Arm"]:
    """Every placement policy with every prompt policy."""
    from steersman.controller.tournament.entries import entry
    from steersman.examples.signs.reinforce import Arm

    placements = args.policy or (POLICIES[:1] if args.prompt_policy else POLICIES)
    arms = []
    for placement in placements:
        load("policies.placement", placement)
        own = () if args.config else tuple(OPTIONS.get(placement, ()))
        given = (*args.set, f"placement.name={placement}")
        if not args.prompt_policy:
            arms.append(Arm(placement, (*own, *given)))
        for text in args.prompt_policy or ():
            prompts = entry("prompts", text)
            name = f"{placement}+{prompts.name}" if len(placements) > 1 else prompts.name
            options = (f"{key}={json.dumps(value)}" for key, value in prompts.options.items())
            chosen = (
                f"prompts.name={prompts.policy}",
                *(f"prompts.options.{option}" for option in options),
                *prompts.overrides,
            )
            stack = (*own, UNDIVIDED, *given, *chosen)
            arms.append(Arm(name, stack, dealt=prompts.name == DEALT))
    return arms


def _validate(args: argparse.Namespace, arms: list["Arm"]) -> None:
    """Refuse what cannot work before anything is started."""
    from steersman.controller.config import load_config

    told_items(args.tell)
    for arm in arms:
        load_config(args.config, arm.overrides, environ={})
    if len({arm.name for arm in arms}) != len(arms):
        raise InvalidInputError("--policy or --prompt-policy names one policy twice")
    if args.steps is not None and args.steps < 1:
        raise InvalidInputError(f"--steps is {args.steps}; valid: 1 or more")
    if not 0 <= args.unsolvable < 1:
        raise InvalidInputError(f"--unsolvable is {args.unsolvable}; valid: 0 to below 1")
    taken = [str(path) for path in map(partial(_trace_file, args.out), arms) if path.exists()]
    if taken:
        raise InvalidInputError(f"{', '.join(taken)} exist; name another folder with --out")
    if args.replicas < 1:
        raise InvalidInputError(f"--replicas is {args.replicas}; valid: 1 or more")


def settings_of(args: argparse.Namespace) -> "RunSettings":
    """What each policy is asked to do."""
    from steersman.examples.signs.reinforce import RunSettings

    steps = args.steps or (QUICK_STEPS if args.quick else FULL_STEPS)
    cap = QUICK_CAP if args.quick else FULL_CAP
    return RunSettings(
        steps=steps,
        seed=args.seed,
        max_new_tokens=cap,
        unsolvable_share=args.unsolvable,
        evaluate_every=max(steps // EVALUATIONS, 1) if args.prompt_policy else 0,
    )


def _told(args: argparse.Namespace, reports: list["RunReport"]) -> dict[str, str]:
    """What traces do not tell of the reporting checklist."""
    from steersman.examples.signs.reinforce import HELD_OUT_PROBLEMS

    settings = settings_of(args)
    quality = (f"{r.arm} {r.held_out_first:.3f} -> {r.held_out_last:.3f}" for r in reports)
    return {
        "workload": f"signs task, a pool of {settings.pool_size} prompts, {args.unsolvable:.0%} "
        f"of them unsolvable; GRPO of {settings.prompts_per_step} groups of {settings.group_size} "
        f"for {settings.steps} steps, cap {settings.max_new_tokens} tokens",
        "hardware": f"{args.replicas} vLLM engines on Ray, on CPU, float32, a model of 385k "
        "parameters",
        "quality": f"share of {HELD_OUT_PROBLEMS} held-out problems solved: {'; '.join(quality)}",
    }


async def _demo(
    args: argparse.Namespace, arms: list["Arm"], console: "Console"
) -> list["RunReport"]:
    start = await asyncio.to_thread(_pretrain, console)
    settings = settings_of(args)
    args.out.mkdir(parents=True, exist_ok=True)
    async with _LaunchedFleet(args.replicas, args.ray, start, console) as fleet:
        from steersman.examples.signs.reinforce import reinforce

        await _warm_up(fleet, settings)
        reports = []
        version = 1
        for arm in arms:
            with _bar(console, f"{arm.name:<24}", settings.steps) as tell:
                reports.append(
                    await reinforce(
                        fleet,
                        arm,
                        start,
                        version,
                        settings,
                        _trace_file(args.out, arm),
                        lambda step, tell=tell: tell(_step_text(step)),  # type: ignore[misc]
                        args.config,
                    )
                )
            version += settings.steps + 2
        return reports


def _pretrain(console: "Console") -> Path:
    from steersman.examples.signs.pretrain import checkpoint_folder, pretrained

    if (cached := checkpoint_folder()).is_dir():
        return cached
    with _bar(console, "pretraining (once)", 1) as tell:
        return pretrained(progress=lambda step, steps, loss: tell(f"loss {loss:.2f}", steps))


class _LaunchedFleet:
    """The demo's engines, from launch to close."""

    def __init__(self, replicas: int, address: str | None, start: Path, console: "Console") -> None:
        self._replicas, self._address = replicas, address
        self._start, self._console = start, console

    async def __aenter__(self) -> "RayVllmFleet":
        from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet
        from steersman.mechanisms.ray_vllm.options import EngineOptions

        self._console.print(f"starting {self._replicas} vLLM engines on Ray ...")
        started_s = time.monotonic()
        self._fleet = await RayVllmFleet.launch(
            self._start,
            replicas=self._replicas,
            address=self._address,
            engine=EngineOptions(
                dtype="float32", max_model_len=1024, max_num_seqs=64, draft_tokens=DRAFT_TOKENS
            ),
        )
        self._console.print(f"engines ready after {time.monotonic() - started_s:.0f} s")
        return self._fleet

    async def __aexit__(self, *error: object) -> None:
        await self._fleet.close()


async def _warm_up(fleet: "RayVllmFleet", settings: "RunSettings") -> None:
    """Let each engine run once, so that the first policy does not pay for first calls."""
    from steersman.examples.signs.task import make_pool, prompt_tokens
    from steersman.mechanisms.fleet import AttemptRequest, Sampling

    (problem,) = make_pool(1, 0.0, settings.seed)
    ended = asyncio.Event()
    attempts = []
    for info in fleet.replicas:
        for i in range(16):
            request = AttemptRequest(
                f"warm-up-{info.name}-{i}", prompt_tokens(problem), 64, Sampling(ignore_eos=True)
            )
            attempts.append(fleet.start(info.name, request))
    for attempt in attempts:
        attempt.on_end(lambda _: ended.set())
    while any(attempt.end is None for attempt in attempts):
        ended.clear()
        await ended.wait()


def _trace_file(out: Path, arm: "Arm") -> Path:
    return out / f"{arm.name.replace(':', '.').replace('/', '.')}.jsonl"


def _step_text(step: "StepReport") -> str:
    return f"step {step.seconds:5.2f} s   reward {step.reward:.3f}   {step.tokens} tokens"


@contextmanager
def _bar(console: "Console", name: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar; call what it yields with a text, and a total if that has become known."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=total, text="")

        def tell(text: str, new_total: int | None = None) -> None:
            progress.update(task, advance=1, text=text, total=new_total or total)

        yield tell
