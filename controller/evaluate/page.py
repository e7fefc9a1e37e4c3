"""The HTML page of an evaluation: verdict, tables, pictures, what they rest on, the checklist."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from steersman.controller.checklist import Checklist, checklist_html
from steersman.controller.evaluate.answer import Answer, Picture, Table
from steersman.controller.evaluate.study import Study
from steersman.controller.report.html import (
    colour,
    dash,
    figure,
    line_legend,
    table,
    write_document,
)


def write_page(out: Path, answer: Answer, checklist: Checklist, study: Study | None) -> None:
    """Write one self-contained page."""
    body = (
        f'<header><p class="kicker">Steersman evaluate</p><h1>{escape(answer.title)}</h1>'
        f'<p class="sub">{escape(_about(study))}</p></header>'
        f'<section><h2>In a sentence</h2><p class="verdict">{escape(answer.verdict)}</p></section>'
        f"{_pictures(answer)}{_tables(answer.tables)}{_grounds(answer)}"
        f"{checklist_html(checklist)}"
    )
    write_document(out, f"Steersman evaluate: {answer.title}", body)


def _about(study: Study | None) -> str:
    if study is None:
        return "From traces."
    seeds = sorted({seed for arm in study.arms for seed in study.arm(arm)})
    return (
        f"{', '.join(study.arms)}: {len(study.every())} runs, {len(seeds)} "
        f"seed{'s' * (len(seeds) != 1)}."
    )


def _pictures(answer: Answer) -> str:
    if not answer.pictures:
        return ""
    drawn = "".join(
        figure(p.title, p.note, p.svg + (_legend(p) if p.names else ""), wide=True)
        for p in answer.pictures
    )
    return f"<section><h2>In pictures</h2>{drawn}</section>"


def _legend(picture: Picture) -> str:
    return line_legend((colour(i), dash(i), name) for i, name in picture.names)


def _tables(tables: Sequence[Table]) -> str:
    parts = ""
    for one in tables:
        # the last column without a heading is a picture for terminals
        kept = [i for i, text in enumerate(one.head) if text]
        head = [escape(one.head[i]) for i in kept]
        rows = [[escape(row[i]) for i in kept] for row in one.rows]
        parts += f"<h3>{escape(one.title)}</h3>{table('figures compact', head, rows)}"
    return f"<section><h2>In numbers</h2>{parts}</section>"


def _grounds(answer: Answer) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in answer.notes)
    listed = f"<ul>{notes}</ul>" if notes else ""
    return (
        '<section class="caveat"><h2>What this rests on</h2>'
        f"<p>{escape(answer.method)}</p>{listed}</section>"
    )
