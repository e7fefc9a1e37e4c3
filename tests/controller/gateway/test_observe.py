"""`steersman observe` finds bubbles, tails and what could be gained, and touches nothing."""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from support.fake_vllm import FakeVllm
from support.gateway import gateway
from support.gateway_scene import Scene, busy_scene
from support.served_scene import app_of, served
from support.synthetic_trace import SyntheticRun

from steersman.controller.commands import observe
from steersman.controller.gateway import seeing
from steersman.controller.trace import records as rec
from steersman.controller.trace.writer import TraceWriter
from steersman.controller.watching.finished import observe_trace
from steersman.controller.watching.load import Load, episodes_of
from steersman.controller.watching.looks import EngineLook, Looks
from steersman.controller.watching.observed import Observed
from steersman.estimators.errors import FleetError, InvalidInputError


async def run(*argv: str) -> int:
    """The command, beside what it looks at."""
    parser = argparse.ArgumentParser()
    observe.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.trace is not None:
        return observe.run(args)
    # signals belong to the main thread, where a test's own loop runs
    stop = asyncio.Event()
    for_s = observe._seconds("--for", args.for_s, observe.FOR_S)
    every_s = observe._seconds("--every", args.every_s, observe.EVERY_S)
    found = await observe._looking(args, for_s, every_s, stop)
    observe.tell(found, as_json=args.json)
    return 0


def load(running: list[list[float]], tokens: list[list[float]] | None = None) -> Load:
    """One moment a second; engines are the columns."""
    there = np.array(running, dtype=np.float64)
    return Load(
        t_s=np.arange(len(there), dtype=np.float64),
        running=there,
        waiting=np.zeros_like(there),
        kv=np.full_like(there, np.nan),
        tokens=np.zeros_like(there) if tokens is None else np.array(tokens, dtype=np.float64),
    )


# What a load tells


def test_the_bubble_is_time_without_work_while_another_works() -> None:
    found = episodes_of(load([[4, 4], [4, 0], [4, 0], [0, 0], [0, 0], [0, 0]]))
    assert found.busy_s == 3.0
    assert found.idle.tolist() == [0.0, pytest.approx(2 / 3)]
    assert found.bubble == pytest.approx(1 / 3)


def test_what_waits_is_work_too() -> None:
    looks = load([[0.0], [0.0], [0.0]])
    waiting = np.array([[2.0], [0.0], [0.0]])
    found = episodes_of(Load(looks.t_s, looks.running, waiting, looks.kv, looks.tokens))
    assert (found.busy_s, found.bubble) == (1.0, 0.0)


def test_the_tail_begins_when_four_fifths_are_gone_for_good() -> None:
    flight = [[10.0], [1.0], [9.0], [3.0], [2.0], [1.0], [1.0], [0.0], [5.0], [5.0], [0.0]]
    found = episodes_of(load(flight))
    assert found.tails_s == [3.0]  # 2, 1, 1; the dip before is none, and the second ends at once
    assert found.tail_share == pytest.approx(3 / 9)


def test_a_tail_that_was_not_seen_to_its_end_counts_as_far_as_it_was() -> None:
    assert episodes_of(load([[10.0], [1.0], [1.0], [1.0]])).tails_s == [2.0]


def test_what_could_be_gained_is_the_same_tokens_at_everybodys_best() -> None:
    tokens = [[0, 0], *[[100 * min(i, 10), 50 * min(i, 20)] for i in range(1, 41)]]
    running = [[1.0, 1.0] for _ in range(40)] + [[0.0, 0.0]]
    found = episodes_of(load(running, tokens))
    assert found.best_per_s.tolist() == [100.0, 50.0]
    assert found.busy_s == 40.0
    assert found.fastest_s == pytest.approx(2000 / 150)
    assert found.gain_at_most == pytest.approx(1 - 2000 / 150 / 40)


def test_a_short_burst_of_reports_is_no_best() -> None:
    tokens = [[0.0]] + [[100.0 * i + (900 if i >= 20 else 0)] for i in range(1, 41)]
    found = episodes_of(load([[1.0]] * 41, tokens))
    assert found.best_per_s[0] == pytest.approx((4 * 100 + 900) / 4)  # not 1,000 in one second


@pytest.mark.parametrize("moments", [0, 1])
def test_a_load_that_was_hardly_seen_tells_nothing(moments: int) -> None:
    seen = load([[3.0]] * moments) if moments else load(np.zeros((0, 1)).tolist() or [[]])
    found = episodes_of(seen)
    assert (found.busy_s, found.bubble, found.gain_at_most) == (0.0, 0.0, None)


def test_an_engine_that_is_gone_or_begins_anew_loses_no_tokens() -> None:
    looks = Looks(["a"])
    for t_s, tokens in enumerate((500.0, 600.0, None, 650.0, 10.0, 30.0)):
        seen = None if tokens is None else EngineLook(1.0, 0.0, 0.5, tokens, 0.0)
        looks.add(float(t_s), [seen])
    (engine,) = looks.observed("engines").engines
    assert engine.tokens == 100 + 50 + 20
    assert engine.answered == pytest.approx(5 / 6)


# Engines


async def test_engines_are_looked_at_by_their_metrics_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = FakeVllm(token_s=0.002), FakeVllm(token_s=0.002)
    async with first as url, second as other:
        working = asyncio.create_task(asks(url, 8, 400))
        assert await run("--engines", url, f"{other}/v1", "--for", "1.2", "--every", "0.1") == 0
        await working
        assert not second.asked
        assert [path for path, _ in first.asked] == ["/v1/completions"] * 8
    out = capsys.readouterr().out
    assert out.startswith("2 engines, seen for 1.")
    (line,) = [line for line in out.splitlines() if line.startswith(url)]
    assert float(line.split()[1]) == pytest.approx(8.0, abs=1.0)
    assert "50% of the engines' busy time passed without work" in out
    assert "degenerate" not in out  # engines know nothing of rewards


async def asks(url: str, count: int, tokens: int) -> None:
    """So many requests at once."""
    import aiohttp

    body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    async with aiohttp.ClientSession() as client:

        async def one() -> None:
            async with client.post(f"{url}/v1/completions", json=body) as answer:
                await answer.read()

        await asyncio.gather(*(one() for _ in range(count)))


async def test_json_holds_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeVllm() as url:
        await run("--engines", url, "--for", "0.2", "--every", "0.05", "--json")
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(Observed.__struct_fields__)
    assert (told["busy_s"], told["bubble"], told["gain_at_most"]) == (0.0, 0.0, None)


async def test_idle_engines_are_no_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeVllm() as url:
        await run("--engines", url, "--for", "0.2", "--every", "0.05")
    assert "nothing was in flight: look again while requests are" in capsys.readouterr().out


async def test_an_engine_that_does_not_answer_is_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = FakeVllm()
    async with gone as dead:
        pass
    async with FakeVllm() as url:
        await run("--engines", url, dead, "--for", "0.2", "--every", "0.05")
        with pytest.raises(FleetError, match=f"no engine can be seen: {dead}: Cannot connect"):
            await run("--engines", dead)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(dead)]
    assert line.endswith("answered 0% of the looks")


async def test_what_is_no_engine_is_told() -> None:
    async with served(web.Application()) as url:
        with pytest.raises(FleetError, match="/metrics answers with status 404"):
            await run("--engines", url)
    with pytest.raises(InvalidInputError, match="is no engine URL; valid: http://HOST:PORT"):
        await run("--engines", "localhost")


@pytest.mark.parametrize("option", ["--for", "--every"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
async def test_a_bad_time_is_refused(option: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{option} is .*; valid: a finite number above 0"):
        await run("--engines", "http://127.0.0.1:1", option, value)


def test_ctrl_c_ends_the_look_and_still_tells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks(args: Any, for_s: float, every_s: float, stop: asyncio.Event) -> Observed:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        looked = Looks(["a"])
        looked.add(0.0, [EngineLook(1.0, 0.0, 0.0, 0.0, 0.0)])
        return looked.observed("engines")

    monkeypatch.setattr(observe, "_looking", looks)
    parser = argparse.ArgumentParser()
    observe.add_arguments(parser)
    assert observe.run(parser.parse_args(["--engines", "http://x"])) == 0
    assert capsys.readouterr().out.startswith("1 engine, seen for")


# A gateway


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Late in a step, in shadow mode."""
    monkeypatch.setattr(seeing, "FRESH_S", 0.0)
    scene = busy_scene(20.0, overrides=("mode=shadow",))
    yield scene
    scene.close()


async def test_a_gateway_tells_what_a_shadow_would_do(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(app_of(scene)) as url:
        await run("--gateway", url, "--for", "0.2", "--every", "0.05")
        await run("--gateway", url, "--for", "0.2", "--every", "0.05", "--json")
    out, told = capsys.readouterr().out.rsplit("\n", 2)[:2]
    counts = {(d["action"], d["became"]): d for d in json.loads(told)["decisions"]}
    would = counts["migrate", "recorded"]
    assert would["count"] > 0
    assert would["gain_s"] > 0
    assert ("migrate", "applied") not in counts
    assert "decisions of adaptive (shadow) since the gateway started" in out
    assert f"{would['count']} x migrate would be taken: predicted gain" in out
    assert scene.ledger.counts().moves == 0
    assert "no rewards were told" in out


async def test_a_real_gateway_is_observed_while_it_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with gateway(2, token_s=0.004) as gate:
        body = {"model": gate.fakes[0].model, "prompt": "x", "max_tokens": 20_000, "n": 6}
        asked = gate.post("/v1/completions", {**body, "ignore_eos": True})
        working = asyncio.create_task(asked)
        async with asyncio.timeout(20):
            while len(gate.running()) < 6:
                await asyncio.sleep(0.01)
        await run("--gateway", gate.url, "--for", "1.5", "--every", "0.1", "--json")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    told = json.loads(capsys.readouterr().out)
    assert told["busy_s"] == pytest.approx(told["seen_s"])
    assert [e["most_inflight"] for e in told["engines"]] == [3, 3]
    assert (told["bubble"], told["tails"]) == (0.0, 0)
    assert told["tokens"] > 0


async def test_a_gateway_that_restarts_is_waited_for(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(app_of(scene)) as url:
        task = asyncio.create_task(
            run("--gateway", url, "--for", "1.0", "--every", "0.05", "--json")
        )
        async with asyncio.timeout(20):
            while not seen_by(scene):
                await asyncio.sleep(0.01)
    assert await task == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["engines"][0]["answered"] < 1


def seen_by(scene: Scene) -> bool:
    """Whether its state was asked for, several times."""
    return scene.looks > 3


# A trace


def written(path: Path, run_: SyntheticRun) -> Path:
    writer = TraceWriter(path)
    for record in run_.records():
        writer.write(record)
    writer.close()
    return path


async def test_a_trace_tells_the_same_of_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "run.jsonl", SyntheticRun())
    assert await run(str(path)) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 engines, seen for ")
    assert "replica-0 " in out
    assert "rewarded groups taught nothing" in out
    assert "decisions of tail_planner (enforcing)" in out
    assert "x migrate applied: predicted gain" in out


def test_the_bubble_of_a_trace_is_that_of_its_attempts() -> None:
    trace = list(SyntheticRun(steps=3, steer=False).records())
    found = observe_trace(trace)
    spans: dict[str, list[tuple[float, float]]] = {}
    open_: dict[str, float] = {}
    for record in trace:
        if isinstance(record, rec.AttemptStarted):
            open_[record.attempt_id] = record.t_s
        elif isinstance(record, rec.AttemptEnded):
            spans.setdefault(record.replica, []).append((open_[record.attempt_id], record.t_s))
    t_s = np.linspace(0.0, trace[-1].t_s, 50_001)
    there = np.array(
        [sum((t_s >= a) & (t_s < b) for a, b in spans[name]) for name in sorted(spans)]
    )
    busy = there.sum(axis=0) > 0
    assert found.bubble == pytest.approx((there[:, busy] == 0).mean(), abs=0.005)
    assert found.busy_s == pytest.approx(busy.mean() * trace[-1].t_s, rel=0.01)
    tokens = sum(r.generated_tokens for r in trace if isinstance(r, rec.TrajectoryEnded))
    assert found.tokens == pytest.approx(tokens, abs=2)
    assert found.tails == 3


async def test_a_trace_in_which_nothing_ran_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", SyntheticRun(steps=0))
    with pytest.raises(InvalidInputError, match="nothing ran in the trace"):
        await run(str(path))
    with pytest.raises(InvalidInputError, match="--for is for looks at what runs"):
        await run(str(path), "--for", "3")
    with pytest.raises(InvalidInputError, match="No such file"):
        await run(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("argv", [[], ["x.jsonl", "--gateway"], ["--engines", "u", "--gateway"]])
async def test_exactly_one_thing_is_observed(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        await run(*argv)
