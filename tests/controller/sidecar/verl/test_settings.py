"""The router's YAML: one clear line for each mistake."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from steersman.controller.sidecar.verl.router import SteersmanRouter, new_trace
from steersman.controller.sidecar.verl.settings import RouterSettings, read_settings
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Objective

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "attach_verl.yaml"


def test_nothing_but_the_class_is_enough() -> None:
    settings, config = read_settings({"router_class": "x.Y"})
    assert settings == RouterSettings(router_class="x.Y")
    assert config.mode == "enforce"


def test_the_section_steersman_is_the_usual_configuration() -> None:
    inner = {"mode": "shadow", "placement": {"name": "round_robin"}, "guard": {"max_restarts": 0}}
    settings, config = read_settings({"objective": "stream", "steersman": inner})
    assert settings.objective is Objective.STREAM
    assert (config.mode, config.placement.name) == ("shadow", "round_robin")
    assert config.guard.max_restarts == 0


def test_the_word_off_is_a_mode_although_verls_reader_takes_it_for_false() -> None:
    assert read_settings({"steersman": {"mode": False}})[1].mode == "off"


def test_the_example_is_valid() -> None:
    settings, config = read_settings(yaml.safe_load(EXAMPLE.read_text()))
    assert settings.router_class.endswith(SteersmanRouter.__name__)
    assert config.placement.name == "adaptive"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"router_lots": "raise"},
            r"unknown key in the router's YAML: 'router_lots'; did you mean 'router_lost'\?",
        ),
        ({"router_lost": "wait"}, r"the router's YAML: Invalid enum value 'wait'.*router_lost"),
        ({"look_every_s": -1}, r"look_every_s is -1.*valid"),
        ({"steersman": 3}, r"steersman is 3; valid: a section"),
        (
            {"steersman": {"tick": 1}},
            r"unknown key in the router's YAML, steersman: 'tick'; did you mean 'tick_s'\?",
        ),
        ({"steersman": {"placement": {"name": "adaptve"}}}, r"did you mean 'adaptive'"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInputError, match=line) as caught:
        read_settings(given)
    assert "\n" not in str(caught.value)


def test_a_second_router_writes_a_trace_of_its_own(tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        trace = new_trace(str(tmp_path / "run.jsonl"))
        trace.close()
        paths.append(trace.path.name if trace.path else None)
    assert paths == ["run.jsonl", "run-2.jsonl", "run-3.jsonl"]
