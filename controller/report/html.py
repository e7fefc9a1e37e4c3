"""Pieces that every page is made of: the document, figures, legends, tables."""

from collections.abc import Collection, Iterable, Sequence
from html import escape
from pathlib import Path

from steersman.controller.report._style import CSS

COLOURS = 4
"""The style sheet has c0 to c3."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""The lines differ by more than their colour."""

ENDINGS = (
    "finished", "truncated", "migrated", "deferred", "stopped", "restarted", "expired",
    "interrupted", "lost", "open",
)  # fmt: skip
"""How an attempt can end; also the CSS classes of the timeline's bars."""


def colour(i: int) -> str:
    """CSS class of the i-th run or policy."""
    return f"c{i % COLOURS}"


def dash(i: int) -> str:
    """Its line's dashes: no two of the first 16 share colour and dashes."""
    return DASHES[(i + i // COLOURS) % len(DASHES)]


def write_document(out: Path, title: str, body: str) -> None:
    """One self-contained page: nothing in it is loaded from elsewhere."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def figure(title: str, note: str, content: str, wide: bool = False) -> str:
    """A picture with its heading and one line that tells how to read it."""
    css = ' class="wide"' if wide else ""
    return (
        f"<figure{css}><figcaption><b>{escape(title)}</b><span>{escape(note)}</span></figcaption>"
        f"{content}</figure>"
    )


def line_legend(lines: Iterable[tuple[str, str, str]]) -> str:
    """Of lines: CSS class, dashes, text."""
    items = "".join(
        f'<li><svg viewBox="0 0 30 10" class="swatch" aria-hidden="true">'
        f'<path class="line {css}" d="M1 5L29 5" stroke-dasharray="{dashes}"/></svg>'
        f"{escape(text)}</li>"
        for css, dashes, text in lines
    )
    return f'<ul class="legend">{items}</ul>'


def legend(names: Sequence[str]) -> str:
    """Of the runs or policies, in their order."""
    return line_legend((colour(i), dash(i), name) for i, name in enumerate(names))


def ending_legend(used: Collection[str]) -> str:
    """Of the timeline's bars: those ways to end that occur."""
    items = "".join(f'<li><i class="key {e}"></i>{e}</li>' for e in ENDINGS if e in used)
    return f'<ul class="legend">{items}</ul>'


def chip(i: int, name: str) -> str:
    """A name with its colour."""
    return f'<i class="chip {colour(i)}"></i>{escape(name)}'


def table(css: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML; the first of each row is the row's heading."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head[1:])
    lines = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr><th>{head[0]}</th>{columns}</tr>'
        f"</thead><tbody>{lines}</tbody></table></div>"
    )
