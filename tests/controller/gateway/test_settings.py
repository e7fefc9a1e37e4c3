"""The section `gateway`: every layer reaches it, and nothing wrong gets in."""

from pathlib import Path

import msgspec
import pytest

from steersman.controller.config import Config, load_config
from steersman.controller.gateway.settings import GatewayConfig
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.observation import Objective


def load(*overrides: str, path: Path | None = None, **environ: str) -> GatewayConfig:
    return load_config(path, overrides, environ).gateway


def test_nothing_given_listens_on_this_machine_only() -> None:
    assert load() == GatewayConfig()
    assert load().host == "127.0.0.1"


def test_each_layer_goes_over_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("[gateway]\nhost = '::1'\nport = 1\nmax_queue = 2\n")
    found = load("gateway.port=3", path=path, STEERSMAN_GATEWAY__MAX_QUEUE="4")
    assert (found.host, found.port, found.max_queue) == ("::1", 3, 4)


def test_yaml_holds_it_as_well(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("gateway:\n  control_paths: [/init_broadcaster]\n  objective: stream\n")
    found = load(path=path)
    assert found.control_paths == ("/init_broadcaster",)
    assert found.objective is Objective.STREAM


def test_tokens_in_the_environment_never_get_into_a_configuration() -> None:
    secrets = ("STEERSMAN_TOKEN", "STEERSMAN_ADMIN_TOKEN", "STEERSMAN_ENGINE_TOKEN")
    config = load_config(None, (), dict.fromkeys(secrets, "very-secret"))
    assert config == Config()
    assert b"very-secret" not in msgspec.json.encode(config)


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'gateway\.prt'; did you mean 'gateway\.port'"):
        load("gateway.prt=1")
    with pytest.raises(UnknownNameError, match="STEERSMAN_GATEWAY__TOKEN"):
        load(STEERSMAN_GATEWAY__TOKEN="x")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gateway.port=70000", "gateway.port: Expected int <= 65535"),
        ("gateway.host=", "gateway.host is empty; valid: an address or a name"),
        ("gateway.max_queue=0", "gateway.max_queue: Expected int >= 1"),
        ("gateway.request_timeout_s=0", "gateway.request_timeout_s is 0.0; valid: a finite number"),
        ("gateway.stall_timeout_s=nan", "gateway.stall_timeout_s is nan"),
        ("gateway.drain_s=-1", "gateway.drain_s is -1.0; valid: a finite number, 0 or more"),
        ("gateway.on_abort=no", "unknown value 'no'; valid: return, continue"),
        ("gateway.objective=fast", "unknown value 'fast'; valid: barrier, stream"),
        ('gateway.control_paths=["pause"]', "control_paths holds 'pause'; valid: paths such as"),
        ('gateway.control_paths=["/{any}"]', "control_paths holds '/{any}'"),
        ("gateway=1", "gateway is a section with the keys host"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_valid(override: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
