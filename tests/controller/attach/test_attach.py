"""`steersman attach`: what it finds of a trainer, its gateway and its engines, and what it says."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_vllm import FakeVllm
from support.gateway import gateway

from steersman.controller import cli
from steersman.controller.attach import table
from steersman.controller.attach.check import check
from steersman.controller.attach.environment import environment_findings, numbers
from steersman.controller.attach.findings import Report, State
from steersman.controller.attach.trainers import (
    AREAL,
    OPENRLHF,
    PRIME_RL,
    ROLL,
    SKYRL,
    TRAINERS,
    VERL,
    Ability,
    Hook,
    Link,
    Trainer,
    Works,
)

ROOT = Path(__file__).parents[3]


def run(*argv: str) -> int:
    """The exit code, however it comes."""
    try:
        return cli.main(argv)
    except SystemExit as exit_:
        return int(exit_.code or 0)


async def checked(trainer: Trainer, **options: Any) -> Report:
    return await asyncio.to_thread(check, trainer, **options)


def found(report: Report, name: str) -> list[tuple[State, str]]:
    return [(f.state, f.words) for f in report.findings if f.check == name]


# The table


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_each_trainer_has_a_verdict_for_each_ability_and_a_reason_where_it_is_no_yes(
    trainer: Trainer,
) -> None:
    assert list(trainer.works) == list(Ability)
    for verdict in trainer.works.values():
        assert verdict.works is Works.YES or verdict.why
    assert trainer.link is Link.NOWHERE or trainer.hooks


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_each_example_is_there(trainer: Trainer) -> None:
    if trainer.link is not Link.NOWHERE:
        assert (ROOT / "examples" / trainer.example).is_file()


def test_the_readme_has_the_table_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.markdown() in readme, "paste the output of: steersman attach --list --markdown"


def test_notes_of_the_table_are_numbered_and_each_is_referred_to() -> None:
    told = table.markdown()
    notes = re.findall(r"^(\d+)\. ", told, re.M)
    assert notes == [str(number) for number in range(1, len(notes) + 1)]
    assert set(re.findall(r"\((\d+)\) \|", told)) == set(notes)


# The environment


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer with one hook, installed as version 1.4.0."""
    (tmp_path / "toytrainer").mkdir()
    (tmp_path / "toytrainer" / "__init__.py").write_text("raise RuntimeError('never import me')")
    (tmp_path / "toytrainer" / "router.py").write_text("def get_router():\n    pass\n")
    (tmp_path / "toytrainer-1.4.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: toytrainer\nVersion: 1.4.0\n"
    (tmp_path / "toytrainer-1.4.0.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return replace(
        VERL,
        title="Toy",
        package="toytrainer",
        module="toytrainer",
        tested="1.4.0",
        least="1.4",
        hooks=(Hook("router.py", "def get_router"),),
    )


@pytest.mark.parametrize("python", ["", sys.executable])
def test_the_version_that_was_tested_is_good_here_and_in_another_python(
    installed: Trainer, python: str
) -> None:
    findings = environment_findings(installed, python)
    assert [finding.state for finding in findings] == [State.OK] * 3
    assert findings[0].words.endswith("the version that was tested")


@pytest.mark.parametrize(
    ("changed", "check_name", "state", "words"),
    [
        ({"least": "1.10"}, "version", State.FAIL, "it must be 1.10 or newer"),
        ({"tested": "1.3.0"}, "version", State.WARN, "tested: 1.3.0"),
        ({"python": "9.1"}, "version", State.FAIL, "it needs Python 9.1"),
        ({"package": "never-was"}, "version", State.WARN, "no version is told by"),
        ({"module": "never_was", "package": "x"}, "version", State.FAIL, "is not installed here"),
        (
            {"hooks": (Hook("router.py", "class Router"),)},
            "hooks",
            State.FAIL,
            "'class Router' in router.py",
        ),
        (
            {"hooks": (Hook("x.py", "y"),), "on_registry": False},
            "hooks",
            State.FAIL,
            "a package of that name may be another one than Toy",
        ),
    ],
)
def test_what_is_wrong_with_an_environment_is_named(
    installed: Trainer, changed: dict[str, Any], check_name: str, state: State, words: str
) -> None:
    findings = environment_findings(replace(installed, **changed), "")
    (finding,) = [f for f in findings if f.check == check_name]
    assert (finding.state, words in finding.words) == (state, True), finding.words


@pytest.mark.parametrize(
    ("version", "parts"),
    [("0.9.1", (0, 9, 1)), ("1.16.0", (1, 16)), ("0.10.0rc1", (0, 10)), ("2", (2,)), ("x", ())],
)
def test_versions_are_compared_by_their_numbers(version: str, parts: Sequence[int]) -> None:
    assert numbers(version) == parts


# Gateway and engines


async def test_a_gateway_that_is_set_up_for_areal_passes() -> None:
    knobs: dict[str, Any] = {"areal": True, "dev": False}
    async with gateway(2, "gateway.shadow_ports=true", **knobs) as g:
        # the ports of engines follow the gateway's own, as `steersman serve` opens them
        ports = [int(url.rpartition(":")[2]) for url in [g.url, *g.shadows]]
        report = await checked(AREAL, url=g.url)
        assert found(report, "gateway") == [(State.OK, "2 of 2 engines alive, enforcing")]
        assert found(report, "requests") == [(State.OK, "taken from AReaL, without a token")]
        assert found(report, "control")[0][0] is State.OK
        assert [state for state, _ in found(report, "weights")] == [State.OK] * 2
        assert [state for state, _ in found(report, "engine")] == [State.OK] * 2
        if ports == list(range(ports[0], ports[0] + 3)):
            assert found(report, "addresses")[0][0] is State.OK


async def test_ports_that_lead_elsewhere_are_found() -> None:
    async with gateway(2, areal=True) as g:
        state, words = found(await checked(AREAL, url=g.url), "addresses")[0]
        assert state is State.FAIL
        assert words.endswith("set gateway.shadow_ports=true")


async def test_paths_lead_to_their_engines() -> None:
    async with gateway(2) as g:
        report = await checked(SKYRL, url=g.url)
        words = "paths of engine-0, engine-1 lead to their engines"
        assert found(report, "addresses") == [(State.OK, words)]
        assert "X-Session-ID" in found(report, "headers")[0][1]
        state, words = found(report, "weights")[0]
        assert state is State.FAIL
        assert words.endswith("(is it a plain vLLM server, and not SkyRL's own?)")


async def test_a_trainer_that_sends_no_token_is_told_that_the_gateway_wants_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "data")
    async with gateway(1) as g:
        report = await checked(SKYRL, url=g.url, token="data")
        state, words = found(report, "requests")[0]
        assert (state, "SkyRL's client sends none" in words) == (State.FAIL, True)
        assert not report.good


@pytest.mark.parametrize(("token", "control"), [("data", State.FAIL), ("admin", State.OK)])
async def test_a_key_for_everything_must_open_control(
    monkeypatch: pytest.MonkeyPatch, token: str, control: State
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "data")
    monkeypatch.setenv("STEERSMAN_ADMIN_TOKEN", "admin")
    async with gateway(1) as g:
        report = await checked(PRIME_RL, url=g.url, token=token)
        assert found(report, "requests")[0][0] is State.OK
        assert found(report, "control")[0][0] is control


async def test_a_gateway_whose_state_is_closed_is_looked_at_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "data")
    async with gateway(1) as g:
        report = await checked(SKYRL, url=g.url)
        assert found(report, "gateway")[0][0] is State.WARN
        assert found(report, "addresses")[0][0] is State.SKIP


async def test_a_gateway_that_only_watches_makes_every_yes_a_no() -> None:
    async with gateway(1, "mode=shadow") as g:
        report = await checked(SKYRL, url=g.url)
        assert {verdict.works for verdict in report.verdicts.values()} == {Works.NO}
        assert "only watches" in report.verdicts[Ability.PLACE].why


async def test_engines_without_a_trainers_routes_are_named() -> None:
    async with gateway(1, dev=False, scale_out=False) as g:
        report = await checked(SKYRL, url=g.url)
        assert "VLLM_SERVER_DEV_MODE=1" in found(report, "control")[0][1]
        assert found(report, "control")[0][0] is State.FAIL
        assert report.verdicts[Ability.MIGRATE].works is Works.PARTLY
        assert "cannot abort by id" in report.verdicts[Ability.MIGRATE].why


async def test_engines_are_looked_at_without_a_gateway() -> None:
    async with FakeVllm() as one, FakeVllm(model="another") as two:
        report = await checked(SKYRL, engines=[one, two])
        assert found(report, "gateway") == [(State.SKIP, "not asked for; --url names it")]
        assert found(report, "engines") == [
            (State.FAIL, "they serve different models: another and fake-model")
        ]
        assert found(report, "extension")[0][0] is State.SKIP


async def test_what_does_not_answer_is_said() -> None:
    async with FakeVllm() as url:
        gone = url
    report = await checked(SKYRL, url=gone, engines=[gone])
    assert found(report, "gateway")[0][0] is State.FAIL
    assert found(report, "engine")[0][0] is State.FAIL


# The command


def test_the_list_has_a_line_for_each_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("attach", "--list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(TRAINERS)
    assert run("attach", "--list", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == list(TRAINERS)


def test_a_trainer_that_is_not_there_ends_with_1_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("attach", "--check", "prime_rl") == 1
    told = capsys.readouterr().out.splitlines()
    assert told[1].startswith("  fail    version")
    assert told[-1] == "It will not work as it is: see the lines above."
    assert run("attach", "--check", "slime", "--json") == 1
    assert json.loads(capsys.readouterr().out)["works"]["place"]["works"] == "no"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--check", "skrl"], "unknown trainer 'skrl'; did you mean 'skyrl'?"),
        (["--check", "verl", "--url", "http://x:1"], "verl does not speak HTTP to its engines"),
        (["--check", "skyrl", "--url", "nowhere"], "'nowhere' is no gateway's URL"),
        (["--check", "skyrl", "--engines", "ftp://x"], "'ftp://x' is no engine URL"),
        (["--check", "skyrl", "--python", "/no/such"], "--python /no/such: No such file"),
        (["--check", "skyrl", "--python", "/bin/false"], "--python /bin/false: it says nothing"),
        (["--check", "skyrl", "--token-file", "/no/such"], "/no/such: No such file"),
        (["--list", "--url", "http://x:1"], "go with --check"),
        (["--check", "skyrl", "--markdown"], "--markdown goes with --list"),
        ([], "one of the arguments --check --list is required"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("attach", *argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_trainers_of_ray_are_not_asked_for_urls() -> None:
    for trainer in (VERL, ROLL, OPENRLHF):
        names = {finding.check for finding in check(trainer).findings}
        assert names <= {"version", "hooks", "steersman"}
