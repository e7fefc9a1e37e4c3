"""Who was busy when: one bar per attempt, replica by replica, in a picture of bounded size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steersman.controller.report.summary import Bar
from steersman.controller.report.svg import Panel

LANES, LEAST_LANES = 256, 8
"""Rows of the picture, and the fewest of a replica that is drawn at all."""
BARS = 6000
"""Beyond this many a page becomes slow to open and bars thinner than a pixel."""
LABEL_PX = 13
"""Height of a replica's name."""

Part = tuple[float, float, Bar]
"""First and last second within the step, and the whole attempt."""
Lanes = list[list[Part]]


@dataclass(frozen=True)
class Gantt:
    """The picture, and how much of the step is in it."""

    svg: str
    drawn: int
    attempts: int
    replicas_drawn: int
    replicas: int

    @property
    def left_out(self) -> str:
        """A sentence; empty if everything is drawn."""
        if self.drawn == self.attempts:
            return ""
        replicas = ""
        if self.replicas_drawn < self.replicas:
            replicas = (
                f", on {self.replicas_drawn} of {self.replicas} replicas, from the first that "
                "became idle to the last"
            )
        return (
            f"{self.drawn:,} of {self.attempts:,} attempts are drawn{replicas}; "
            "of each replica the rows that end last."
        )


def gantt(
    bars: Sequence[Bar],
    replicas: Sequence[str],
    span_s: tuple[float, float],
    axis_s: float,
    title: str,
) -> Gantt:
    """What ran in the interval `span_s`, on an axis of `axis_s` seconds from its start."""
    parts: dict[str, list[Part]] = {name: [] for name in replicas}
    for bar in bars:
        if (within := bar.clipped(span_s)) is not None and bar.replica in parts:
            parts[bar.replica].append((*within, bar))
    packed = {name: _packed(some) for name, some in parts.items() if some}
    shown = _shown(packed)
    rows: Lanes = []
    labels: list[tuple[float, str]] = []
    for name, lanes in shown.items():
        rows += [[], *lanes] if rows else lanes
        labels.append((len(rows) - (len(lanes) + 1) / 2, name[-12:]))
    count = max(len(rows), 1)
    pitch = 10.5 if count <= 40 else max(2.5, 420.0 / count)
    every = max(1, math.ceil(LABEL_PX * len(labels) / (count * pitch)))
    panel = Panel(
        (0.0, axis_s),
        (float(count), -1.0),
        title,
        "seconds since the step began",
        width=1060,
        height=int((count + 1) * pitch) + Panel.top + Panel.bottom,
        left=92,
        y_ticks=labels[::every],
    )
    for row, lane in enumerate(rows):
        for part in lane:
            _draw(panel, part, row, pitch * 0.85)
    seconds = span_s[1] - span_s[0]
    panel.upright(seconds, f"step ends, {seconds:.2f} s")
    drawn, attempts = sum(map(len, rows)), sum(map(len, parts.values()))
    return Gantt(panel.svg(), drawn, attempts, len(shown), len(packed))


def _packed(parts: list[Part]) -> Lanes:
    """One replica's bars in as few rows as hold them without an overlap."""
    lanes: Lanes = []
    for part in sorted(parts, key=lambda part: (part[0], -part[1])):
        free = (lane for lane in lanes if lane[-1][1] <= part[0])
        lane = next(free, None)
        if lane is None:
            lanes.append([part])
        else:
            lane.append(part)
    return lanes


def _shown(packed: dict[str, Lanes]) -> dict[str, Lanes]:
    """What fits into the picture."""
    names = list(packed)
    if sum(map(len, packed.values())) > LANES:
        most = min(len(names), LANES // LEAST_LANES)
        by_end = sorted(names, key=lambda name: max(map(_end, packed[name])))
        # evenly by when they became idle: the first and the last are what a reader looks for
        kept = {by_end[round(i * (len(names) - 1) / max(most - 1, 1))] for i in range(most)}
        names = [name for name in names if name in kept]
    each = max((len(packed[name]) for name in names), default=0)
    if sum(len(packed[name]) for name in names) > LANES:
        each = LANES // len(names)
    while True:
        shown = {name: _latest(packed[name], each) for name in names}
        if each <= 1 or sum(len(lane) for lanes in shown.values() for lane in lanes) <= BARS:
            return shown
        each //= 2


def _latest(lanes: Lanes, count: int) -> Lanes:
    """Those that end last, in their order."""
    by_end = sorted(range(len(lanes)), key=lambda row: -_end(lanes[row]))
    return [lanes[row] for row in sorted(by_end[:count])]


def _end(lane: list[Part]) -> float:
    return lane[-1][1]


def _draw(panel: Panel, part: Part, row: int, thick: float) -> None:
    start, end, bar = part
    took_s = end - start if math.isnan(bar.end_s) else bar.end_s - bar.start_s
    tip = (
        f"trajectory {bar.trajectory_id} on {bar.replica}: {bar.ending} after {took_s:.2f} s, "
        f"{bar.tokens} tokens on a prefix of {bar.prefix_tokens}"
    )
    panel.bar(start, end, row, thick, f"bar {bar.ending}", tip)
    if bar.ending in ("migrated", "deferred"):
        panel.mark(end, row, max(thick * 0.62, 3.0), f"mark {bar.ending}")
