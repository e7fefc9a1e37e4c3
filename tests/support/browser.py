"""What a page is like in a real browser: headless Chromium, driven by its command line alone.

A copy of the page gets two scripts: one that notes every error from the start, and one that looks
at what was drawn and writes its findings into the page, which Chromium then prints.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1200, 900)
LISTEN = """<script>
window.problems = [];
addEventListener("error", e => problems.push(String(e.message || e.target.src)), true);
for (const kind of ["error", "warn"]) console[kind] = (...all) => problems.push(all.join(" "));
</script>"""
LOOK = """<script>
addEventListener("load", () => {
  const box = e => e.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const plots = [...document.querySelectorAll("figure svg[role=img]")].map(svg => {
    const frame = box(svg);
    const marks = [...svg.querySelectorAll(".line, .area, .dot, .bar")].map(m => ({
      extent: Math.max(box(m).width, box(m).height),
      outside: box(m).left < frame.left - 2 || box(m).right > frame.right + 2 ||
        box(m).top < frame.top - 2 || box(m).bottom > frame.bottom + 2,
      seen: ["fill", "stroke"].some(p => !["none", "rgba(0, 0, 0, 0)"].includes(
        getComputedStyle(m)[p]))}));
    const texts = [...svg.querySelectorAll("text.tick, text.label")].filter(t => t.textContent);
    const collisions = [];
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
      if (meet(box(a), box(b))) collisions.push(a.textContent + " on " + b.textContent);
    }));
    return {title: svg.getAttribute("aria-label"), width: frame.width, height: frame.height,
      marks: marks.filter(m => m.extent > 0.5 && m.seen).length,
      outside: marks.filter(m => m.outside).length, collisions};
  });
  const shown = e => box(e).width > 0 && box(e).height > 0 && e.checkVisibility();
  const tables = [...document.querySelectorAll("table")].map(table => ({
    columns: table.tHead.rows[0].cells.length,
    rows: [...table.tBodies[0].rows].filter(shown).length,
    hidden: [...table.querySelectorAll("tbody th, td")].filter(
      c => !shown(c) || !c.textContent.trim()).length,
    colours: Object.fromEntries([...table.querySelectorAll("td *")].map(
      e => [e.className, getComputedStyle(e).color]))}));
  const out = document.createElement("pre");
  out.id = "findings";
  out.textContent = JSON.stringify({problems, plots, tables,
    too_wide: document.documentElement.scrollWidth - innerWidth,
    paper: getComputedStyle(document.body).backgroundColor});
  document.body.append(out);
});
</script>"""


@dataclass(frozen=True)
class Plot:
    """One picture of a figure, as laid out; lengths in CSS pixels."""

    title: str
    width: float
    height: float
    marks: int
    """Lines, areas, dots and bars that have a size and a colour."""
    outside: int
    """Marks that leave the picture."""
    collisions: list[str]
    """Labels of the axes that overlap."""


@dataclass(frozen=True)
class Table:
    """One table, as laid out."""

    columns: int
    rows: int
    """With a size, the head not counted."""
    hidden: int
    """Cells of the body without a size or without a text."""
    colours: dict[str, str]
    """Of what is within its cells, by CSS class."""


@dataclass(frozen=True)
class Seen:
    """A page, as the browser shows it."""

    problems: list[str]
    """Errors and warnings: on the console, uncaught, or of something that did not load."""
    plots: list[Plot]
    tables: list[Table]
    too_wide: float
    """Pixels by which the page is wider than the window."""
    paper: str
    """Colour of the background."""


def look_at(page: Path, folder: Path, *, dark: bool = False) -> Seen:
    """Open `page`; `folder` is for the browser's files.  Skips the test without a browser."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    html = page.read_text(encoding="utf-8")
    copy = folder / "looked_at.html"
    head, rest = html.split("<head>", 1)
    watched = f"{head}<head>{LISTEN}{rest}".replace("</body>", f"{LOOK}</body>")
    copy.write_text(watched, encoding="utf-8")
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    ran = subprocess.run(
        [
            browser, "--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage",
            "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'browser'}",
            f"--window-size={SIZE[0]},{SIZE[1]}", *theme, "--dump-dom", copy.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="findings">(.*?)</pre>', ran.stdout, flags=re.DOTALL)
    assert found is not None, f"the page was not loaded to its end:\n{ran.stderr[-2000:]}"
    findings = json.loads(unescape(found.group(1)))
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return Seen(
        problems=findings["problems"] + console,
        plots=[Plot(**plot) for plot in findings["plots"]],
        tables=[Table(**table) for table in findings["tables"]],
        too_wide=findings["too_wide"],
        paper=findings["paper"],
    )
