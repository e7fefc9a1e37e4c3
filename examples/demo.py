"""`steersman demo`: a real reinforcement run, steered, on a local Ray + vLLM fleet.

Pretrains a tiny language model once, starts the fleet, and improves the model by GRPO under each
policy in turn, from the same weights, with the same prompts and sampling seeds.  Progress goes to
stderr; stdout carries the table, or one JSON object with `--json`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.controller.plugins import load
from steersman.estimators.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

    from steersman.examples.signs.reinforce import RunReport, RunSettings, StepReport
    from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

POLICIES = ["sticky_least_inflight", "adaptive"]
OPTIONS = {"adaptive": ["placement.options.allow=corrected", "placement.options.defer_share=0.4"]}
"""A step of 16 groups is short: of a quarter of them, those that were put off before leave few."""
FULL_STEPS, QUICK_STEPS = 30, 12
FULL_CAP, QUICK_CAP = 768, 512
"""Tokens per answer: the higher one leaves the tail of the lengths whole (4 % reach it)."""
REWARD_STEPS = 3
"""Steps averaged into the first and last reward; one step's mean has a standard error of .04."""


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
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    # before torch is imported: two OpenMP threads per process spin against the engines' own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    policies = args.policy or POLICIES
    args.out = args.out or Path(time.strftime("runs/demo-%Y%m%d-%H%M%S"))
    _validate(args, policies)
    from rich.console import Console

    console = Console(stderr=True)
    reports = asyncio.run(_demo(args, policies, console))
    report_file = _write_report(args.out, policies)
    summary = {"policies": {report.policy: summarize(report) for report in reports}}
    if args.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        _print_table(summary["policies"])
    console.print(f"report: {report_file}")
    return 0


def _validate(args: argparse.Namespace, policies: list[str]) -> None:
    """Refuse what cannot work before anything is started."""
    from steersman.controller.config import load_config

    for name in policies:
        load("policies.placement", name)
        load_config(args.config, [*args.set, f"placement.name={name}"], environ={})
    if len(set(policies)) != len(policies):
        raise InvalidInputError("--policy names one policy twice")
    if args.steps is not None and args.steps < 1:
        raise InvalidInputError(f"--steps is {args.steps}; valid: 1 or more")
    taken = [str(path) for path in map(partial(_trace_file, args.out), policies) if path.exists()]
    if taken:
        raise InvalidInputError(f"{', '.join(taken)} exist; name another folder with --out")
    if args.replicas < 1:
        raise InvalidInputError(f"--replicas is {args.replicas}; valid: 1 or more")


def settings_of(args: argparse.Namespace) -> "RunSettings":
    """What each policy is asked to do."""
    from steersman.examples.signs.reinforce import RunSettings

    steps = args.steps or (QUICK_STEPS if args.quick else FULL_STEPS)
    cap = QUICK_CAP if args.quick else FULL_CAP
    return RunSettings(steps=steps, seed=args.seed, max_new_tokens=cap)


async def _demo(
    args: argparse.Namespace, policies: list[str], console: "Console"
) -> list["RunReport"]:
    start = await asyncio.to_thread(_pretrain, console)
    settings = settings_of(args)
    args.out.mkdir(parents=True, exist_ok=True)
    async with _LaunchedFleet(args.replicas, args.ray, start, console) as fleet:
        from steersman.examples.signs.reinforce import reinforce

        await _warm_up(fleet, settings)
        reports = []
        version = 1
        for policy in policies:
            with _bar(console, f"{policy:<24}", settings.steps) as tell:
                reports.append(
                    await reinforce(
                        fleet,
                        policy,
                        [*([] if args.config else OPTIONS.get(policy, [])), *args.set],
                        start,
                        version,
                        settings,
                        _trace_file(args.out, policy),
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
            engine=EngineOptions(dtype="float32", max_model_len=1024, max_num_seqs=64),
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


def summarize(report: "RunReport") -> dict[str, Any]:
    """The figures of one policy; times are seconds, lengths are tokens."""
    times = sorted(step.seconds for step in report.steps)
    rewards = [step.reward for step in report.steps if step.reward == step.reward]
    lengths = [len(t.token_ids) for t in report.trajectories]
    return {
        "reward_first": round(statistics.fmean(rewards[:REWARD_STEPS]), 4),
        "reward_last": round(statistics.fmean(rewards[-REWARD_STEPS:]), 4),
        "held_out_first": round(report.held_out_first, 4),
        "held_out_last": round(report.held_out_last, 4),
        "tokens": sum(lengths),
        "step_s_p50": round(_quantile(times, 0.5), 3),
        "step_s_p90": round(_quantile(times, 0.9), 3),
        "rollout_s_p50": round(_quantile(sorted(s.rollout_s for s in report.steps), 0.5), 3),
        "total_s": round(report.total_s, 1),
        "finished": sum(t.finished for t in report.trajectories),
        "truncated": sum(not t.finished for t in report.trajectories),
        "deferred": report.deferred,
        "migrated": report.migrated,
        "degenerate_share": round(
            statistics.fmean(step.degenerate_share for step in report.steps), 3
        ),
        "rewards": [round(step.reward, 4) for step in report.steps],
        "mean_length_kept": round(statistics.fmean(report.on_time_lengths or [0]), 2),
        "mean_length_asked": round(statistics.fmean(lengths or [0]), 2),
        "logprob_difference_max": max(step.logprob_difference for step in report.steps),
        "lost": report.lost,
        "doubled": report.doubled,
    }


def _quantile(ordered: list[float], q: float) -> float:
    """Nearest-rank quantile."""
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def _print_table(policies: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="steersman demo", title_justify="left")
    table.add_column("")
    for name in policies:
        table.add_column(name, justify="right")
    for figure in next(iter(policies.values())):
        if figure != "rewards":  # the page draws them
            table.add_row(figure, *(f"{row[figure]:g}" for row in policies.values()))
    Console().print(table)


def _write_report(out: Path, policies: list[str]) -> Path:
    from steersman.controller.report import summarize as summarize_trace
    from steersman.controller.report import write_report
    from steersman.controller.trace.reader import read

    runs = [summarize_trace(read(_trace_file(out, policy))) for policy in policies]
    write_report(out / "report.html", runs)
    return out / "report.html"


def _trace_file(out: Path, policy: str) -> Path:
    return out / f"{policy.replace(':', '.')}.jsonl"


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
