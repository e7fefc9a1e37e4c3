"""A little SVG: panels with axes, lines, bars and marks, coloured by the page's CSS variables.

Written by hand instead of by a plotting library, so that charts follow the reader's light or dark
theme, have tooltips without scripts, and stay small.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]
DOTS = 120
"""Points of a line that are drawn as dots."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's text: 0.25, 3, 12 000, 1 000 000."""
    whole = abs(value) >= 1e5 and value == round(value)
    return f"{value:,.{'0f' if whole else '6g'}}".replace(",", "\u202f")


@dataclass
class Panel:
    """One pair of axes; draw into it, then `svg()`."""

    x: Point
    """Data range of the horizontal axis."""
    y: Point
    title: str
    x_label: str = ""
    y_label: str = ""
    width: int = 520
    height: int = 270
    left: int = 58
    y_ticks: Sequence[tuple[float, str]] | None = None
    """Own marks of the vertical axis; default: round numbers."""
    y_percent: bool = False
    x_whole: bool = False
    """Only whole numbers along the horizontal axis."""
    _parts: list[str] = field(default_factory=list, init=False)

    top, bottom, right = 14, 44, 14

    def px(self, x: float) -> float:
        """Pixel of a horizontal position."""
        span = (self.x[1] - self.x[0]) or 1.0
        return self.left + (x - self.x[0]) / span * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        """Pixel of a vertical position."""
        span = (self.y[1] - self.y[0]) or 1.0
        return (
            self.height
            - self.bottom
            - (y - self.y[0]) / span * (self.height - self.top - self.bottom)
        )

    def curve(self, points: Sequence[Point], css: str, dash: str = "") -> None:
        """A line; a gap where y is NaN."""
        pen, path = "M", []
        for x, y in points:
            if math.isnan(y):
                pen = "M"
                continue
            path.append(f"{pen}{self.px(x):.1f} {self.py(y):.1f}")
            pen = "L"
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(f'<path class="line {css}" d="{"".join(path)}"{style}/>')

    def line(self, points: Sequence[Point], css: str, tips: Sequence[str], dash: str = "") -> None:
        """A curve with a dot and a tooltip at each point, as long as dots can be told apart."""
        self.curve(points, css, dash)
        if len(points) > DOTS:
            return
        for (x, y), tip in zip(points, tips, strict=True):
            if not math.isnan(y):
                at = f'cx="{self.px(x):.1f}" cy="{self.py(y):.1f}"'
                self._parts.append(f'<circle class="dot {css}" {at} r="3">{_tip(tip)}</circle>')

    def area(self, points: Sequence[Point], css: str, dash: str = "") -> None:
        """A filled outline down to the axis."""
        style = f' stroke-dasharray="{dash}"' if dash else ""
        path = "L".join(f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in points)
        floor = self.py(self.y[0])
        x0, x1 = self.px(points[0][0]), self.px(points[-1][0])
        self._parts.append(
            f'<path class="area {css}"{style} '
            f'd="M{x0:.1f} {floor:.1f}L{path}L{x1:.1f} {floor:.1f}Z"/>'
        )

    def bar(self, x0: float, x1: float, y: float, thick: float, css: str, tip: str) -> None:
        """A horizontal bar, `thick` pixels high, its middle at `y`."""
        left, right = self.px(x0), self.px(x1)
        self._parts.append(
            f'<rect class="{css}" x="{left:.1f}" y="{self.py(y) - thick / 2:.1f}" '
            f'width="{max(right - left, 0.8):.1f}" height="{thick:.1f}">{_tip(tip)}</rect>'
        )

    def mark(self, x: float, y: float, size: float, css: str) -> None:
        """A small diamond."""
        cx, cy = self.px(x), self.py(y)
        points = f"{cx:.1f},{cy - size:.1f} {cx + size:.1f},{cy:.1f} "
        points += f"{cx:.1f},{cy + size:.1f} {cx - size:.1f},{cy:.1f}"
        self._parts.append(f'<polygon class="{css}" points="{points}"/>')

    def upright(self, x: float, text: str) -> None:
        """A thin vertical line with a text at its foot."""
        at, floor = self.px(x), self.height - self.bottom
        left = at > self.width * 0.8
        anchor, shift = ("end", -5) if left else ("start", 5)
        self._parts.append(
            f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{self.top}" y2="{floor}"/>'
            f'<text class="note" x="{at + shift:.1f}" y="{floor - 6}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def across(self, y: float, text: str) -> None:
        """A thin horizontal line with a text at its end."""
        at, right = self.py(y), self.width - self.right
        self._parts.append(
            f'<line class="limit" x1="{self.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="note" x="{right - 4}" y="{at - 5:.1f}" text-anchor="end">'
            f"{escape(text)}</text>"
        )

    def between(self, first: Sequence[Point], second: Sequence[Point], css: str) -> None:
        """The area between two lines."""
        outline = "L".join(
            f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in [*first, *reversed(second)]
        )
        if outline:
            self._parts.append(f'<path class="band {css}" d="M{outline}Z"/>')

    def svg(self) -> str:
        """The whole picture."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">{self._axes()}{"".join(self._parts)}</svg>'
        )

    def _axes(self) -> str:
        low, right = self.height - self.bottom, self.width - self.right
        marks = self.y_ticks
        if marks is None:
            marks = [(y, _tick(y, self.y_percent)) for y in ticks(*self.y)]
        parts = []
        for y, text in marks:
            at = self.py(y)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text class="tick" x="{self.left - 7}" y="{at + 4:.1f}" text-anchor="end">'
                f"{escape(text)}</text>"
            )
        parts += [
            f'<text class="tick" x="{self.px(x):.1f}" y="{low + 17}" text-anchor="middle">'
            f"{label(x)}</text>"
            for x in ticks(*self.x, about=8)
            if not self.x_whole or x == int(x)
        ]
        parts.append(f'<line class="axis" x1="{self.left}" x2="{right}" y1="{low}" y2="{low}"/>')
        middle = (self.left + right) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 8}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
        )
        if self.y_label:
            y = (self.top + low) / 2
            parts.append(
                f'<text class="label" transform="translate(14 {y:.0f}) rotate(-90)" '
                f'text-anchor="middle">{escape(self.y_label)}</text>'
            )
        return "".join(parts)


def spread(values: Iterable[float], room: float = 1.08) -> Point:
    """A range from 0 to a little above the largest value."""
    top = max((value for value in values if not math.isnan(value)), default=0.0)
    return (0.0, top * room or 1.0)


def _tick(value: float, percent: bool) -> str:
    return f"{value * 100:.0f} %" if percent else label(value)


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"
