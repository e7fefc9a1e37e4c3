"""What is shipped for deployment names options that exist, and waits as long as it must."""

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from steersman.controller.commands import serve
from steersman.controller.config import Config, load_config
from steersman.controller.gateway.settings import GatewayConfig

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def unit() -> dict[str, str]:
    """The unit's settings; of repeated ones the last."""
    text = (DEPLOY / "steersman.service").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line[:1].isalpha()]
    return dict(line.split("=", 1) for line in lines)


def test_the_configuration_file_names_every_key_and_changes_nothing() -> None:
    path = DEPLOY / "steersman.toml"
    assert load_config(path, (), {}) == Config()
    lines = path.read_text().splitlines()
    for field in msgspec.structs.fields(GatewayConfig):
        assert any(line.startswith(f"{field.name} = ") for line in lines), field.name


def test_the_unit_starts_the_command_with_options_that_it_has() -> None:
    words = shlex.split(unit()["ExecStart"])
    assert words[:2] == ["/opt/steersman/bin/steersman", "serve"]
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    given = ["http://a:1" if word == "$ENGINES" else word for word in words[2:]]
    args = parser.parse_args(given)
    urls, overrides = serve.told_apart(args.engines)
    assert urls == ["http://a:1"]
    config = load_config(DEPLOY / args.config.name, [*overrides, *args.overrides], {})
    assert config.gateway.token_file == "%d/token"
    assert config.gateway.admin_token_file == "%d/admin_token"


def test_the_unit_leaves_time_to_drain() -> None:
    assert int(unit()["TimeoutStopSec"]) > GatewayConfig().drain_s + 10


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_knows_every_setting_of_the_unit() -> None:
    path = str(DEPLOY / "steersman.service")
    told = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    complaints = [line for line in told.stderr.splitlines() if "is not executable" not in line]
    assert complaints == []


def test_the_container_starts_the_command_with_settings_that_exist() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    assert 'ENTRYPOINT ["steersman", "serve"]' in lines
    (env,) = [line for line in lines if line.startswith("ENV ")]
    environ = dict(word.split("=", 1) for word in env.split()[1:])
    assert load_config(None, (), environ).gateway.host == "0.0.0.0"
    assert f"EXPOSE {GatewayConfig().port}" in lines
