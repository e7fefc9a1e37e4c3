"""The HTML page of a replay: figures, what they rest on, steps, the slowest step, work done."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from steersman.controller.checklist import checklist_html
from steersman.controller.replay import plots
from steersman.controller.replay.headline import rows_of
from steersman.controller.replay.picture import find_step, replay_bars, replay_load, slowest_step
from steersman.controller.replay.run import Result, StepResult
from steersman.controller.replay.study import Comparison
from steersman.controller.replay.summary import TIER
from steersman.controller.replay.told import checklist_of
from steersman.controller.report.gantt import gantt
from steersman.controller.report.html import (
    chip,
    ending_legend,
    figure,
    legend,
    line_legend,
    table,
    write_document,
)
from steersman.controller.report.load import Load, load_figures
from steersman.mechanisms.simulated.profile import HardwareProfile

STEPS_SHOWN = 20
"""Steps in the table of work done; more are a table that nobody reads."""
BEYOND = 0.05
"""Share of the replica time beyond the profile's support that the page warns of."""


def write_page(out: Path, comparison: Comparison, told: Mapping[str, str] | None = None) -> None:
    """Write one self-contained page; the first policy is what the others are compared with."""
    parts = (_head, _headline, _grounds, _steps, _slowest, _work)
    names = " against ".join(s.policy for s in comparison.summaries)
    body = "".join(part(comparison) for part in parts)
    body += checklist_html(checklist_of(comparison, told))
    write_document(out, f"Steersman replay: {names}", body)


def _head(c: Comparison) -> str:
    plan, steps = c.plan, len(c.workloads[0].steps)
    kinds = f": {plan.described}" if plan.profiles else f" of {plan.profile.name}"
    amount = "Overlapping steps" if c.stream else f"{steps} step{'s' * (steps != 1)}"
    names = " against ".join(escape(s.policy) for s in c.summaries)
    return (
        f'<header><p class="kicker">Steersman replay <b class="tier">tier: {TIER}</b></p>'
        f'<h1>{names}</h1><p class="sub">{amount}, '
        f"{c.workloads[0].trajectories:,} trajectories, on {c.plan.replicas} simulated replicas"
        f"{escape(kinds)}.</p>{legend([s.policy for s in c.summaries])}</header>"
    )


def _headline(c: Comparison) -> str:
    head = ["", *(chip(i, s.policy) for i, s in enumerate(c.summaries))]
    rows = [[escape(text), *figures] for text, figures in rows_of(c.summaries)]
    return f"<section><h2>In numbers</h2>{table('figures', head, rows)}</section>"


def _grounds(c: Comparison) -> str:
    count = len(c.workloads)
    hardware = "; ".join(_hardware(profile) for profile in dict.fromkeys(c.plan.each))
    beyond = "; ".join(_beyond(s.policy, s.unsupported_share) for s in c.summaries)
    drawn = (
        f"Lengths that were cut off in the log were drawn {count} times; figures are means, and "
        "pictures of a single step show the first draw."
        if count > 1
        else "No length in the log was cut off before its end."
    )
    one = c.stream or len(c.workloads[0].steps) == 1
    spread = (
        "It is one sample, which has no interval: read a small difference as none."
        if one
        else "Intervals (90 %) tell what other steps of the same run would have given; they do not "
        "cover an error of the hardware profile."
    )
    assumed = "".join(f"<li>{escape(sentence)}.</li>" for sentence in c.workloads[0].assumed)
    listed = f"<p>Assumed, because the log does not tell:</p><ul>{assumed}</ul>" if assumed else ""
    return (
        '<section class="caveat"><h2>What this shows, and what it does not</h2>'
        "<p>A simulation. Every policy is the one that runs live; the fleet below it is a model, "
        f"and each trajectory is as long as the log says. {spread} {drawn}</p>"
        f"<p>Hardware, per replica: {hardware}. "
        f"Share of the replica time at a load beyond that: {beyond}.</p>{listed}</section>"
    )


def _hardware(profile: HardwareProfile) -> str:
    lowest, highest = profile.batch_range
    fitted = f"batches of {lowest} to {highest}" if highest else "no measurement"
    return (
        f"{escape(profile.name)}, {profile.max_num_seqs} slots and {profile.kv_capacity_tokens:,} "
        f"tokens of KV cache, fitted on {fitted}"
    )


def _beyond(policy: str, share: float) -> str:
    css = ' class="bad"' if share > BEYOND else ""
    return f"{escape(policy)} <b{css}>{share:.1%}</b>"


def _steps(c: Comparison) -> str:
    drains = any(not step.asked for runs in c.results for run in runs for step in run.steps)
    drain = " The final drain is spread over the steps." if drains else ""
    said = "All policies write the same lengths."
    if c.stream:
        said = "A step is the time to the next full batch, which need not be of the same groups."
    pictures = figure("Distribution", f"Further left is faster.{drain}", plots.distribution(c))
    pictures += figure("Each step", f"{said}{drain}", plots.step_times(c))
    if not c.stream:  # there are no bounds of a batch, only of the whole run
        pictures += _bounds(c)
    return f'<section><h2>Rollout time of a step</h2><div class="grid2">{pictures}</div></section>'


def _bounds(c: Comparison) -> str:
    key = line_legend(
        ("bound", dashes, text)
        for dashes, text in zip(plots.BOUND_DASHES, plots.BOUNDS.values(), strict=True)
    )
    return figure(
        "Against what no scheduling can beat",
        "In grey, four lower bounds: the longest trajectory alone, all work at the best rate, "
        "the mean of what replicas need, the area of KV cache.",
        key + plots.bounds_and_achieved(c),
    ) + figure(
        "Efficiency",
        "The largest of the four bounds over what was achieved; 100 % cannot be beaten.",
        plots.efficiency(c),
    )


def _slowest(c: Comparison) -> str:
    first = [runs[0] for runs in c.results]
    number = slowest_step(first)
    chosen = [find_step(result, number) for result in first]
    axis_s = max(step.makespan_s for step in chosen if step is not None) * 1.02
    slots = f"{c.plan.slots.sum():,}"
    loads: list[Load | None] = []
    pictures, used = "", set[str]()
    for result, step in zip(first, chosen, strict=True):
        if step is None:
            loads.append(None)
            continue
        bars = replay_bars(result, step, c.workloads[0], c.plan)
        loads.append(replay_load(result, step, bars, c.plan))
        used |= {bar.ending for bar in bars}
        span_s = (step.start_s, step.start_s + step.makespan_s)
        title = f"Timeline of step {number}, {result.policy}"
        drawn = gantt(bars, c.plan.names, span_s, axis_s, title)
        note = f"{step.makespan_s:.2f} s, {step.moves:,} migrated, {step.deferred:,} deferred."
        pictures += figure(result.policy, f"{note} {drawn.left_out}".strip(), drawn.svg, wide=True)
    return (
        f"<section><h2>The slowest step: {number}</h2>"
        "<p>Not a typical one. The time axes are the same.</p>"
        f'<div class="grid2">{load_figures(loads, number, slots)}</div>'
        "<h3>Who was busy</h3><p>Each bar is one attempt on one replica, from when it was given to "
        "it, which may be before a slot is free there, coloured by how it ended. A diamond marks "
        f"where it was moved away.</p>{ending_legend(used)}{pictures}</section>"
    )


def _work(c: Comparison) -> str:
    first = [runs[0] for runs in c.results]
    numbers = sorted({step.step for result in first for step in result.steps})
    slowest = sorted(numbers, key=lambda number: -_longest(first, number))[:STEPS_SHOWN]
    shown = [number for number in numbers if number in slowest]
    rows = [
        _work_row(number, i, result.policy, step)
        for number in shown
        for i, result in enumerate(first)
        if (step := find_step(result, number)) is not None
    ]
    head = ["policy", "step", "seconds", "tokens", "finished", "at the cap", "deferred"]
    head += ["migrated", "mean kept", "mean asked"]
    some = (
        f"The {len(shown)} slowest of {len(numbers)} steps. " if len(shown) < len(numbers) else ""
    )
    return (
        f"<section><h2>Work done</h2><p>{some}Means are of lengths, in tokens: of "
        "what a step asked for, and of those answers that it did not put off. A policy that keeps "
        "shorter answers than it was asked for is fast because it defers.</p>"
        f"{table('figures compact', head, rows)}</section>"
    )


def _longest(results: list[Result], number: int) -> float:
    return max(s.makespan_s for result in results for s in result.steps if s.step == number)


def _work_row(number: int, i: int, policy: str, s: StepResult) -> list[str]:
    kept = f"{s.mean_length_kept:.0f}" if s.mean_length_kept == s.mean_length_kept else "none"
    return [
        chip(i, policy),
        f"{number}" if s.asked else f"{number}, drain",
        f"{s.makespan_s:.2f}",
        f"{s.tokens:,}",
        f"{s.finished - s.truncated:,}",
        f"{s.truncated:,}",
        f"{s.deferred:,}",
        f"{s.moves:,}",
        kept,
        f"{s.mean_length_asked:.0f}" if s.asked else "none",
    ]
