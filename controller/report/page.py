"""The HTML page: a headline table, charts, a timeline, decisions, and what it does not show."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from steersman.controller.checklist import checklist_html
from steersman.controller.report import charts
from steersman.controller.report.drafts import draft_section
from steersman.controller.report.gantt import gantt
from steersman.controller.report.html import chip, ending_legend, figure, legend, write_document
from steersman.controller.report.load import Load, load_figures, load_of
from steersman.controller.report.summary import EDGE_STEPS, RunSummary, StepSummary, distinguished
from steersman.controller.report.told import checklist_of
from steersman.estimators.errors import InvalidInputError

DECISIONS_SHOWN = 10
Figure = float | int | None


def write_report(
    out: Path, runs: Sequence[RunSummary], told: Mapping[str, str] | None = None
) -> None:
    """Write one self-contained page; the first run is what the others are compared with.

    `told`: items of the reporting checklist that stand over what the traces tell.
    """
    if not runs:
        raise InvalidInputError("a report needs at least one run")
    runs = distinguished(runs)
    body = "".join(
        (
            _head(runs),
            _headline(runs),
            _caveats(runs),
            _charts(runs),
            _timelines(runs),
            draft_section(runs),
            _decisions(runs),
            _facts(runs),
            checklist_html(checklist_of(runs, told)),
        )
    )
    write_document(out, "Steersman report", body)


def _head(runs: Sequence[RunSummary]) -> str:
    names = " against ".join(escape(run.policy) for run in runs)
    first = runs[0].facts
    steps = max(len(run.timed_steps) for run in runs)
    return (
        f'<header><p class="kicker">Steersman rollout report</p><h1>{names}</h1>'
        f"<p class=sub>{steps} steps each on {len(runs[0].replicas)} replicas. "
        f"Started {escape(first.get('started', '?'))}.</p>"
        f"{legend([run.policy for run in runs])}</header>"
    )


ROWS: list[tuple[str, str, Callable[[RunSummary], Figure], str]] = [
    ("Rollout time of a step, median", "s", lambda r: r.step_s(0.5), ".2f"),
    ("Rollout time of a step, 90th percentile", "s", lambda r: r.step_s(0.9), ".2f"),
    ("Rollout time, all steps and the final drain", "s", lambda r: r.rollout_s, ".1f"),
    ("Tokens in answers", "", lambda r: r.tokens, ",d"),
    ("Tokens per second of rollout", "", lambda r: _ratio(r.tokens, r.rollout_s), ",.0f"),
    ("Answers asked for", "", lambda r: r.asked, ",d"),
    ("Answers delivered", "", lambda r: len(r.lengths), ",d"),
    ("ended by the model", "-", lambda r: r.total("finished"), ",d"),
    ("cut off at the token cap", "-", lambda r: r.total("truncated"), ",d"),
    ("stopped or failed", "-", lambda r: r.total("other"), ",d"),
    ("Migrated (times)", "", lambda r: r.total("migrated"), ",d"),
    ("Deferred to a later step (times)", "", lambda r: r.total("deferred"), ",d"),
    ("Restarted or expired", "", lambda r: r.total("replaced"), ",d"),
    ("Mean length, all answers", "tokens", lambda r: r.mean_length_asked, ".1f"),
    ("Mean length, answers in their own step", "tokens", lambda r: r.mean_length_kept, ".1f"),
    (
        "Groups whose rewards are all equal",
        "%",
        lambda r: _ratio(100 * r.degenerate_groups, r.rewarded_groups),
        ".1f",
    ),
    (f"Mean reward, first {EDGE_STEPS} steps", "", lambda r: r.edge_rewards()[0], ".3f"),
    (f"Mean reward, last {EDGE_STEPS} steps", "", lambda r: r.edge_rewards()[1], ".3f"),
    (
        "Engine against trainer, largest difference in log p",
        "",
        lambda r: r.logprob_difference,
        ".1e",
    ),
    ("Answers lost", "!", lambda r: r.lost, "d"),
    ("Answers doubled", "!", lambda r: r.doubled, "d"),
    ("Objections of the trace's invariants", "!", lambda r: len(r.problems), "d"),
    ("Times the fallback took over", "", lambda r: r.fail_open, "d"),
]
"""Text, unit ("-": a part of the row above; "!": must be 0), figure, format."""
COMPARED = 5
"""The first rows also show the difference from the first run."""


def _headline(runs: Sequence[RunSummary]) -> str:
    head = "".join(f'<th scope="col">{chip(i, run.policy)}</th>' for i, run in enumerate(runs))
    rows = "".join(_row(number, runs) for number in range(len(ROWS)))
    return (
        '<section><h2>In numbers</h2><div class="scroll"><table class="figures"><thead><tr>'
        f"<th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(number: int, runs: Sequence[RunSummary]) -> str:
    text, unit, figure, form = ROWS[number]
    values = [figure(run) for run in runs]
    cells = []
    for i, value in enumerate(values):
        css = "bad" if unit == "!" and value else "good" if unit == "!" else ""
        delta = _delta(values[0], value) if i and number < COMPARED else ""
        cells.append(f'<td class="{css}">{_shown(value, form)}{delta}</td>')
    kind = "part" if unit == "-" else ""
    tail = f' <span class="unit">{unit}</span>' if unit not in ("", "-", "!") else ""
    return f'<tr class="{kind}"><th scope="row">{text}{tail}</th>{"".join(cells)}</tr>'


def _delta(base: Figure, value: Figure) -> str:
    if not base or value is None:
        return ""
    change = f"{100 * (value / base - 1):+.1f}".replace("-", "\u2212")
    return f'<span class="delta">{change} %</span>'


def _shown(value: Figure, form: str) -> str:
    if value is None:
        return '<span class="none">none</span>'
    return format(value, form).replace(",", "\u202f").replace("-", "\u2212")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _caveats(runs: Sequence[RunSummary]) -> str:
    seeds = {run.facts.get("seed", "?") for run in runs}
    return (
        '<section class="caveat"><h2>What this shows, and what it does not</h2><p>'
        "Live runs, one per column, on the machine named below, with "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}. Times are of rollout only: from the "
        "request for a step to its last answer that was waited for. Training and weight pushes "
        "are not in them. A deferred answer leaves its step early and comes with a later one, so "
        "read times together with the answers delivered, with both mean lengths, and with the "
        "final drain.</p><p>One run is one sample: sampled tokens, reward and the machine's other "
        "work vary from run to run. A difference between two columns is no proof until it "
        "repeats over several seeds.</p></section>"
    )


def _charts(runs: Sequence[RunSummary]) -> str:
    return (
        '<section><h2>Step by step</h2><div class="grid2">'
        + figure(
            "Rollout time of each step",
            "The final drain is not drawn; it is in the table's total.",
            charts.step_times(runs),
        )
        + _rewards(runs)
        + figure(
            "Length of the answers",
            "All answers, late ones included. Diamonds mark the means.",
            charts.lengths(runs),
        )
        + _load(runs)
        + "</div></section>"
    )


def _rewards(runs: Sequence[RunSummary]) -> str:
    if not any(run.rewarded_groups for run in runs):
        return ""
    return figure(
        "Mean reward of each step",
        "Over the answers that the step delivered. Higher is better.",
        charts.rewards(runs),
    )


def _load(runs: Sequence[RunSummary]) -> str:
    number = charts.busiest_step(runs)
    if number is None:
        return ""
    steps = [run.find(number) for run in runs]
    loads = [_live_load(run, step) if step else None for run, step in zip(runs, steps, strict=True)]
    slots = ", ".join(dict.fromkeys(f"{sum(run.slots.values()):,}" for run in runs))
    return load_figures(loads, number, slots)


def _live_load(run: RunSummary, step: StepSummary) -> Load:
    span_s = (step.started_s, step.started_s + step.seconds)
    usage = {name: np.array(seen).reshape(-1, 2) for name, seen in run.kv_usage.items()}
    kv_usage = {name: (seen[:, 0], seen[:, 1]) for name, seen in usage.items()}
    return load_of(run.bars, run.slots, span_s, kv_usage)


def _timelines(runs: Sequence[RunSummary]) -> str:
    step = charts.busiest_step(runs)
    if step is None:
        return ""
    moved = any(run.total("migrated") + run.total("deferred") for run in runs)
    chosen_by = "in which most was moved, not a typical one" if moved else "that took longest"
    why = f"The step shown is the one {chosen_by}."
    chosen = [(run, found) for run in runs if (found := run.find(step)) is not None]
    axis_s = max(found.seconds for _, found in chosen) * 1.02
    pictures = ""
    for run, found in chosen:
        span_s = (found.started_s, found.started_s + found.seconds)
        title = f"Timeline of step {step}, {run.policy}"
        drawn = gantt(run.bars, run.replicas, span_s, axis_s, title)
        note = f"{_step_text(found)}. {drawn.left_out}".strip()
        pictures += figure(run.policy, note, drawn.svg, wide=True)
    return (
        f"<section><h2>Who was busy in step {step}</h2><p>Each bar is one attempt on one replica, "
        f"coloured by how it ended; a diamond marks where it was moved away. {why} The time axes "
        f"are the same.</p>{ending_legend({b.ending for r in runs for b in r.bars})}{pictures}"
        "</section>"
    )


def _step_text(step: StepSummary) -> str:
    return (
        f"{step.seconds:.2f} s, {step.tokens:,} tokens delivered, {step.migrated} migrated, "
        f"{step.deferred} deferred, {step.resumed} resumed"
    )


def _decisions(runs: Sequence[RunSummary]) -> str:
    parts = []
    for i, run in enumerate(runs):
        name = f"<h3>{chip(i, run.policy)}</h3>"
        if not run.decisions:
            placed = f"It placed {run.placed} trajectories and never interrupted one."
            parts.append(f"{name}<p>{placed}</p>")
            continue
        rows = "".join(
            f"<tr><td class=num>{d.t_s:.1f}</td><td>{escape(d.action)}</td>"
            f"<td class=num>{d.trajectory_id}</td><td>{escape(d.replica) or '&ndash;'}</td>"
            f"<td class=num>{d.gain_s:.2f}</td><td class=num>{d.cost_s:.2f}</td>"
            f"<td>{escape(d.outcome) or '?'}</td><td>{escape(d.reason)}</td></tr>"
            for d in run.decisions[:DECISIONS_SHOWN]
        )
        shown = min(DECISIONS_SHOWN, len(run.decisions))
        parts.append(
            f"{name}<p>{shown} of {len(run.decisions)}, by predicted gain less cost; "
            f"it placed {run.placed} trajectories besides.</p>"
            '<div class="scroll"><table class="decisions"><thead><tr><th>at, s</th><th>action</th>'
            "<th>trajectory</th><th>target</th><th>gain, s</th><th>cost, s</th><th>outcome</th>"
            f"<th>why</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )
    return f"<section><h2>Decisions that interrupted a trajectory</h2>{''.join(parts)}</section>"


def _facts(runs: Sequence[RunSummary]) -> str:
    keys = list(dict.fromkeys(key for run in runs for key in run.facts))
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(run.facts.get(key, '?'))}</td>" for run in runs)
        + "</tr>"
        for key in keys
    )
    head = "".join(f"<th>{escape(run.policy)}</th>" for run in runs)
    problems = "".join(
        f"<li>{escape(run.policy)}: {escape(text)}</li>"
        for run in runs
        for text in run.problems[:DECISIONS_SHOWN]
    )
    listed = f"<h3>Objections</h3><ul>{problems}</ul>" if problems else ""
    return (
        '<section><h2>The runs</h2><div class="scroll"><table class="facts"><thead><tr><th></th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>{listed}</section>"
    )
