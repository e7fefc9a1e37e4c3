"""A gateway's state for a terminal: rows of text, and a whole page of them for `--once`.

A trajectory's time is a strip of blocks around the present: how long it has been on its engine,
what is likely left, and a line up to where it ends in nine of ten cases.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steersman.controller.gateway.state import GatewayState, ReplicaState, TrajectoryState
from steersman.controller.gateway.why import seconds
from steersman.controller.watching.told import Told

Cell = TypeVar("Cell")
COLOURS = ("#56b4e9", "#f08a3c", "#2fc297", "#d89ac4", "#8ecbf0", "#e0b63c", "#a98be0", "#b9c05a")
"""Of the engines, in their order; those of the dashboard."""
STATES = {
    "enforcing": ("enforcing", "bold black on #4fd1a5"),
    "shadow": ("shadow: decides, does not act", "bold black on #56b4e9"),
    "fail_open": ("fail open: the default rule acts", "bold black on #f0a23c"),
    "off": ("off: the default rule acts", "bold black on #ff6b6b"),
}
ACTIONS = {"migrate": "#f0a23c", "isolate": "#f0a23c", "defer": "#d89ac4", "stop": "#4fd1a5"}
MUTED = "#8f99a3"
MOST_LIKELY = 2.2
"""The axis holds the last likely end, and unlikely ones up to so many times that."""
PAST = 0.5
"""And of the past at most this share of the future."""
DECISIONS = 6
PROMPT, WIDE, STRIP = 22, 100, 12
"""Characters of a prompt's name, of a terminal that has room for it, and of the narrowest strip."""
REPLICA_HEAD = ("engine", "running", "", "KV", "tokens/s", "ms/token", "weights", "done in")
TRAJECTORY_HEAD = ("id", "engine", "prompt", "written", "left", "ends in", "within")


@dataclass(frozen=True)
class Axis:
    """Times relative to now, on a strip of `width` characters."""

    past_s: float
    future_s: float
    width: int

    def at(self, time_s: float) -> int:
        """The column of a time, within the strip."""
        share = (time_s + self.past_s) / (self.past_s + self.future_s)
        return min(max(round(share * self.width), 0), self.width)


def axis_of(state: GatewayState, width: int) -> Axis:
    """That fits what is shown."""
    shown = state.trajectories
    likely = max([1.0, *(t.ends_in_s or 0.0 for t in shown)])
    upper = max([likely, *(t.ends_in_upper_s or 0.0 for t in shown)])
    future_s = min(MOST_LIKELY * likely, upper)
    begun = max([0.1 * future_s, *(state.now_s - t.since_s for t in shown)])
    return Axis(min(PAST * future_s, begun), future_s, max(width, STRIP))


def strip(t: TrajectoryState, now_s: float, axis: Axis, colour: str) -> Text:
    """One trajectory's time."""
    start, now = axis.at(t.since_s - now_s), axis.at(0.0)
    text = Text(" " * start)
    if t.phase == "queued":
        text.append("·" * (now - start) + "┆", style=MUTED)
        return text
    text.append("█" * (now - start), style=colour)
    if t.ends_in_s is None or t.ends_in_upper_s is None:
        return text
    half = max(axis.at(t.ends_in_s), now + 1)
    rest = max(axis.at(t.ends_in_upper_s), half)
    text.append("▒" * (half - now), style=colour)
    text.append("─" * (rest - half), style=f"dim {colour}")
    return text


def colours(replicas: Sequence[ReplicaState]) -> Mapping[str, str]:
    """By engine."""
    return {r.name: COLOURS[i % len(COLOURS)] for i, r in enumerate(replicas)}


def headline(state: GatewayState) -> Text:
    """Who decides, and where the trainer stands."""
    words, style = STATES.get(state.decider.state, (state.decider.state, "bold"))
    text = Text.assemble(("steersman  ", "bold"), (f" {words} ", style))
    if state.paused:
        text.append("  paused by the trainer ", style="bold")
    if state.draining:
        text.append("  draining ", style="bold")
    step = "no step yet" if state.step < 0 else f"step {state.step} for {seconds(state.step_s)}"
    waits = "the whole step" if state.objective == "barrier" else "the next groups"
    text.append(f"   {step}   weights v{state.weight_version}   waits for {waits}")
    text.append(f"   {state.decider.policy}: {state.decider.why}", style=MUTED)
    return text


def figures(state: GatewayState) -> Text:
    """One line of what counts."""
    f, phases, text = state.figures, state.phases, Text()
    parts = [
        ("running", str(phases["running"] + phases["leaving"])),
        ("waiting", str(phases["queued"])),
        ("tokens/s", _number(f.tokens_per_s)),
        ("bubble", f"{f.bubble:.0%}"),
        ("tail", _seconds(f.tail_s)),
        ("all done in", _seconds(f.ends_in_s)),
        ("KV, fullest", f"{f.kv_most:.0%}"),
        ("degenerate", "-" if f.degenerate_share is None else f"{f.degenerate_share:.0%}"),
    ]
    for name, value in parts:
        text.append(f"{name} ", style=MUTED)
        text.append(f"{value}   ", style="bold")
    return text


def replica_row(r: ReplicaState, colour: str, width: int = 16) -> list[Text]:
    """The cells of `REPLICA_HEAD`."""
    whole = max(r.slots, r.running + r.waiting, 1)
    full = round(width * r.running / whole)
    queue = min(round(width * r.waiting / whole), width - full)
    bar = Text("█" * full, style=colour).append("▒" * queue, style=colour)
    bar.append("░" * (width - full - queue), style="dim")
    running = f"{r.running}/{r.slots}" + (f" +{r.waiting}" if r.waiting else "")
    if not r.alive:
        end = Text("lost", style="bold #ff6b6b")
    elif r.paused:
        end = Text("paused", style="bold")
    elif r.ends_in_s is None:
        end = Text("idle" if not r.inflight else "-", style=MUTED)
    else:
        end = Text(seconds(r.ends_in_s))
    speed = r.iteration_s if r.speed_known else None
    return [
        Text(r.name, style=f"bold {colour}" if r.alive else MUTED),
        Text(running, justify="right"),
        bar,
        Text(f"{r.kv_usage:.0%}", justify="right"),
        Text(_number(r.tokens_per_s if r.alive else None), justify="right"),
        Text("-" if speed is None else f"{1000 * speed:.1f}", justify="right"),
        Text(f"v{r.weight_version}", justify="right"),
        end,
    ]


def strip_head(axis: Axis) -> Text:
    """Where the present is."""
    return Text(" " * axis.at(0.0) + "┆ now", style=MUTED)


def trajectory_row(t: TrajectoryState, colour: str) -> list[Text]:
    """The cells of `TRAJECTORY_HEAD`."""
    moved = f" ↷{t.moves}" if t.moves else ""
    where = f"→{t.target}" if t.target else t.replica or "waits"
    return [
        Text(f"{t.trajectory_id}{moved}"),
        Text(where, style=colour if t.replica else MUTED),
        Text(plain(t.prompt_id)[:PROMPT], style=MUTED),
        Text(f"{t.generated_tokens:,}", justify="right"),
        Text(_number(t.remaining_tokens), justify="right", style=MUTED),
        Text(_seconds(t.ends_in_s), justify="right"),
        Text(_seconds(t.ends_in_upper_s), justify="right", style=MUTED),
    ]


def why_lines(state: GatewayState, decisions: int = DECISIONS) -> Iterator[RenderableType]:
    """The straggler, and the last decisions."""
    why = state.why
    yield Text("What holds the fleet", style="bold")
    if why.straggler is not None:
        yield Text(why.straggler.sentence)
    elif state.phases["running"]:
        yield Text("No end is predicted: nothing forecasts what runs now.")
    else:
        yield Text("Nothing runs.")
    yield Text()
    yield Text("Last decisions", style="bold")
    for told in why.decisions[:decisions]:
        yield from _decision(told, state.now_s)
    if not why.decisions:
        yield Text("None yet.", style=MUTED)
    yield from _more(state)


def trajectory_lines(t: TrajectoryState, now_s: float) -> Iterator[Text]:
    """All that is known of one."""
    yield Text(f"Trajectory {t.trajectory_id}", style="bold")
    yield Text(f"prompt {plain(t.prompt_id)}, group {t.group_id}")
    if t.request_id:
        yield Text(f"request {plain(t.request_id)}")
    yield Text(
        f"{t.phase} for {seconds(max(now_s - t.since_s, 0.0))}; {t.prompt_tokens:,} prompt tokens, "
        f"{t.generated_tokens:,} written, at most {t.max_new_tokens:,}"
    )
    if t.why:
        yield Text(t.why, style=MUTED)


def page(state: GatewayState, width: int, rows: int) -> RenderableType:
    """Everything at once, at most `rows` trajectories."""
    of, shown = colours(state.replicas), state.trajectories[:rows]
    engines = _table(REPLICA_HEAD)
    for replica in state.replicas:
        engines.add_row(*replica_row(replica, of[replica.name]))
    head = TRAJECTORY_HEAD if width >= WIDE else _without_prompt(TRAJECTORY_HEAD)
    cells = [trajectory_row(t, of.get(t.target or t.replica, MUTED)) for t in shown]
    cells = cells if width >= WIDE else [_without_prompt(row) for row in cells]
    axis = axis_of(state, width - width_of(head, cells))
    trajectories = _table([*head, strip_head(axis)])
    for t, row in zip(shown, cells, strict=True):
        colour = of.get(t.target or t.replica, MUTED)
        trajectories.add_row(*row, strip(t, state.now_s, axis, colour))
    hidden = len(state.trajectories) - len(shown) + state.trajectories_left_out
    more = [Text(f"and {hidden:,} more", style=MUTED)] if hidden else []
    parts: list[RenderableType] = [headline(state), figures(state), Text(), engines, Text()]
    return Group(*parts, trajectories, *more, Text(), *why_lines(state))


def width_of(head: Sequence[str], rows: Sequence[Sequence[Text]]) -> int:
    """Of a table's columns, with two between each and the next."""
    widths = [max([len(name), *(row[i].cell_len for row in rows)]) for i, name in enumerate(head)]
    return sum(widths) + 2 * len(widths)


def _without_prompt(cells: Sequence[Cell]) -> list[Cell]:
    return [*cells[:2], *cells[3:]]


def plain(name: str) -> str:
    """A client's name without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _decision(told: Told, now_s: float) -> Iterator[RenderableType]:
    path = " → ".join(part for part in (told.source, told.target) if part)
    line = Text(told.action, style=f"bold {ACTIONS.get(told.action, MUTED)}")
    line.append(f" {told.trajectory_id} {path}", style="not bold default")
    line.append(f"   {seconds(max(now_s - told.t_s, 0.0))} ago", style=f"not bold {MUTED}")
    yield line
    if told.reason:
        yield Padding(Text(plain(told.reason), style=MUTED), (0, 0, 0, 2))
    worth = f"gain {told.gain_s:.1f} s, cost {told.cost_s:.1f} s, " if told.gain_s else ""
    yield Padding(Text(worth + told.became, style=MUTED), (0, 0, 0, 2))


def _more(state: GatewayState) -> Iterator[Text]:
    why = state.why
    weighed = {name: value for name, value in why.alternatives.items() if value is not None}
    if weighed:
        best = sorted(weighed, key=lambda name: weighed[name])[:4]
        yield Text()
        yield Text("Weighed: " + ", ".join(f"{name} {weighed[name]:.1f} s" for name in best))
    if why.stack:
        yield Text(f"Acting: {why.stack}")
    for reason, times in why.objections.items():
        yield Text(f"Held back {times} x: {plain(reason)}", style=MUTED)


def _table(head: Sequence[str | Text]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style=MUTED, pad_edge=False)
    for name in head:
        table.add_column(name, no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _seconds(value_s: float | None) -> str:
    return "-" if value_s is None else seconds(value_s)
