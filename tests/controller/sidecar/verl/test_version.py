"""Which verl it attaches to."""

import importlib
import logging

import pytest

from steersman.controller.sidecar.verl import version
from steersman.estimators.errors import InvalidInputError


@pytest.mark.parametrize("found", ["0.9.1", "0.10.0", "0.9.1.post1", "1.0.0+cu12", "0.9.2.dev0"])
def test_new_ones_are_welcome(found: str) -> None:
    assert version.check_version(found) == found


@pytest.mark.parametrize("found", ["0.9.0", "0.7.1", "0.8"])
def test_old_ones_are_told_what_is_valid(found: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"verl {found} is installed; .* 0\.9\.1 or later"):
        version.check_version(found)


def test_none_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "installed", lambda: None)
    with pytest.raises(InvalidInputError, match="verl is not installed"):
        version.check_version()


@pytest.mark.parametrize("module", ["manager", "prompts"])
def test_what_verl_loads_by_name_says_so_where_there_is_none(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "installed", lambda: "0.9.0")
    with pytest.raises(InvalidInputError, match=r"verl 0\.9\.0 is installed"):
        importlib.import_module(f"steersman.controller.sidecar.verl.{module}")


def test_the_plugin_warns_since_verl_swallows_what_it_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version, "installed", lambda: "0.8.0")
    with caplog.at_level(logging.WARNING):
        importlib.reload(importlib.import_module("steersman.controller.sidecar.verl.plugin"))
    assert "verl 0.8.0 is installed" in caplog.text
