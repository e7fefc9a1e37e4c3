"""What a stranger reads of each policy: a name in the README, a sentence in its file, a class."""

from pathlib import Path

import pytest

from steersman.controller.plugins import files, load
from steersman.controller.tournament.entries import SECTIONS
from steersman.estimators.lifecycle import CorrectnessClass

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
POLICIES = [(kind, name) for kind in SECTIONS.values() for name in files(kind)]


@pytest.mark.parametrize(("kind", "name"), POLICIES)
def test_the_readme_names_it_and_its_docstring_names_its_class(kind: str, name: str) -> None:
    assert f"`{name}`" in README
    text = " ".join(files(kind)[name].read_text(encoding="utf-8").split('"""')[1].split())
    summary = text.partition(". ")[0]
    assert 10 < len(summary) < 120  # one line of `steersman policies`
    assert "orrectness class" in text
    policy = load(kind, name)
    assert isinstance(policy.correctness, CorrectnessClass)  # type: ignore[attr-defined]
    assert policy.correctness.name.lower() in text.lower()  # type: ignore[attr-defined]
