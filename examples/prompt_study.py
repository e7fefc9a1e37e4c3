"""`steersman bench prompts`: what choosing prompts gives, as cost to reach a quality.

Real GRPO of the demo's tiny model: one run per arm, pool and seed, all from the same pretrained
weights (`signs.prompt_loop`).  Rollouts are sampled in process, by the same model at the same
temperature as the engines of `steersman demo`, so that they are distributed as the engines' are, at
a fraction of the time.  Every run spends the same budget of rollout tokens, and all that were
written count, also those of groups that were dropped.  Whenever so many more were spent, the
share of held-out solvable problems that one sampled answer each solves is measured (with common
random numbers; not counted as cost) and written to a quality log, one per pool, which
`steersman evaluate` reads.

The equal-work control asks for as many samples, step by step, as the last arm did under the same
seed, of prompts that nobody chose: what it gains is owed to the work, not to the choice.

A run that a log already holds is not played again, so that a study that was stopped goes on.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.estimators.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console

    from steersman.controller.evaluate.quality_log import QualityPoint
    from steersman.controller.evaluate.study import Run, Study
    from steersman.controller.tournament.entries import Entry
    from steersman.estimators.observation import Floats
    from steersman.examples.signs.prompt_loop import LoopSettings
    from steersman.examples.signs.prompt_plan import Plan

ARMS = ["uniform", "dynamic_sampling", "prompt_value"]
"""What every trainer does, what DAPO does, and ours."""
CONTROL = "equal_work"
SHARES = [0.2, 0.55]
TARGETS = [0.60, 0.65]
"""The first is the headline.  The pretrained model starts near .45."""
TABLE_COLUMNS = 110
"""At least: a ratio and its interval do not fold."""
TIER = "real training, in-process rollouts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `steersman bench prompts`."""
    parser.add_argument(
        "--arm",
        action="append",
        metavar="NAME[,KEY=VALUE...]",
        help="a prompt policy, repeatable; the first is what the others are compared with "
        f"(default: {', '.join(ARMS)})",
    )
    parser.add_argument(
        "--no-control", action="store_true", help=f"leave out {CONTROL}, the last arm's control"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per arm (5)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the lowest (0)")
    parser.add_argument(
        "--unsolvable",
        type=float,
        action="append",
        metavar="SHARE",
        help=f"of the pool's prompts, repeatable (default: {' and '.join(map(str, SHARES))})",
    )
    parser.add_argument(
        "--groups", type=int, default=16, metavar="N", help="that a batch wants, of 8 samples (16)"
    )
    parser.add_argument(
        "--tokens", type=int, default=140_000, metavar="N", help="budget of a run (140000)"
    )
    parser.add_argument(
        "--every", type=int, default=15_000, metavar="N", help="tokens between evaluations (15000)"
    )
    parser.add_argument(
        "--problems", type=int, default=512, metavar="N", help="held out, per evaluation (512)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="other weights to start from")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="quality logs; continued if there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Play what the logs lack, and print what they say."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    from steersman.controller.tournament.entries import entry

    arms = [entry("prompts", text) for text in args.arm or ARMS]
    shares = args.unsolvable or SHARES
    _validate(args, arms, shares)
    from rich.console import Console

    from steersman.controller.evaluate.reading import read
    from steersman.controller.evaluate.told import checklist_of
    from steersman.examples.signs.pretrain import pretrained

    console = Console(stderr=True)
    args.model = args.model or pretrained()
    told, checklists = {}, {}
    for share in shares:
        _play_all(args, arms, share, console)
        study = read([log_file(args.out, share)])
        told[f"{share:g}"] = compared(study, arms[0].name)
        checklists[f"{share:g}"] = checklist_of(study, arms[0].name, {}).as_dict()
    if args.json:
        said = {"tier": TIER, "targets": TARGETS, "pools": told, "checklist": checklists}
        sys.stdout.write(json.dumps(said) + "\n")
    else:
        _print_tables(told)
        for share in shares:
            asked = f"--baseline {arms[0].name} {log_file(args.out, share)}"
            console.print(f"more: steersman evaluate curves {asked}", soft_wrap=True)
    return 0


def log_file(out: Path, share: float) -> Path:
    """The quality log of one pool."""
    return out / f"unsolvable-{share:g}.jsonl"


def _validate(args: argparse.Namespace, arms: Sequence["Entry"], shares: Sequence[float]) -> None:
    for name in ("seeds", "groups", "tokens", "every", "problems", "jobs"):
        if getattr(args, name) < 1:
            raise InvalidInputError(f"--{name} is {getattr(args, name)}; valid: 1 or more")
    if args.first_seed < 0:
        raise InvalidInputError(f"--first-seed is {args.first_seed}; valid: 0 or more")
    if len({arm.name for arm in arms}) < len(arms):
        raise InvalidInputError("--arm names one prompt policy twice")
    for arm in arms:
        if arm.overrides:
            raise InvalidInputError(
                f"--arm {arm.name}: {', '.join(arm.overrides)} is no option of {arm.policy}"
            )
    for share in shares:
        if not 0 <= share < 1:
            raise InvalidInputError(f"--unsolvable is {share}; valid: 0 to below 1")
    if len(set(shares)) < len(shares):
        raise InvalidInputError("--unsolvable names one pool twice")


def _play_all(
    args: argparse.Namespace, arms: Sequence["Entry"], share: float, console: "Console"
) -> None:
    """Every run of one pool that its log lacks; the controls last, since they need the others."""
    from steersman.controller.evaluate.quality_log import QualityLog

    path = log_file(args.out, share)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    done = whole_runs(path, args.tokens)
    with QualityLog(path, _header(args, share)) as log:

        def play(plans: list["Plan"]) -> None:
            missing = [plan for plan in plans if (plan.arm, plan.settings.seed) not in done]
            for number, points in enumerate(_outcomes(missing, args.jobs), start=1):
                for point in points:
                    log.append(point)
                done[points[0].arm, points[0].seed] = points
                line = f"{path.name} {number}/{len(missing)}: {_line(points)}"
                console.print(line, soft_wrap=True)

        play([_plan(args, arm, share, seed) for seed in seeds for arm in arms])
        if not args.no_control:
            play([_control(args, share, done[arms[-1].name, seed]) for seed in seeds])


def whole_runs(path: Path, budget: int) -> dict[tuple[str, int], list["QualityPoint"]]:
    """The runs that the log holds; one that a crash cut short is struck out of it."""
    import msgspec

    from steersman.controller.evaluate.quality_log import QualityPoint

    runs: dict[tuple[str, int], list[QualityPoint]] = {}
    if not path.exists():
        return runs
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [header]
    read = [msgspec.json.decode(line, type=QualityPoint) for line in lines if line.endswith("\n")]
    for point in read:
        runs.setdefault((point.arm, point.seed), []).append(point)
    runs = {key: points for key, points in runs.items() if points[-1].tokens >= budget}
    kept += [
        line for point, line in zip(read, lines, strict=False) if (point.arm, point.seed) in runs
    ]
    if len(kept) <= len(lines):  # without the header
        rest = path.with_suffix(".rest")
        rest.write_text("".join(kept), encoding="utf-8")
        rest.replace(path)
    return runs


def _line(points: Sequence["QualityPoint"]) -> str:
    first, last = points[0], points[-1]
    return (
        f"{last.arm}, seed {last.seed}: {last.step} steps, {last.tokens} tokens, "
        f"{first.quality:.3f} -> {last.quality:.3f}, {last.replica_s:.0f} s of rollouts"
    )


def _header(args: argparse.Namespace, share: float) -> dict[str, Any]:
    """What all runs of a log have in common: the items of the reporting checklist."""
    from steersman.examples.signs.grpo import GrpoConfig

    loop, grpo = settings_of(args, share), GrpoConfig()
    return {
        "metric": "share of held-out solvable problems that a sampled answer solves",
        "phase": "whole training runs: tokens that rollouts wrote, dropped groups included; CPU "
        "seconds of rollouts; wall-clock seconds of steps; evaluations are no cost",
        "hardware": f"CPU, one thread per run; {TIER}: the engines' model and temperature",
        "workload": f"signs task, pool of {loop.pool_size} prompts, {share:.0%} unsolvable; GRPO, "
        f"{loop.groups} groups of {loop.group_size}, cap {loop.max_new_tokens} tokens, learning "
        f"rate {grpo.learning_rate:g}, {grpo.minibatches} minibatches; budget {args.tokens} "
        f"tokens, {args.problems} problems evaluated every {args.every}; start {args.model.name}",
        "lever": "which prompts are rolled out, how many samples each, which groups are trained on",
    }


def settings_of(args: argparse.Namespace, share: float, seed: int = 0) -> "LoopSettings":
    """What every arm is asked to do."""
    from steersman.examples.signs.prompt_loop import LoopSettings

    return LoopSettings(seed=seed, groups=args.groups, unsolvable_share=share)


def _plan(args: argparse.Namespace, arm: "Entry", share: float, seed: int) -> "Plan":
    from steersman.examples.signs.prompt_plan import Plan

    return Plan(
        arm=arm.name,
        policy=arm.policy,
        options=tuple(arm.options.items()),
        model=args.model,
        settings=settings_of(args, share, seed),
        budget_tokens=args.tokens,
        every_tokens=args.every,
        problems=args.problems,
    )


def _control(args: argparse.Namespace, share: float, points: list["QualityPoint"]) -> "Plan":
    """The control of a run."""
    from dataclasses import replace

    from steersman.controller.tournament.entries import entry
    from steersman.examples.signs.prompt_plan import work_of

    blind = _plan(args, entry("prompts", "uniform"), share, points[0].seed)
    return replace(blind, arm=CONTROL, work=work_of(points))


def _outcomes(plans: Sequence["Plan"], jobs: int) -> Iterator[list["QualityPoint"]]:
    from steersman.controller.tournament.workers import outcomes
    from steersman.examples.signs.prompt_plan import play

    if jobs == 1:
        yield from map(play, plans)
    elif plans:
        yield from outcomes(play, plans, jobs)


def compared(study: "Study", base: str) -> list[dict[str, Any]]:
    """A row per arm: tokens to each target, and their ratio to those of `base`, paired by seed."""
    from steersman.controller.evaluate.paired import ratio

    rows = []
    for arm in (base, *(arm for arm in study.arms if arm != base)):
        seeds = study.common_seeds(arm, base)
        own, other = ([study.runs[name][seed] for seed in seeds] for name in (arm, base))
        row: dict[str, Any] = {"arm": arm, "seeds": len(seeds)}
        for target in TARGETS:
            costs, base_costs = _costs(own, target), _costs(other, target)
            compared = ratio(costs, base_costs, _budgets(own), _budgets(other))
            middle, low, high = compared.log.exp()
            row[f"tokens_to_{target:.2f}"] = [_number(cost) for cost in costs.tolist()]
            row[f"ratio_to_{target:.2f}"] = {
                "bound": compared.bound,
                "ratio": round(middle, 3),
                "ci95": [_number(low, 3), _number(high, 3)],
                "reached": compared.reached,
            }
        row["quality_at_budget"] = _mean([run.quality[-1] for run in own])
        for name in ("mean_length", "truncated_share"):
            row[name] = _mean([run.extras[name][-1] for run in own])
        row["replica_s"] = _mean([run.replica_s[-1] for run in own])
        rows.append(row)
    return rows


def _costs(runs: Sequence["Run"], target: float) -> "Floats":
    import numpy as np

    return np.array([run.curves["tokens"].cost_of(np.array([target]))[0] for run in runs])


def _budgets(runs: Sequence["Run"]) -> "Floats":
    import numpy as np

    return np.array([run.curves["tokens"].budget for run in runs])


def _number(value: float, digits: int = 0) -> float | None:
    """JSON has no infinity and no NaN."""
    return round(value, digits) if abs(value) < float("inf") else None


def _mean(values: Sequence[float]) -> float:
    return round(float(sum(values)) / len(values), 4)


def _print_tables(told: dict[str, list[dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, TABLE_COLUMNS)
    for share, rows in told.items():
        title = f"{float(share):.0%} of the pool unsolvable: rollout tokens to quality ({TIER})"
        table = Table(title=title, title_justify="left")
        table.add_column("arm", overflow="fold")
        table.add_column("seeds", justify="right")
        for target in TARGETS:
            table.add_column(f"to {target:.2f}", justify="right")
            table.add_column(f"/ {rows[0]['arm']}", justify="right")
        table.add_column("quality at the end", justify="right")
        for row in rows:
            cells = [cell for target in TARGETS for cell in _cells(row, f"{target:.2f}")]
            quality = f"{row['quality_at_budget']:.3f}"
            table.add_row(row["arm"], str(row["seeds"]), *cells, quality)
        console.print(table)


def _cells(row: dict[str, Any], target: str) -> tuple[str, str]:
    found = [cost for cost in row[f"tokens_to_{target}"] if cost is not None]
    mean = f"{sum(found) / len(found) / 1000:.0f}k" if found else "never"
    if len(found) < row["seeds"]:
        mean += f" ({len(found)} of {row['seeds']})"
    compared = row[f"ratio_to_{target}"]
    interval = "-".join("?" if end is None else f"{end:.2f}" for end in compared["ci95"])
    bound = compared["bound"].replace("=", "", 1) if compared["bound"] == "=" else compared["bound"]
    return mean, f"{bound}{compared['ratio']:.2f} ({interval})"
