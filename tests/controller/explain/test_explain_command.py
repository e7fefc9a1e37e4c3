"""`steersman explain`: on a made-up trace, on one of a live session, and on bad input."""

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.controllers import steered_by
from support.fake_fleet import EOS, FakeFleet
from support.synthetic_trace import SyntheticRun

from steersman.controller import cli
from steersman.controller.results import Group, Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import records as rec
from steersman.controller.trace.export import to_parquet
from steersman.controller.trace.reader import check, read
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Disposition
from steersman.estimators.observation import Observation
from steersman.mechanisms.fleet import Sampling
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "run.jsonl"
    writer = TraceWriter(path)
    for record in SyntheticRun(steps=2, groups=3, size=4).records():
        writer.write(record)
    writer.close()
    return path


class Thoughtful(Stateless):
    """Places on r0; then once per trajectory moves, stops or spares it, or says nonsense."""

    def __init__(self) -> None:
        self._acted: set[int] = set()
        self._weighed: dict[str, float] = {}

    def decide(self, observation: Observation, forecast: Forecast, rng: Any) -> list[Decision]:
        t = observation.trajectories
        decisions = [place(observation, int(row), 0, "mine", "first") for row in observation.queued]
        ids = t.trajectory_id[observation.running[t.generated_tokens[observation.running] > 0]]
        fresh = {*ids.tolist()} - self._acted
        self._acted |= fresh
        self._weighed = (
            {"default": np.float64(9.5), "move": 7.25, "stuck": math.inf} if fresh else {}
        )
        return decisions + [self._one(i) for i in sorted(fresh)]

    def _one(self, i: int) -> Decision:
        if i % 4 == 0:
            return Decision(i, Action.MIGRATE, "mine", "saves 2.25 s", "r1", gain_s=2.25)
        if i % 4 == 3:
            return Decision(i, Action.MIGRATE, "mine", "nonsense", "r1", gain_s=math.nan)
        side = Action.STOP if i % 4 == 1 else Action.CONTINUE
        return Decision(i, side, "mine", "a coin fell", propensity=0.5)

    def alternatives(self) -> Mapping[str, float]:
        return self._weighed


async def lived(path: Path) -> list[Group]:
    """One step of a live session whose trace goes to `path`."""
    fleet, writer = FakeFleet(2), TraceWriter(path)
    engine = asyncio.create_task(fleet.run())
    steering = steered_by(Thoughtful(), "tick_s=0.01")
    prompts = [Prompt(f"p{i}", [3 + i, 4, 5]) for i in range(4)]
    sampling = Sampling(stop_token_ids=(EOS,))
    try:
        async with RolloutSession(fleet, steering, trace=writer) as session:
            return await session.rollout(prompts, 4, max_new_tokens=80, sampling=sampling)
    finally:
        engine.cancel()


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["explain", *argv]) == 0
    return capsys.readouterr().out


def test_without_a_selector_it_counts_and_tells_the_ten_largest_gains(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, str(synthetic))
    assert "REPLICA ends earlier and has room for its remaining tokens (tail_planner)" in text
    gains = [float(part.split(" s,")[0]) for part in text.split("predicted  gain ")[1:]]
    assert gains == sorted(gains, reverse=True)
    assert 0 < len(gains) <= 10


def test_a_selector_tells_the_first_decisions_and_how_many_match(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, str(synthetic), "--action", "place", "--limit", "3")
    assert text.startswith("decisions that match: 28\nthe first 3 of them")
    assert text.count("place queue -> replica-") == 3
    assert "decisions that match: 0" in output(capsys, str(synthetic), "--tick", "123456")


def test_json_is_one_object_with_everything(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(output(capsys, str(synthetic), "--step", "1", "--limit", "100", "--json"))
    assert found["matching"] == len(found["decisions"]) > 0
    assert {d["step"] for d in found["decisions"]} == {1}
    assert all(d["fate"]["disposition"] for d in found["decisions"])


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["/no/such.jsonl"], "No such file"),
        (["TRACE", "--trajectory", "999"], "no trajectory 999"),
        (["TRACE", "--step", "999"], "no step 999"),
        (["TRACE", "--action", "migrat"], "unknown action 'migrat'; did you mean 'migrate'?"),
        (["TRACE", "--limit", "-1"], "--limit is -1; valid: 0 or more"),
        (["TRACE", "--step", "1", "--tick", "1"], "not allowed with argument"),
        (["TRACE", "--tick", "x"], "invalid int value"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], complaint: str, synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(synthetic) if text == "TRACE" else text for text in argv]
    try:
        code = cli.main(["explain", *argv])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert complaint in err


async def test_a_live_run_tells_what_was_weighed_and_what_coins_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = await lived(tmp_path / "run.jsonl")
    path = str(tmp_path / "run.jsonl")
    assert check(read(path)) == []
    weighed = [r for r in read(path) if isinstance(r, rec.AlternativesWeighed)]
    assert weighed
    assert all(r.seconds == {"default": 9.5, "move": 7.25, "stuck": None} for r in weighed)
    text = output(capsys, path)
    assert "move: " in text
    assert "weighed    move 7.2 s, default 9.5 s, stuck without end" in text
    assert "x its propensity, gain or cost is not a number that can be" in text
    spared = json.loads(output(capsys, path, "--action", "continue", "--json"))["decisions"]
    assert {d["fate"]["weight"] for d in spared if d["outcome"] == "applied"} == {2.0}
    by_id = {t.trajectory_id: t for g in groups for t in g.trajectories}
    assert {by_id[d["trajectory_id"]].weight for d in spared if d["outcome"] == "applied"} == {2.0}
    for t in by_id.values():
        assert (t.weight == 1.0) == (t.correctness is CorrectnessClass.EXACT)
        assert t.weight == 0.0 or t.disposition is not Disposition.STOPPED


async def test_what_was_weighed_is_a_table_of_the_export(tmp_path: Path) -> None:
    await lived(tmp_path / "run.jsonl")
    to_parquet(tmp_path / "run.jsonl", tmp_path / "tables")
    table = pl.read_parquet(tmp_path / "tables" / "alternatives_weighed.parquet")
    assert json.loads(table["seconds"][0]) == {"default": 9.5, "move": 7.25, "stuck": None}


async def test_nothing_is_written_where_nothing_was_weighed(tmp_path: Path) -> None:
    await lived(tmp_path / "run.jsonl")
    weighed = {
        r.tick for r in read(tmp_path / "run.jsonl") if isinstance(r, rec.AlternativesWeighed)
    }
    placing = {
        r.tick
        for r in read(tmp_path / "run.jsonl")
        if isinstance(r, rec.DecisionTaken) and r.decision.action is Action.PLACE
    }
    assert placing - weighed
