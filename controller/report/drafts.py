"""What was drafted ahead and what came of it: counted from the replicas' reports, and its section.

A replica's counters only grow, so that a step's drafts are what they grew by since the report
before.  A replica's first report is where counting begins: other runs may have used it before.
Counters that go back belong to an engine that was started anew and count from nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from steersman.controller.report import charts
from steersman.controller.report.html import chip, figure, table
from steersman.controller.report.summary import RunSummary

SOURCES = {
    "self": "the trajectory itself",
    "sibling": "finished samples of its group",
    "history": "earlier samples of its prompt",
    "other": "other prompts",
}


class Drafted(NamedTuple):
    """Of one source, so far or in some time."""

    verified: int
    """Drafts; each is verified in one iteration of its trajectory."""
    tokens: int
    accepted: int


NOTHING = Drafted(0, 0, 0)


class DraftCounts:
    """Follows the reports of one run."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Drafted]] = {}

    def grown(self, replica: str, classes: dict[str, list[int]]) -> Counter[tuple[str, str]]:
        """By source and field, since the replica's report before."""
        now = {source: Drafted(*counts) for source, counts in classes.items()}
        before = self._last.get(replica, now)
        if any(now.get(source, NOTHING).verified < old.verified for source, old in before.items()):
            before = {}
        self._last[replica] = now
        return Counter(
            {
                (source, name): value - old
                for source, new in now.items()
                for name, value, old in zip(
                    Drafted._fields, new, before.get(source, NOTHING), strict=True
                )
                if value > old
            }
        )


def total(drafts: Counter[tuple[str, str]], source: str | None = None) -> Drafted:
    """Of one source, or of all."""
    of = SOURCES if source is None else (source,)
    return Drafted(*(sum(drafts[each, name] for each in of) for name in Drafted._fields))


def draft_section(runs: Sequence[RunSummary]) -> str:
    """Nothing, where no run drafted."""
    drafting = [(i, run) for i, run in enumerate(runs) if total(run.drafts).verified]
    if not drafting:
        return ""
    tables = "".join(f"<h3>{chip(i, run.policy)}</h3>{_table(run)}" for i, run in drafting)
    return (
        "<section><h2>Tokens drafted ahead</h2><p>A draft is verified in one iteration; what is "
        "accepted of it is written in that iteration besides the usual token. Refused tokens were "
        "computed in vain. Whether that pays is in the times, not here.</p>"
        + '<div class="grid2">'
        + figure(
            "Tokens accepted per draft",
            "Over all drafts that a step verified; a gap where it drafted nothing.",
            charts.accepted_per_draft(runs),
        )
        + f"</div>{tables}</section>"
    )


def _table(run: RunSummary) -> str:
    head = ("drafted from", "drafts verified", "tokens per draft", "accepted", "refused tokens")
    sources = [source for source in SOURCES if total(run.drafts, source).verified]
    rows = [_row(SOURCES[source], total(run.drafts, source)) for source in sources]
    return table("figures", head, _with_sum(rows, total(run.drafts)))


def _with_sum(rows: list[Sequence[str]], drafted: Drafted) -> Iterable[Sequence[str]]:
    return rows if len(rows) == 1 else [*rows, _row("all", drafted)]


def _row(name: str, drafted: Drafted) -> Sequence[str]:
    verified, tokens, accepted = drafted
    return (
        escape(name),
        f"{verified:,}".replace(",", "\u202f"),
        f"{tokens / verified:.2f}",
        f"{accepted / verified:.2f}",
        f"{tokens - accepted:,}".replace(",", "\u202f"),
    )
