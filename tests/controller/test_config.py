"""The configuration: three layers, and one clear line for whatever is wrong."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.controller.config import Config, GuardConfig, TraceConfig, load_config
from steersman.estimators.errors import InvalidInputError, UnknownNameError


def load(*overrides: str, path: Path | None = None, **environ: str) -> Config:
    return load_config(path, overrides, environ)


def test_nothing_given_is_the_default() -> None:
    assert load() == Config()


def test_each_layer_goes_over_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("tick_s = 1\nseed = 1\nmax_lag = 3\n")
    config = load("max_lag=5", path=path, STEERSMAN_SEED="2", STEERSMAN_MAX_LAG="4")
    assert (config.tick_s, config.seed, config.max_lag) == (1.0, 2, 5)


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_yaml_is_read_as_well_and_off_is_a_word(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    path.write_text("mode: off\nguard:\n  max_deferrals: 1\ntrace: {observations: true}\n")
    assert load(path=path) == Config(
        mode="off", guard=GuardConfig(max_deferrals=1), trace=TraceConfig(observations=True)
    )


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("# nothing\nguard: {}\n")
    assert load(path=tmp_path / "run.yaml") == Config()


def test_a_double_underscore_descends() -> None:
    config = load(STEERSMAN_PLACEMENT__NAME="round_robin", STEERSMAN_GUARD__MOVE_COOLDOWN_S="0.5")
    assert config.placement.name == "round_robin"
    assert config.guard.move_cooldown_s == 0.5


def test_other_variables_are_none_of_its_business() -> None:
    assert load(TICK_S="9", PATH="/bin") == Config()


def test_options_go_to_the_named_part() -> None:
    config = load("placement.options.margin=0.2", "placement.options.pools=['a']")
    assert config.placement.options == {"margin": 0.2, "pools": ["a"]}


def test_another_part_does_not_inherit_options(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[placement]\nname = 'tail_planner'\noptions.margin = 2\n")
    assert load("placement.name=round_robin", path=path).placement.options == {}
    assert load("placement.name=tail_planner", path=path).placement.options == {"margin": 2}


def test_text_that_looks_like_a_number_can_be_text() -> None:
    assert load("kill_switch_file=12").kill_switch_file == "12"
    assert load("trace.path=null").trace.path is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tik_s=1", r"the override 'tik_s=1': 'tik_s'; did you mean 'tick_s'\? Valid: .*trace"),
        ("guard.max_defferals=1", "'guard.max_defferals'; did you mean 'guard.max_deferrals'"),
        ("placement.nam=x", "'placement.nam'; did you mean 'placement.name'"),
        ("placement.name=tail_plan", "'tail_plan'; did you mean 'tail_planner'"),
        ("fallback.name=sticky", "unknown placement policy 'sticky'"),
        ("length.name=lenght", "unknown length estimator 'lenght'; did you mean 'length'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(override: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        load(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tick_s=fast", "the override 'tick_s=fast': tick_s: Expected float, got str"),
        ("tick_s=0", "the override 'tick_s=0': tick_s is 0.0; valid: a finite number above 0"),
        ("tick_s=nan", "tick_s is nan"),
        ("tick_s=1e999", "tick_s is inf"),
        ("decide_timeout_s=-1", "decide_timeout_s is -1.0"),
        ("seed=true", "seed: Expected int, got bool"),
        ("seed=-1", "seed is -1; valid: 0 or more"),
        ("max_lag=-1", "max_lag: Expected int >= 0"),
        ("mode=on", "mode: unknown value 'on'; valid: off, shadow, enforce"),
        ("guard.move_cooldown_s=-0.1", "guard.move_cooldown_s is -0.1"),
        ("guard.metrics_max_age_s=0", "guard.metrics_max_age_s is 0.0"),
        ("trace.progress_every_s=-1", "trace.progress_every_s is -1.0"),
        ("guard=1", "guard is a section with the keys max_moves_per_tick"),
        ("tick_s.x=1", "tick_s.x: Expected float, got object"),
        ("placement.options=1", "placement.options: Expected object, got int"),
        ("tick_s", "'tick_s' is not of the form key=value"),
        ("=1", "is not of the form key=value"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_valid(override: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_source_of_a_bad_value_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[guard]\nmax_deferrals = 'two'\n")
    with pytest.raises(InvalidInputError, match=r"run\.toml: guard\.max_deferrals: Expected int"):
        load(path=path)
    with pytest.raises(InvalidInputError, match="the environment variable STEERSMAN_TICK_S: tick"):
        load(STEERSMAN_TICK_S="x")
    with pytest.raises(UnknownNameError, match="variable STEERSMAN_GARD__X: 'gard'"):
        load(STEERSMAN_GARD__X="1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.toml", "tick_s = = 1", r"run\.toml: Invalid value"),
        ("run.yaml", "a: [1", r"run\.yaml: while parsing"),
        ("run.yaml", "- 1", "must hold keys and values"),
        ("run.ini", "", r"ends in \.toml, \.yaml or \.yml"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load(path=tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.toml: No such file"):
        load(path=tmp_path / "none.toml")


@pytest.mark.parametrize(
    "build",
    [
        lambda: Config(tick_s=0),
        lambda: Config(decide_timeout_s=float("nan")),
        lambda: GuardConfig(move_cooldown_s=-1),
    ],
)
def test_a_config_made_in_code_is_checked_too(build: Any) -> None:
    with pytest.raises(InvalidInputError, match="valid: a finite number"):
        build()


def test_a_config_can_be_written_down_and_read_again() -> None:
    config = load("placement.options.x=1", "mode=shadow")
    assert msgspec.convert(msgspec.to_builtins(config), Config) == config


def test_the_readme_lists_every_key() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for field in msgspec.structs.fields(Config):
        inner = getattr(field.type, "__struct_fields__", ())
        for name in [f"{field.name}.{key}" for key in inner] or [field.name]:
            assert f"`{name}`" in readme, name
