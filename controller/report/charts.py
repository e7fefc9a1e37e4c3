"""The report's charts, as SVG text: one function each."""

import math
from collections.abc import Sequence

from steersman.controller.report.summary import Bar, RunSummary, StepSummary
from steersman.controller.report.svg import Panel, spread

ENDINGS = ("finished", "truncated", "migrated", "deferred", "stopped", "lost", "open")
"""How an attempt can end; also the CSS classes of the timeline's bars."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""The lines differ by more than their colour."""
BINS = 24


def step_times(runs: Sequence[RunSummary]) -> str:
    """Seconds of each step."""
    steps = [step for run in runs for step in run.timed_steps]
    panel = Panel(
        _step_range(runs),
        spread([step.seconds for step in steps]),
        "Rollout time of each step",
        "step",
        "seconds",
        x_whole=True,
    )
    for i, run in enumerate(runs):
        points = [(float(s.step), s.seconds) for s in run.timed_steps]
        tips = [f"{run.policy}, step {s.step}: {s.seconds:.2f} s" for s in run.timed_steps]
        panel.line(points, f"c{i}", tips, DASHES[i % len(DASHES)])
    return panel.svg()


def rewards(runs: Sequence[RunSummary]) -> str:
    """Mean reward of each step; a gap where nothing was delivered."""
    values = [s.reward for run in runs for s in run.timed_steps if s.reward is not None]
    panel = Panel(
        _step_range(runs),
        spread([*values, 0.0]),
        "Mean reward of each step",
        "step",
        "mean reward",
        x_whole=True,
    )
    for i, run in enumerate(runs):
        points = [(float(s.step), _or_nan(s.reward)) for s in run.timed_steps]
        tips = [f"{run.policy}, step {x:.0f}: {y:.3f}" for x, y in points]
        panel.line(points, f"c{i}", tips, DASHES[i % len(DASHES)])
    return panel.svg()


def lengths(runs: Sequence[RunSummary]) -> str:
    """Histogram of the answers' lengths, as shares, so that runs of any size compare."""
    longest = max((length for run in runs for length in run.lengths), default=0)
    width = max(math.ceil((longest + 1) / BINS), 1)
    shares = [_shares(run.lengths, width) for run in runs]
    panel = Panel(
        (0.0, float(width * BINS)),
        spread([share for row in shares for share in row]),
        "Length of the answers",
        "tokens",
        "share of the answers",
        y_percent=True,
    )
    for i, (run, row) in enumerate(zip(runs, shares, strict=True)):
        outline = [
            (float(edge * width), share)
            for bin_, share in enumerate(row)
            for edge in (bin_, bin_ + 1)
        ]
        panel.area(outline, f"c{i}", DASHES[i % len(DASHES)])
        if run.lengths:
            mean = sum(run.lengths) / len(run.lengths)
            panel.mark(mean, panel.y[1] * 0.02, 5, f"dot c{i}")
    return panel.svg()


def occupancy(runs: Sequence[RunSummary], step: int) -> str:
    """Sequences that run on the fleet, over one step."""
    chosen = [(i, run, found) for i, run in enumerate(runs) if (found := _find(run, step))]
    curves = [_running(run, found) for _, run, found in chosen]
    panel = Panel(
        (0.0, max((found.seconds for _, _, found in chosen), default=1.0) * 1.02),
        spread([y for curve in curves for _, y in curve]),
        f"Sequences running during step {step}",
        "seconds since the step began",
        "sequences",
    )
    for (i, _, _), curve in zip(chosen, curves, strict=True):
        panel.area(curve, f"c{i}", DASHES[i % len(DASHES)])
    return panel.svg()


def timeline(runs: Sequence[RunSummary], step: int) -> list[str]:
    """What ran where in one step, one picture per run, all on the same time axis."""
    chosen = [(run, found) for run in runs if (found := _find(run, step)) is not None]
    longest = max((found.seconds for _, found in chosen), default=1.0)
    return [_timeline(run, found, longest * 1.02) for run, found in chosen]


def busiest_step(runs: Sequence[RunSummary]) -> int | None:
    """The step in which most was moved and deferred, or the slowest one where nothing was."""
    steps = [step for run in runs for step in run.timed_steps]
    if not steps:
        return None
    return max(steps, key=lambda s: (s.migrated + s.deferred, s.seconds)).step


def _timeline(run: RunSummary, step: StepSummary, longest: float) -> str:
    end_s = step.started_s + step.seconds
    lanes, owners = _lanes(run, step.started_s, end_s)
    thick = 9.0 if len(lanes) <= 40 else max(3.0, 360.0 / len(lanes))
    rows = max(len(lanes), 1)
    first = {name: owners.index(name) for name in run.replicas if name in owners}
    last = {name: len(owners) - 1 - owners[::-1].index(name) for name in first}
    panel = Panel(
        (0.0, longest),
        (float(rows), -1.0),
        f"Timeline of step {step.step}, {run.policy}",
        "seconds since the step began",
        "",
        width=1060,
        height=int(rows * (thick + 1.5)) + Panel.top + Panel.bottom,
        left=92,
        y_ticks=[((first[name] + last[name]) / 2, name[-12:]) for name in first],
    )
    for row, lane in enumerate(lanes):
        for bar in lane:
            _draw(panel, bar, row, thick, step.started_s, end_s)
    panel.upright(step.seconds, f"step ends, {step.seconds:.2f} s")
    return panel.svg()


def _running(run: RunSummary, step: StepSummary) -> list[tuple[float, float]]:
    """Corners of the staircase (seconds since the step began, attempts alive)."""
    end_s = step.started_s + step.seconds
    changes: dict[float, int] = {0.0: 0}
    for bar in run.bars:
        if _overlaps(bar, step.started_s, end_s):
            for t_s, by in ((bar.start_s, 1), (_end(bar, end_s), -1)):
                changes[t_s - step.started_s] = changes.get(t_s - step.started_s, 0) + by
    corners, count = [(0.0, 0.0)], 0
    for t_s, by in sorted(changes.items()):
        corners.append((t_s, float(count)))
        count += by
        corners.append((t_s, float(count)))
    return corners


def _draw(panel: Panel, bar: Bar, row: int, thick: float, origin_s: float, end_s: float) -> None:
    start, end = bar.start_s - origin_s, min(bar.end_s, end_s) - origin_s
    tip = (
        f"trajectory {bar.trajectory_id} on {bar.replica}: {bar.ending} after {end - start:.2f} s, "
        f"{bar.tokens} tokens on a prefix of {bar.prefix_tokens}"
    )
    panel.bar(start, end, row, thick, f"bar {bar.ending}", tip)
    if bar.ending in ("migrated", "deferred"):
        panel.mark(end, row, thick * 0.62, f"mark {bar.ending}")


def _lanes(run: RunSummary, start_s: float, end_s: float) -> tuple[list[list[Bar]], list[str]]:
    """Bars of an interval in as few rows as hold them, replica by replica; the rows' replicas."""
    lanes: list[list[Bar]] = []
    owners: list[str] = []
    for replica in run.replicas:
        mine: list[list[Bar]] = []
        bars = [b for b in run.bars if b.replica == replica and _overlaps(b, start_s, end_s)]
        for bar in sorted(bars, key=lambda b: (b.start_s, -_end(b, end_s))):
            free = (lane for lane in mine if _end(lane[-1], end_s) <= bar.start_s)
            lane = next(free, None)
            if lane is None:
                mine.append([bar])
            else:
                lane.append(bar)
        gap: list[list[Bar]] = [[]] if lanes and mine else []
        lanes += gap + mine
        owners += [""] * len(gap) + [replica] * len(mine)
    return lanes, owners


def _overlaps(bar: Bar, start_s: float, end_s: float) -> bool:
    return start_s <= bar.start_s < end_s


def _end(bar: Bar, otherwise_s: float) -> float:
    return otherwise_s if math.isnan(bar.end_s) else bar.end_s


def _find(run: RunSummary, step: int) -> StepSummary | None:
    return next((found for found in run.steps if found.step == step), None)


def _shares(values: list[int], width: int) -> list[float]:
    counts = [0] * BINS
    for value in values:
        counts[min(value // width, BINS - 1)] += 1
    return [count / max(len(values), 1) for count in counts]


def _step_range(runs: Sequence[RunSummary]) -> tuple[float, float]:
    numbers = [step.step for run in runs for step in run.timed_steps] or [0]
    return (float(min(numbers)), float(max(max(numbers), min(numbers) + 1)))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
