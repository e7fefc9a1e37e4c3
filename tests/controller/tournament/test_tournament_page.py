"""The tournament's page: what is drawn bold is beyond doubt, and unlike is not ranked with like."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from support.cells import table_row

from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.page import mean_ratio, write_page
from steersman.controller.tournament.standing import Row

UNKNOWN = (math.nan, math.nan)
ROWS = [
    table_row("default", "tails", 1.0, (1.0, 1.0)),
    table_row("default", "chat", 1.0, (1.0, 1.0)),
    table_row("faster", "tails", 0.5, (0.4, 0.6)),
    table_row("faster", "chat", 0.8, (0.7, 1.1)),
    table_row("slower", "tails", 1.25, (1.1, 1.4)),
    table_row("cutter", "tails", 0.25, (0.2, 0.3), correctness="corrected"),
]


def page_of(rows: Sequence[Row], folder: Path, quick: bool = False) -> Element:
    """What is on the page, which is well-formed, before the checklist, which has its own tests."""
    write_page(folder / "page.html", rows, Settings("1.0", quick=quick, profile=""))
    page = (folder / "page.html").read_text(encoding="utf-8")
    main = re.search(r"<main>.*</main>", page, flags=re.DOTALL)
    assert main is not None
    root = ElementTree.fromstring(main.group())
    checklist = root.find("./section[@id='checklist']")
    assert checklist is not None
    root.remove(checklist)
    return root


def text(element: Element) -> str:
    return "".join(element.itertext())


def matrices(rows: Sequence[Row], folder: Path) -> dict[str, list[list[str]]]:
    """Lines of the tables of ratios, by their heading."""
    found = {}
    for section in page_of(rows, folder).iter("section"):
        title = section.findtext("h2") or ""
        if title != "All figures":
            found[title] = [[text(cell) for cell in line] for line in section.iter("tr")]
    return found


def ratio_cell(row: Row, folder: Path) -> Element:
    """The one of a table of ratios with a single row."""
    (cell,) = page_of([row], folder).findall("./section[1]//td/span")
    return cell


def test_exact_policies_and_those_that_change_work_have_tables_of_their_own(
    tmp_path: Path,
) -> None:
    assert matrices(ROWS, tmp_path) == {
        "Placement: the same samples": [
            ["policy", "mean", "tails", "chat"],
            ["faster", "0.632", "0.500", "0.800"],
            ["default", "1.000", "1.000", "1.000"],
            ["slower", "1.250", "1.250", "-"],
        ],
        "Placement: other samples": [
            ["policy", "mean", "tails"],
            ["cutter", "0.250", "0.250"],
        ],
    }


def test_without_a_policy_that_changes_work_there_is_no_table_of_them(tmp_path: Path) -> None:
    assert list(matrices(ROWS[:5], tmp_path)) == ["Placement: the same samples"]


@pytest.mark.parametrize(
    ("ratio", "ci95", "css"),
    [
        (0.9, (0.85, 0.95), "good"),
        (0.5, (0.2, 1.2), ""),  # a large gain that may be chance
        (0.9, (0.8, 1.0), ""),
        (1.0, (1.0, 1.0), ""),
        (1.1, (1.0, 1.2), ""),
        (1.1, (1.05, 1.15), "bad"),
        (0.5, UNKNOWN, ""),
        (2.0, UNKNOWN, ""),
    ],
)
def test_only_an_interval_that_leaves_out_1_is_marked(
    ratio: float, ci95: tuple[float, float], css: str, tmp_path: Path
) -> None:
    cell = ratio_cell(table_row("some", "tails", ratio, ci95), tmp_path)
    assert cell.get("class") == css
    assert cell.text == f"{ratio:.3f}"


def test_an_interval_is_told_where_there_is_one(tmp_path: Path) -> None:
    known = table_row("some", "tails", 0.9, (0.85, 0.95))
    assert ratio_cell(known, tmp_path).get("title") == "95 %: 0.850 to 0.950"
    once = table_row("some", "tails", 0.9, UNKNOWN, seeds=1)
    assert ratio_cell(once, tmp_path).get("title") is None
    page = page_of([once], tmp_path)
    assert "nan" not in text(page).lower()
    assert [text(cell) for cell in page.findall("./section[2]//td")][2] == "-"


def test_the_mean_is_geometric() -> None:
    halved, doubled = table_row("a", "tails", 0.5), table_row("a", "chat", 2.0)
    assert mean_ratio([halved, doubled]) == pytest.approx(1.0)
    assert mean_ratio([halved, halved, doubled]) == pytest.approx(0.5 ** (1 / 3))
    assert math.isnan(mean_ratio([]))


def test_every_row_has_its_figures_the_fastest_first(tmp_path: Path) -> None:
    section = page_of(ROWS, tmp_path).findall("section")[-1]
    assert [title.text for title in section.iter("h3")] == ["tails", "chat"]
    first, second = section.iter("tbody")
    assert [text(line[0]) for line in first] == ["cutter", "faster", "default", "slower"]
    assert [text(line[0]) for line in second] == ["faster", "default"]
    assert [text(cell) for cell in first[0]] == [
        "cutter", "corrected", "0.250", "0.200-0.300", "0.800", "0.900", "12,345", "0.750", "12.5%",
        "3.2 ms",
    ]  # fmt: skip


def test_an_unknown_clairvoyant_is_a_dash(tmp_path: Path) -> None:
    row = table_row("some", "tails", 0.9, efficiency_vs_clairvoyant=None)
    assert [text(cell) for cell in page_of([row], tmp_path).findall("./section[2]//td")][4] == "-"


def test_a_known_workload_is_described_and_one_from_a_file_is_named_so(tmp_path: Path) -> None:
    rows = [table_row("some", name, 0.9) for name in ("strong_tail", "mine.csv")]
    about = [text(line) for line in page_of(rows, tmp_path).findall("./section[2]/p")]
    assert "P90 / P50 = 6" in about[0]
    assert about[1] == "from a file"


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    row = table_row("<b>&policy", '"><script>.csv', 0.9, correctness="exact<i>")
    for rows in ([row], [table_row("default", "tails", 1.0), row]):
        page = page_of(rows, tmp_path)
        assert not [*page.iter("script"), *page.findall(".//table//b"), *page.iter("i")]
        assert "<b>&policy" in text(page)
        assert '"><script>.csv' in text(page)
        assert "exact<i>" in text(page)


def test_the_head_counts_and_says_that_it_is_a_simulation(tmp_path: Path) -> None:
    head = page_of(ROWS, tmp_path).find("header")
    assert head is not None
    assert "tier: simulation" in text(head)
    assert "4 policies on 2 workloads" in text(head)
    assert "5 seeds each" in text(head)
    assert "quick" not in text(head)
    quick = page_of(ROWS, tmp_path, quick=True).find("header")
    assert quick is not None
    assert "A quick one" in text(quick)


def test_a_tournament_without_a_row_is_still_a_page(tmp_path: Path) -> None:
    assert "0 policies on 0 workloads" in text(page_of([], tmp_path))


def test_what_differs_from_the_default_stack_stands_below_the_policy(tmp_path: Path) -> None:
    name = "planner,max_moves=0,length.name=<i>"
    page = page_of([table_row(name, "tails", 0.9)], tmp_path)
    for table in page.iter("table"):
        heading = table.find(".//tbody//th")
        assert heading is not None
        assert heading.text == "planner,"
        assert text(heading) == name
        assert len([*heading.iter("span")]) == 1
        assert not [*heading.iter("i")]
