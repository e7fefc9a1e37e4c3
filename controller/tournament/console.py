"""The terminal: a bar on standard error where somebody watches, tables whose names are legible."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

WIDEST_WORD = 36
"""Columns that a name's longest key and value gets at most."""


def progress_bar() -> Progress:
    """A context; it leaves nothing behind."""
    shown = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )


def output(width: int) -> Console:
    """Standard output, so wide where there is no terminal that has a width."""
    console = Console(file=sys.stdout)
    return console if console.is_terminal else Console(file=sys.stdout, width=width)


def shown_name(name: str) -> str:
    """An entry's name with spaces, at which a long one is wrapped."""
    return escape(name.replace(",", ", "))


def name_column(title: str, names: Iterable[str]) -> Column:
    """A column that breaks entries' names between keys, never within one."""
    words = [len(word) for name in names for word in shown_name(name).split()]
    least = min(max(words, default=0), WIDEST_WORD)
    return Column(title, overflow="fold", min_width=least)
