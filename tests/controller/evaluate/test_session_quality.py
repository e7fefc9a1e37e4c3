"""A trainer tells the session how good it is, and `steersman evaluate` reads it from the trace."""

import asyncio
import math
from pathlib import Path

import pytest
from support.fake_fleet import EOS, FakeFleet

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.evaluate.reading import read
from steersman.controller.results import Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.trace import reader
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import Sampling

PROMPTS = [Prompt(f"p{i}", [3 + i, 4, 5]) for i in range(4)]


async def test_what_a_session_is_told_is_read_with_its_cost(tmp_path: Path) -> None:
    config = load_config(None, ["placement.name=round_robin", "tick_s=0.005"], environ={})
    fleet = FakeFleet(2)
    engine = asyncio.create_task(fleet.run())
    path, tokens = tmp_path / "run.jsonl", [0]
    try:
        controller = Controller.from_config(config)
        async with RolloutSession(fleet, controller, trace=TraceWriter(path)) as session:
            session.quality(0.4, evaluated=500, metric="pass@1")
            for version in (1, 2):
                groups = await session.rollout(
                    PROMPTS, 2, max_new_tokens=30, sampling=Sampling(stop_token_ids=(EOS,))
                )
                written = sum(len(t.token_ids) for g in groups for t in g.trajectories)
                tokens.append(tokens[-1] + written)
                await session.push_weights([], version)
                session.quality(0.4 + 0.1 * version, evaluated=500, metric="pass@1", seconds=0.001)
            for wrong in (
                {"quality": math.nan},
                {"quality": 1.5, "evaluated": 10},
                {"quality": 0.5, "evaluated": -1},
                {"quality": 0.5, "seconds": -1.0},
            ):
                with pytest.raises(InvalidInputError, match="; valid: "):
                    session.quality(**wrong)  # type: ignore[arg-type]
    finally:
        engine.cancel()
    assert reader.check(reader.read(path)) == []
    study = read([path])
    (run,) = study.arm("round_robin").values()
    assert run.quality.tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert run.tokens.tolist() == tokens
    assert run.step.tolist() == [0, 1, 2]
    assert (run.replica_s[1:] > 0).all()
    assert study.header["metric"] == "pass@1"
