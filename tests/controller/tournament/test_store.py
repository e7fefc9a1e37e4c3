"""Results on disk: kept as they come, taken up again, never mixed."""

from pathlib import Path

import pytest
from support.cells import cell

from steersman.controller.tournament.cell import Settings
from steersman.controller.tournament.store import FILE, Store
from steersman.estimators.errors import InvalidInputError

SETTINGS = Settings("1.0", quick=False, profile="")


def test_what_was_played_is_there_again(tmp_path: Path) -> None:
    first = Store(tmp_path / "new", SETTINGS)
    for seed in range(3):
        first.add(cell("other", seed, 1.0 + seed))
    again = Store(tmp_path / "new", SETTINGS)
    assert list(again) == list(first)
    assert cell("other", 2, 0.0).game in again
    assert cell("other", 3, 0.0).game not in again


def test_a_line_that_was_cut_off_is_played_again(tmp_path: Path) -> None:
    store = Store(tmp_path, SETTINGS)
    store.add(cell("other", 0, 1.0))
    store.add(cell("other", 1, 1.0))
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-20])
    again = Store(tmp_path, SETTINGS)
    assert [c.game.seed for c in again] == [0]
    again.add(cell("other", 1, 2.0))
    assert [c.seconds for c in Store(tmp_path, SETTINGS)] == [1.0, 2.0]


def test_a_folder_of_another_tournament_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    Store(tmp_path, SETTINGS).add(cell("other", 0, 1.0))
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(InvalidInputError, match=r"other settings .*name another folder"):
        Store(tmp_path, Settings("1.0", quick=True, profile=""))
    assert (tmp_path / FILE).read_bytes() == before


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None, SETTINGS)
    store.add(cell("other", 0, 1.0))
    assert len(store) == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot write"):
        Store(tmp_path / "file", SETTINGS)


def test_an_entry_with_options_is_another_game_and_a_store_of_plain_names_still_holds(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path, SETTINGS)
    store.add(cell("planner", 0, 1.0))
    store.add(cell("planner,max_moves=0", 0, 2.0))
    again = Store(tmp_path, SETTINGS)
    seconds = {one.game.policy: one.seconds for one in again}
    assert seconds == {"planner": 1.0, "planner,max_moves=0": 2.0}
    assert cell("planner,max_moves=1", 0, 0.0).game not in again
