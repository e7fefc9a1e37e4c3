"""The minimum that a claim of efficiency must tell, item by item, in every report.

The items are those of the survey of efficient rollout for RL post-training: what is compared with
what, which part of a step is timed, in which unit and by which statistic; on what hardware and what
work; which lever was pulled; what became of the quality; and how long the answers were, since a
rollout's time hangs on the tail of their lengths.  A report fills in what it knows.  What it cannot
know says how to give it: an item that is silently missing reads as if it did not matter.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape

from steersman.estimators.errors import InvalidInputError, UnknownNameError


def _unknown(item: str) -> str:
    return f'not known: give it with --tell {item}="..."'


@dataclass(frozen=True)
class Checklist:
    """One sentence or more per item."""

    baseline: str = _unknown("baseline")
    phase: str = _unknown("phase")
    unit: str = _unknown("unit")
    statistic: str = _unknown("statistic")
    hardware: str = _unknown("hardware")
    workload: str = _unknown("workload")
    lever: str = _unknown("lever")
    quality: str = _unknown("quality")
    response_lengths: str = _unknown("response_lengths")

    def __post_init__(self) -> None:
        for item in ITEMS:
            if not getattr(self, item).strip():
                object.__setattr__(self, item, _unknown(item))

    def told(self, given: Mapping[str, str]) -> "Checklist":
        """With what the user gave, which stands over what the report concluded."""
        return replace(self, **given)

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {item: getattr(self, item) for item in ITEMS}

    @property
    def missing(self) -> list[str]:
        """Items that nobody told."""
        return [item for item in ITEMS if getattr(self, item) == _unknown(item)]


ITEMS = {
    "baseline": "what is compared with what",
    "phase": "which part of a training step is measured",
    "unit": "in which unit",
    "statistic": "how runs, steps and seeds are summed up",
    "hardware": "on which machines",
    "workload": "which task, and how much of it",
    "lever": "which mechanism makes the difference",
    "quality": "what became of the trained model",
    "response_lengths": "how long the answers were",
}
"""Item -> the question that it answers."""
assert list(ITEMS) == [field.name for field in fields(Checklist)]


def add_tell_argument(parser: argparse.ArgumentParser) -> None:
    """`--tell ITEM=TEXT`."""
    parser.add_argument(
        "--tell",
        action="append",
        default=[],
        metavar="ITEM=TEXT",
        help="an item of the reporting checklist that the tool cannot know, or knows worse: "
        + ", ".join(ITEMS),
    )


def told_items(given: Iterable[str]) -> dict[str, str]:
    """Of `--tell`'s values; an unknown item is an error that names the nearest."""
    found = {}
    for text in given:
        item, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise InvalidInputError(f"--tell {text!r} tells nothing; valid: ITEM=TEXT")
        item = item.strip().replace("-", "_")
        if item not in ITEMS:
            raise UnknownNameError("item of the checklist", item, ITEMS)
        found[item] = value.strip()
    return found


def checklist_html(checklist: Checklist) -> str:
    """A section of a page."""
    rows = "".join(_row(item, getattr(checklist, item), checklist) for item in ITEMS)
    return (
        '<section id="checklist"><h2>Reporting checklist</h2><p>What a claim of efficiency must '
        "tell so that others can compare with it.</p>"
        '<div class="scroll"><table class="checklist"><thead><tr><th scope="col">item</th>'
        '<th scope="col">question</th><th scope="col">answer</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(item: str, answer: str, checklist: Checklist) -> str:
    css = ' class="none"' if item in checklist.missing else ""
    return (
        f'<tr><th scope="row">{item.replace("_", " ")}</th><td class="unit">{ITEMS[item]}</td>'
        f"<td{css}>{escape(answer)}</td></tr>"
    )


def checklist_markdown(checklist: Checklist) -> str:
    """A table of a Markdown text."""
    rows = [
        f"| {item.replace('_', ' ')} | {getattr(checklist, item).replace('|', chr(92) + '|')} |"
        for item in ITEMS
    ]
    return "\n".join(["**Reporting checklist**", "", "| item | |", "|---|---|", *rows, ""])


def length_statistics(lengths: Sequence[float], at_cap: int = 0) -> str:
    """Count, mean, quantiles and the share at the token cap, of answers' lengths in tokens."""
    if not lengths:
        return ""
    ordered = sorted(lengths)
    p50, p90, p99 = (
        ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in (0.5, 0.9, 0.99)
    )
    mean = sum(ordered) / len(ordered)
    return (
        f"{len(ordered):,} answers: mean {mean:,.0f} tokens, median {p50:,.0f}, 90th percentile "
        f"{p90:,.0f}, 99th {p99:,.0f}, longest {ordered[-1]:,.0f}; {at_cap / len(ordered):.1%} at "
        "the token cap"
    )


def each(texts: Mapping[str, str]) -> str:
    """What runs, policies or workloads tell, by name; those that tell the same together."""
    groups: dict[str, list[str]] = {}
    for name, text in texts.items():
        groups.setdefault(text, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return ". ".join(f"{', '.join(names)}: {text}" for text, names in groups.items() if text)
