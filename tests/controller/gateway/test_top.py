"""`steersman top`: printed once, as JSON, and live under Textual's pilot."""

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from rich.console import Console
from support.gateway_scene import Scene, busy_scene
from support.served_scene import app_of, served
from textual.widgets import Static

from steersman.controller.commands import top
from steersman.controller.gateway import seeing
from steersman.controller.gateway.snapshot import snapshot
from steersman.controller.gateway.state import GatewayState, TrajectoryState, decode_state
from steersman.controller.watching import text
from steersman.controller.watching.client import StateClient, clean_url, token_of
from steersman.controller.watching.screen import TopScreen
from steersman.estimators.errors import FleetError, InvalidInputError

SIZE = (150, 44)


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a new one, as time stands still here."""
    monkeypatch.setattr(seeing, "FRESH_S", 0.0)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Late in a step."""
    scene = busy_scene(24.0)
    yield scene
    scene.close()


async def run(*argv: str) -> int:
    """The command, beside the gateway that it asks."""
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    return await asyncio.to_thread(top.run, parser.parse_args(argv))


def printed(state: GatewayState, width: int, rows: int = 30) -> list[str]:
    """The page's lines."""
    console = Console(width=width, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(text.page(state, width, rows))
    return captured.get().splitlines()


# Once


async def test_once_prints_engines_trajectories_and_why(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    told = snapshot(scene)  # type: ignore[arg-type]
    async with served(app_of(scene)) as url:
        assert await run(url, "--once") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("steersman   enforcing    step 1 for ")
    for replica in told.replicas:
        (line,) = [line for line in lines if line.startswith(replica.name)]
        assert f"{replica.running}/48" in line
        assert f"{replica.kv_usage:.0%}" in line
    head = next(i for i, line in enumerate(lines) if line.startswith("id "))
    shown = [int(line.split()[0]) for line in lines[head + 1 : head + 6]]
    assert shown == [t.trajectory_id for t in told.trajectories[:5]]
    assert told.why.straggler is not None
    assert told.why.straggler.sentence in " ".join(out.split())
    assert told.why.decisions[0].reason in " ".join(out.split())


async def test_json_is_the_state_itself(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(app_of(scene)) as url:
        assert await run(f"{url}/dashboard/", "--json") == 0
    told = decode_state(capsys.readouterr().out.encode())
    assert told.trajectories == snapshot(scene).trajectories  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_page_fits_its_terminal(scene: Scene, width: int) -> None:
    lines = printed(snapshot(scene), width)  # type: ignore[arg-type]
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)  # nothing is cut


def test_what_is_not_shown_is_counted(scene: Scene) -> None:
    told = snapshot(scene)  # type: ignore[arg-type]
    assert f"and {len(told.trajectories) - 3} more" in printed(told, 100, rows=3)


def test_names_cannot_command_the_terminal(scene: Scene) -> None:
    nasty = Scene()
    nasty.ask("\x1b[2J[bold]x[/bold]\nnew line", 1)
    nasty.play(1.0)
    told = snapshot(nasty)  # type: ignore[arg-type]
    nasty.close()
    out = "\n".join(printed(told, 120))
    assert "?[2J[bold]x[/bold]?ne" in out
    assert "\x1b" not in out


def test_a_strip_shows_past_likely_and_unlikely_time() -> None:
    blank = dict.fromkeys(
        ("request_id", "prompt_id", "target", "why"), ""
    ) | dict.fromkeys(
        ("group_id", "prompt_tokens", "generated_tokens", "max_new_tokens", "moves", "restarts",
         "weight_version", "trajectory_id", "remaining_tokens", "remaining_upper"), 0,
    )  # fmt: skip
    axis = text.Axis(past_s=10.0, future_s=20.0, width=30)

    def strip(**more: Any) -> str:
        t = TrajectoryState(**{**blank, "phase": "running", "replica": "a", **more})
        return text.strip(t, 100.0, axis, "red").plain

    known = {"since_s": 95.0, "ends_in_s": 4.0, "ends_in_upper_s": 8.0}
    assert strip(**known) == " " * 5 + "█" * 5 + "▒" * 4 + "─" * 4
    long = {"since_s": 0.0, "ends_in_s": 30.0, "ends_in_upper_s": 80.0}
    assert strip(**long) == "█" * 10 + "▒" * 20
    unknown = {"since_s": 98.0, "ends_in_s": None, "ends_in_upper_s": None}
    assert strip(**unknown) == " " * 8 + "██"
    assert strip(**unknown, phase="queued").rstrip() == " " * 8 + "··┆"


async def test_nothing_of_textual_is_needed_to_print_once(scene: Scene) -> None:
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "import argparse\n"
        "from steersman.controller.commands import top\n"
        "parser = argparse.ArgumentParser(); top.add_arguments(parser)\n"
        "sys.exit(top.run(parser.parse_args(sys.argv[1:])))"
    )
    async with served(app_of(scene)) as url:
        for option in ("--once", "--json"):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", code, url, option],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 1


# What can be wrong


async def test_without_textual_one_line_says_what_to_install(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "steersman.controller.watching.screen")
    with pytest.raises(InvalidInputError, match=r"pip install 'steersman\[top\]', or --once"):
        await run("http://127.0.0.1:1")


async def test_a_gateway_that_does_not_answer_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(FleetError, match=f"no gateway answers at {url}: Connection refused"):
            await run(url, "--once")


async def test_what_is_no_gateway_is_told() -> None:
    async def other(request: web.Request) -> web.Response:
        return web.json_response({"step": 1})

    app = web.Application()
    app.router.add_get("/dashboard/state", other)
    async with served(app) as url:
        with pytest.raises(InvalidInputError, match="is no gateway of this version"):
            await run(url, "--once")
    async with served(web.Application()) as url:
        with pytest.raises(InvalidInputError, match="is no gateway: status 404"):
            await run(url, "--once")


@pytest.mark.parametrize("url", ["localhost:8100", "ftp://x", "http://"])
def test_a_bad_address_is_refused_with_a_good_one(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"valid: http://127\.0\.0\.1:8100"):
        clean_url(url)


@pytest.mark.parametrize("every", ["0", "-1", "nan", "inf"])
async def test_a_bad_interval_is_refused(every: str) -> None:
    with pytest.raises(InvalidInputError, match="--every is"):
        await run("http://127.0.0.1:1", "--every", every)


async def test_the_token_comes_from_a_file_or_the_environment(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STEERSMAN_TOKEN", "STEERSMAN_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("s3cret\n")
    async with served(app_of(scene, token="s3cret")) as url:
        with pytest.raises(InvalidInputError, match="wants its token; valid: STEERSMAN_TOKEN"):
            await run(url, "--once")
        assert await run(url, "--once", "--token-file", str(tmp_path / "token")) == 0
        monkeypatch.setenv("STEERSMAN_ADMIN_TOKEN", "s3cret")
        assert await run(url, "--once") == 0
    assert token_of("", {"STEERSMAN_TOKEN": "a", "STEERSMAN_ADMIN_TOKEN": "b"}) == "a"


# Live


async def settled(screen: TopScreen, pilot: Any) -> None:
    """What was asked for has been shown."""
    await screen.workers.wait_for_complete()
    await pilot.pause()


def content(part: Static) -> str:
    """What a part shows, as words."""
    console = Console(width=200, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(part.content)
    return " ".join(captured.get().split())


async def test_the_screen_shows_engines_trajectories_and_why(scene: Scene, tmp_path: Path) -> None:
    told = snapshot(scene)  # type: ignore[arg-type]
    screen = TopScreen(lambda: told, every_s=3600)
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        assert screen.replicas.row_count == 4
        table = screen.trajectories
        shown = [table.get_row_at(i)[0].plain.split()[0] for i in range(table.row_count)]
        assert shown == [str(t.trajectory_id) for t in told.trajectories]
        assert told.why.straggler is not None
        assert told.why.straggler.sentence in content(screen.why)
        assert "enforcing" in content(screen.head)
        assert table.max_scroll_x == 0  # the strips fit
        folder = Path(os.environ.get("STEERSMAN_PICTURES", tmp_path))
        folder.mkdir(parents=True, exist_ok=True)
        # Textual names a font on the network: the machine's own will do
        picture = re.sub(r"@font-face \{.*?\}", "", screen.export_screenshot(), flags=re.DOTALL)
        (folder / "top.svg").write_text(picture, encoding="utf-8")
    assert picture.startswith("<svg")
    assert "engine-3" in picture
    assert 'url("http' not in picture


async def test_arrows_choose_a_trajectory_and_tell_more_of_it(scene: Scene) -> None:
    told = snapshot(scene)  # type: ignore[arg-type]
    screen = TopScreen(lambda: told, every_s=3600)
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        await pilot.press("down", "down")
        await pilot.pause()
        chosen = told.trajectories[2]
        assert f"Trajectory {chosen.trajectory_id} " in content(screen.one)
        assert chosen.request_id in content(screen.one)


async def test_the_cursor_stays_on_its_trajectory(scene: Scene) -> None:
    screen = TopScreen(lambda: snapshot(scene), every_s=3600)  # type: ignore[arg-type]
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        await pilot.press("down", "down", "down")
        await pilot.pause()
        before = screen._chosen()
        assert screen.state is not None
        first = screen.state.trajectories[0].trajectory_id
        scene.cut(next(q for q in scene.questions.values() if str(first) not in before))
        scene.play(2.0)
        await pilot.press("r")
        await settled(screen, pilot)
        ids = [str(t.trajectory_id) for t in screen.state.trajectories]
        assert before in ids
        assert screen._chosen() == before
        assert screen.trajectories.cursor_row == ids.index(before)


async def test_a_paused_view_stands_still(scene: Scene) -> None:
    screen = TopScreen(lambda: snapshot(scene), every_s=3600)  # type: ignore[arg-type]
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        before = screen.state
        await pilot.press("p")
        scene.play(1.0)
        await pilot.press("r")
        await settled(screen, pilot)
        assert screen.state is before
        assert "view paused" in content(screen.head)
        await pilot.press("p")
        await settled(screen, pilot)
        assert screen.state is not None
        assert before is not None
        assert screen.state.now_s > before.now_s
        assert "view paused" not in content(screen.head)


async def test_a_gateway_that_goes_away_is_told_and_found_again(scene: Scene) -> None:
    down = [False]

    def ask() -> GatewayState:
        if down[0]:
            raise FleetError("no gateway answers at http://x: Connection refused")
        return snapshot(scene)  # type: ignore[arg-type]

    screen = TopScreen(ask, every_s=3600)
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        trouble = screen.trouble
        assert not trouble.display
        down[0] = True
        await pilot.press("r")
        await settled(screen, pilot)
        assert trouble.display
        assert "no gateway answers at http://x" in content(screen.trouble)
        assert screen.trajectories.row_count > 0  # the last state stays readable
        down[0] = False
        await pilot.press("r")
        await settled(screen, pilot)
        assert not trouble.display


async def test_q_ends(scene: Scene) -> None:
    screen = TopScreen(lambda: snapshot(scene), every_s=3600)  # type: ignore[arg-type]
    async with screen.run_test(size=SIZE) as pilot:
        await settled(screen, pilot)
        await pilot.press("q")
    assert screen.return_code == 0


async def test_the_screen_asks_again_by_itself(scene: Scene) -> None:
    asked = []

    def ask() -> GatewayState:
        asked.append(1)
        return snapshot(scene)  # type: ignore[arg-type]

    screen = TopScreen(ask, every_s=0.02)
    async with screen.run_test(size=SIZE) as pilot:
        async with asyncio.timeout(20):
            while len(asked) < 4:
                await pilot.pause()
                await asyncio.sleep(0.01)


async def test_the_client_reads_what_a_gateway_serves(scene: Scene) -> None:
    async with served(app_of(scene)) as url:
        told = await asyncio.to_thread(StateClient(url).state)
    assert msgspec.json.encode(told.trajectories) == msgspec.json.encode(
        snapshot(scene).trajectories  # type: ignore[arg-type]
    )
