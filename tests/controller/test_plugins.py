"""Parts are found by their files, and built from options that are checked."""

import subprocess
import sys
from pathlib import Path

import pytest

from steersman.controller.plugins import build, load, names
from steersman.estimators.errors import InvalidInputError, UnknownNameError

MINE = """
from dataclasses import dataclass, field

@dataclass
class Mine:
    threshold: float = 0.5
    count: int = 1
    _seen: list = field(default_factory=list, init=False)

@dataclass
class Needy:
    limit: int

    def __post_init__(self):
        if self.limit < 0:
            raise ValueError("limit is negative")

PLUGIN = Mine
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is not ours."""
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_package.mine", raising=False)
    return "their_package.mine"


def test_a_file_with_a_plugin_line_is_a_part() -> None:
    assert {"round_robin", "sticky_least_inflight"} <= {*names("policies.placement")}
    assert {"migrate", "defer", "stop"} <= {*names("mechanisms")}


def test_contracts_and_private_files_are_no_parts() -> None:
    assert not {"contract", "execution", "fleet"} & {*names("mechanisms")}
    assert all(not name.startswith("_") for name in names("estimators"))


def test_listing_imports_no_part() -> None:
    code = (
        "import sys; from steersman.controller.plugins import names; names('policies.placement');"
        "assert not [m for m in sys.modules if m.startswith('steersman.policies.placement.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["policies.placement", "estimators", "mechanisms"])
def test_every_part_is_built_from_its_defaults(kind: str) -> None:
    for name in names(kind):
        assert isinstance(build(kind, name, {}), load(kind, name))


def test_an_unknown_part_names_the_nearest_and_all() -> None:
    with pytest.raises(UnknownNameError, match=r"'migrat'; did you mean 'migrate'\? Valid: .*stop"):
        load("mechanisms", "migrat")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no folder 'policies\.nowhere'"):
        names("policies.nowhere")


def test_a_dotted_path_names_a_part_outside(outside: str) -> None:
    assert build("policies.placement", outside, {"threshold": 1}).threshold == 1.0
    assert load("policies.placement", f"{outside}:Needy").__name__ == "Needy"


def test_an_unknown_option_names_the_nearest(outside: str) -> None:
    with pytest.raises(UnknownNameError, match=r"option of .*'treshold'; did you mean 'threshold'"):
        build("policies.placement", outside, {"treshold": 1})


def test_private_state_is_no_option(outside: str) -> None:
    with pytest.raises(UnknownNameError, match="'_seen'"):
        build("policies.placement", outside, {"_seen": []})


@pytest.mark.parametrize("value", ["2", 2.5, True, None])
def test_an_option_of_the_wrong_type_says_what_is_expected(outside: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"option 'count' of .*Expected `int`"):
        build("policies.placement", outside, {"count": value})


def test_a_required_option_is_asked_for(outside: str) -> None:
    with pytest.raises(InvalidInputError, match="needs the option limit"):
        build("policies.placement", f"{outside}:Needy", {})


def test_what_the_part_itself_refuses_is_an_input_error(outside: str) -> None:
    with pytest.raises(InvalidInputError, match="limit is negative"):
        build("policies.placement", f"{outside}:Needy", {"limit": -1})


@pytest.mark.parametrize("name", ["no.such.module", "json:nothing", "os.path:join"])
def test_a_dotted_path_that_leads_nowhere_is_an_input_error(name: str) -> None:
    with pytest.raises(InvalidInputError):
        load("policies.placement", name)
