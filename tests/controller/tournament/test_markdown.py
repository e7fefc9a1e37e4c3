"""The tables of ratios as Markdown."""

from support.cells import cell

from steersman.controller.tournament.markdown import write_markdown
from steersman.controller.tournament.standing import rows

DEFAULT = "sticky_least_inflight"


def test_doubtless_ratios_are_bold_and_what_is_not_exact_is_apart() -> None:
    cells = [cell(DEFAULT, seed, 10.0 + seed) for seed in range(3)]
    cells += [cell("surely", seed, 5.0 + seed / 2) for seed in range(3)]
    cells += [cell("perhaps", seed, 10.0 + (-1) ** seed) for seed in range(3)]
    cells += [cell("cutter", seed, 5.0 + seed / 2, correctness="empirical") for seed in range(3)]
    text = write_markdown(rows(cells))
    exact, other = text.split("**placement, not exact**")
    assert exact.startswith("**placement, exact**")
    assert exact.index("`surely`") < exact.index(f"`{DEFAULT}`")
    assert "| `surely` | 0.50 | **0.50** |" in exact
    assert f"| `{DEFAULT}` | 1.00 | 1.00 |" in exact
    assert "`perhaps`" in exact
    assert "| `cutter` (empirical) | 0.50 | **0.50** |" in other


def test_a_pair_that_was_not_played_is_a_dash() -> None:
    cells = [cell(DEFAULT, 0, 10.0)]
    games = [cell(name, 0, 9.0, workload="kv_bound") for name in (DEFAULT, "elsewhere")]
    text = write_markdown(rows(cells + games))
    assert "| `elsewhere` | 1.00 | - | 1.00 |" in text


def test_an_entry_with_options_is_one_cell() -> None:
    cells = [cell(DEFAULT, 0, 10.0), cell("planner,kind=a|b,length.use_age=false", 0, 9.0)]
    text = write_markdown(rows(cells))
    assert "| `planner,kind=a\\|b,length.use_age=false` | 0.90 | 0.90 |" in text
