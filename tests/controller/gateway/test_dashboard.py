"""The dashboard in a real browser, and what the gateway serves to its viewers."""

import asyncio
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from support.gateway import gateway
from support.gateway_scene import Scene, busy_scene
from support.live_browser import Tab, browser_tab
from support.served_scene import app_of, served

from steersman.controller.gateway import seeing
from steersman.controller.gateway.dashboard import load_page
from steersman.controller.gateway.snapshot import snapshot
from steersman.controller.gateway.state import decode_state

LAPTOP = {"width": 1280, "height": 800}
NASTY = '<img src=x onerror="boom()"><script>boom()</script>&amp;'
ROWS = "document.querySelectorAll('#trajectories .sample').length"


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a new one, as time stands still here."""
    monkeypatch.setattr(seeing, "FRESH_S", 0.0)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Late in a step."""
    scene = busy_scene(16.0)
    yield scene
    scene.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: a folder of the test's, or STEERSMAN_PICTURES."""
    folder = Path(os.environ.get("STEERSMAN_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def shown(tab: Tab, url: str, fragment: str = "") -> None:
    """Open the dashboard and wait for its first state."""
    await tab.open(f"{url}/dashboard{fragment}")
    await tab.until(ROWS)


@asynccontextmanager
async def asked(scene: Scene, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """What a gateway answers there."""
    async with (
        served(app_of(scene)) as url,
        aiohttp.ClientSession(url) as client,
        client.get(path) as answer,
    ):
        yield answer


# What is served


async def test_the_state_is_served_as_json(scene: Scene) -> None:
    async with asked(scene, "/dashboard/state") as answer:
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
        told = decode_state(await answer.read())
    assert told.trajectories == snapshot(scene).trajectories  # type: ignore[arg-type]


async def test_a_state_is_made_once_however_many_look(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeing, "FRESH_S", 60.0)
    seen = seeing.Seeing(scene)  # type: ignore[arg-type]
    first = seen.state()
    scene.play(1.0)
    assert seen.state() is first


async def test_metrics_are_served_to_prometheus(scene: Scene) -> None:
    async with asked(scene, "/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = await answer.text()
    assert 'steersman_replica_up{replica="engine-0"} 1.0' in text


async def test_every_request_is_counted_and_timed(scene: Scene) -> None:
    app, started = app_of(scene), asyncio.Event()

    async def breaks(request: web.Request) -> web.Response:
        raise RuntimeError("a bug")

    async def hangs(request: web.Request) -> web.Response:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    app.router.add_get("/v1/models", breaks)
    app.router.add_get("/load", hangs)
    counted = app[seeing.SEEING].metrics.requests
    async with served(app) as url:
        async with aiohttp.ClientSession(url) as client:
            for path, status in (("/dashboard", 200), ("/v1/models", 500), ("/nowhere", 404)):
                async with client.get(path) as answer:
                    assert answer.status == status
            waiting = asyncio.create_task(client.get("/load"))
            await started.wait()
            waiting.cancel()
        async with asyncio.timeout(10):
            while not counted["/load", "gone"]:
                await asyncio.sleep(0.01)
    assert counted == {
        ("/dashboard", "2xx"): 1,
        ("/v1/models", "5xx"): 1,
        ("other", "4xx"): 1,
        ("/load", "gone"): 1,
    }


def test_the_page_loads_nothing_and_runs_nothing_but_its_own() -> None:
    page = load_page()
    html = page.html.decode()
    assert not re.search(r'\s(src|href|style|on\w+)="', html)
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "innerHTML" not in html
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (part,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        digest = b64encode(sha256(part.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in page.policy
    assert page.policy.startswith("default-src 'none';")


async def test_the_policy_comes_with_the_page(scene: Scene) -> None:
    async with asked(scene, "/dashboard") as answer:
        assert answer.headers["Content-Security-Policy"] == load_page().policy
        assert answer.content_type == "text/html"


# What is shown


async def test_the_page_shows_the_fleet_and_names_the_straggler(
    scene: Scene, tmp_path: Path, pictures: Path
) -> None:
    papers = []
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await tab.look(dark=False, **LAPTOP)
        await shown(tab, url)
        for _ in range(44):
            scene.play(0.5)
            scene.reward_complete()
            await tab.value("ask()")
        told = snapshot(scene)  # type: ignore[arg-type]
        shown_rows = await tab.value(
            "[...document.querySelectorAll('#trajectories .who b')].map(b => +b.textContent)"
        )
        assert shown_rows == [t.trajectory_id for t in told.trajectories]
        assert told.why.straggler is not None
        assert (
            await tab.value("document.querySelector('#straggler').textContent")
            == told.why.straggler.sentence
        )
        engines = "[...document.querySelectorAll('#replicas .name b')].map(b => b.textContent)"
        assert await tab.value(engines) == [r.name for r in told.replicas]
        reasons = "[...document.querySelectorAll('.decision p')].map(p => p.textContent)"
        assert await tab.value(reasons) == [d.reason for d in told.why.decisions]
        assert await tab.value("document.querySelector('#decider').textContent") == "Enforcing"
        for dark, name in ((False, "dashboard-light.png"), (True, "dashboard-dark.png")):
            await tab.look(dark=dark, **LAPTOP)
            papers.append(await tab.value("getComputedStyle(document.body).backgroundColor"))
            await tab.picture(pictures / name)
        assert tab.problems == []
    assert papers[0] != papers[1]
    assert (pictures / "dashboard-light.png").stat().st_size > 20_000


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1440, 900), (820, 1100), (400, 800)])
async def test_the_page_fits_its_window(
    scene: Scene, tmp_path: Path, width: int, height: int
) -> None:
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await tab.look(dark=False, width=width, height=height)
        await shown(tab, url)
        root = "document.documentElement"
        assert await tab.value(f"{root}.scrollWidth - innerWidth") <= 0
        if width >= 1280:  # panels scroll, the page does not
            assert await tab.value(f"{root}.scrollHeight - innerHeight") <= 0
        cut = await tab.value(
            "[...document.querySelectorAll('.tile .value, .replica .num, .tokens, .head h2')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
        )
        assert cut == []


async def test_bars_lie_within_their_lanes_and_in_order(scene: Scene, tmp_path: Path) -> None:
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await tab.look(dark=False, **LAPTOP)
        await shown(tab, url)
        wrong = await tab.value(
            """[...document.querySelectorAll('.lane')].filter(lane => {
                const edge = e => e.getBoundingClientRect(), l = edge(lane);
                const [done, half, rest] = ['.done', '.half', '.rest'].map(
                    c => edge(lane.querySelector(c)));
                return done.left < l.left - 1 || rest.right > l.right + 1 ||
                    half.width < 1 || Math.abs(done.right - half.left) > 1 ||
                    Math.abs(half.right - rest.left) > 1;
            }).length"""
        )
        ends = await tab.value(
            "[...document.querySelectorAll('.lane .half')]"
            ".map(e => e.getBoundingClientRect().right)"
        )
    assert wrong == 0
    assert ends == sorted(ends, reverse=True)


async def test_names_are_shown_as_text_whatever_they_hold(tmp_path: Path) -> None:
    scene = Scene()
    scene.ask(NASTY, 2)
    scene.play(1.0)
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await shown(tab, url)
        assert await tab.value("document.querySelectorAll('main img, main script').length") == 0
        names = await tab.value(
            "[...document.querySelectorAll('.who span')].map(s => s.textContent)"
        )
        assert tab.problems == []
    scene.close()
    assert len(names) == 2
    assert all(name.endswith(f" · {NASTY}") for name in names)


async def test_whatever_is_not_known_is_left_open(tmp_path: Path) -> None:
    scene = Scene("mode=off")
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelector('.nothing')")
        assert await tab.value("document.querySelector('#straggler').textContent") == (
            "Nothing runs."
        )
        scene.step(prompts=2, size=4)
        scene.play(1.0)
        await tab.value("ask()")
        assert await tab.value(ROWS) == 8
        text = await tab.value("document.body.innerText")
        assert tab.problems == []
    scene.close()
    assert "No end is predicted" in text
    assert "Off: the default rule acts" in text
    assert not re.search(r"NaN|undefined|null|Infinity", text)


# Tokens and failures


async def test_the_page_asks_for_the_token_that_the_state_needs(
    scene: Scene, tmp_path: Path
) -> None:
    async with served(app_of(scene, token="s3cret")) as url, browser_tab(tmp_path) as tab:
        await tab.open(f"{url}/dashboard")
        await tab.until("!document.querySelector('#login').hidden")
        assert await tab.value("document.querySelector('#wrong').hidden")
        for word in ("guess", "s3cret"):
            await tab.value(
                f"document.querySelector('#token').value = '{word}';"
                "document.querySelector('#login').requestSubmit()"
            )
            if word == "guess":
                await tab.until("!document.querySelector('#wrong').hidden")
        await tab.until(ROWS)
        assert await tab.value("document.querySelector('#login').hidden")


async def test_a_token_in_the_address_is_used_and_taken_out_of_it(
    scene: Scene, tmp_path: Path
) -> None:
    async with served(app_of(scene, token="a b+c")) as url, browser_tab(tmp_path) as tab:
        await shown(tab, url, "#token=a%20b%2Bc")
        assert await tab.value("location.href") == f"{url}/dashboard"
        await tab.call("Page.reload")
        await tab.until(ROWS)


async def test_a_real_gateway_shows_its_dashboard_to_who_has_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSMAN_TOKEN", "s3cret")
    async with gateway(2, token_s=0.01) as gate, browser_tab(tmp_path) as tab:
        body = {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 3000, "n": 6}
        headers = {"Authorization": "Bearer s3cret"}
        asked = gate.client.post(
            f"{gate.url}/v1/completions", json={**body, "ignore_eos": True}, headers=headers
        )
        working = asyncio.ensure_future(asked)
        async with gate.client.get(f"{gate.url}/dashboard") as answer:
            assert answer.status == 401  # not even the page
        await shown(tab, gate.url.replace("http://", "http://me:s3cret@"))
        await tab.until(f"{ROWS} === 6")
        await tab.until("latest.trajectories[0].ends_in_s > 0")
        assert await tab.value("document.querySelectorAll('#replicas .replica').length") == 2
        assert tab.problems == []
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_gateway_that_is_down_is_told_and_found_again(scene: Scene, tmp_path: Path) -> None:
    async with browser_tab(tmp_path) as tab:
        async with served(app_of(scene)) as url:
            await shown(tab, url)
            assert await tab.value("document.querySelector('#banner').hidden")
        await tab.until("!document.querySelector('#banner').hidden")
        banner = await tab.value("document.querySelector('#banner').textContent")
        assert "it does not answer" in banner
        assert "Below is its state of" in banner
        assert await tab.value(ROWS)  # what was known last stays readable
        async with served(app_of(scene), port=urlsplit(url).port or 0):
            await tab.until("document.querySelector('#banner').hidden")
            assert not await tab.value("document.body.classList.contains('stale')")


async def test_a_paused_view_stands_still(scene: Scene, tmp_path: Path) -> None:
    tokens = "document.querySelector('.tokens').textContent"
    async with served(app_of(scene)) as url, browser_tab(tmp_path) as tab:
        await shown(tab, url)
        key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'p', bubbles: true}))"
        await tab.value(key)
        before = await tab.value(tokens)
        scene.play(1.0)
        await tab.value("ask()")
        assert await tab.value(tokens) == before
        await tab.value(key)
        assert await tab.value(tokens) != before
