"""The demo compares what it is asked to compare, and counts what it costs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_fleet import FakeFleet

from steersman.controller import cli
from steersman.controller.config import load_config
from steersman.controller.trace.reader import read
from steersman.controller.trace.records import QualityMeasured
from steersman.estimators.observation import Normaliser
from steersman.examples import demo
from steersman.examples.demo_results import results
from steersman.examples.signs import reinforce as loop
from steersman.examples.signs.grpo import GrpoTrainer
from steersman.examples.signs.model import Shape, SignsModel, export_hf
from steersman.examples.signs.reinforce import Arm, RunReport, RunSettings
from steersman.examples.signs.task import deal_prompts, make_pool, prompt_tokens

TINY = Shape(hidden=16, intermediate=16, layers=1, heads=1, max_positions=512)
WORK = RunSettings(
    steps=3, prompts_per_step=4, group_size=4, max_new_tokens=24, pool_size=20, evaluate_every=1
)


def parsed(*asked: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args([*asked])


def arms(*asked: str) -> list[Arm]:
    return demo.arms_of(parsed(*asked))


def test_without_a_prompt_policy_both_placement_policies_are_dealt_their_prompts() -> None:
    assert [(arm.name, arm.dealt) for arm in arms()] == [(name, True) for name in demo.POLICIES]


def test_prompt_policies_are_compared_under_one_placement_policy() -> None:
    found = arms("--prompt-policy", "uniform", "--prompt-policy", "mopps,uniform_share=0.1")
    assert [(a.name, a.dealt) for a in found] == [("uniform", True), ("mopps,uniform_share=0.1", 0)]
    config = load_config(None, found[1].overrides, environ={})
    assert config.placement.name == demo.POLICIES[0]
    assert config.prompts.name == "mopps"
    assert config.prompts.options == {"uniform_share": 0.1}
    assert config.normaliser is Normaliser.NONE


def test_every_placement_policy_is_run_with_every_prompt_policy() -> None:
    two = ("--policy", "adaptive", "--policy", "round_robin")
    found = arms(*two, "--prompt-policy", "uniform", "--prompt-policy", "dynamic_sampling")
    assert [arm.name for arm in found] == [
        "adaptive+uniform",
        "adaptive+dynamic_sampling",
        "round_robin+uniform",
        "round_robin+dynamic_sampling",
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--prompt-policy", "unifrm"], "did you mean 'uniform'"),
        (["--prompt-policy", "mopps,targt=1"], "targt"),
        (["--prompt-policy", "mopps", "--prompt-policy", "mopps"], "names one policy twice"),
        (["--unsolvable", "1.5"], "--unsolvable is 1.5; valid: 0 to below 1"),
        (["--tell", "colour=red"], "colour"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    asked: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--out", str(tmp_path / "out"), *asked]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Sizes of the groups of each update, which changes nothing; rewards are tossed."""
    rng, sizes = np.random.default_rng(0), list[list[int]]()

    def update(self: GrpoTrainer, groups: Any) -> dict[str, float]:
        sizes.append([len(group) for group in groups])
        self.weight_version += 1
        return {"mean_reward": 0.5, "degenerate_share": 0.0}

    monkeypatch.setattr(GrpoTrainer, "update", update)
    monkeypatch.setattr(loop, "HELD_OUT_PROBLEMS", 4)
    monkeypatch.setattr(loop, "reward", lambda *_: float(rng.random() < 0.4))
    return sizes


def run(arm: Arm, folder: Path) -> tuple[RunReport, FakeFleet, list[str]]:
    export_hf(SignsModel(TINY, seed=0), folder / "model")
    told: list[str] = []

    async def reinforced() -> tuple[RunReport, FakeFleet]:
        fleet = FakeFleet()
        work = asyncio.create_task(fleet.run(tokens=4))
        tell = lambda step: told.append(demo._step_text(step))  # noqa: E731
        report = await loop.reinforce(
            fleet, arm, folder / "model", 1, WORK, folder / "trace.jsonl", tell
        )
        work.cancel()
        return report, fleet

    report, fleet = asyncio.run(reinforced())
    return report, fleet, told


def asked_of(fleet: FakeFleet) -> list[Sequence[int]]:
    """Prompts of the trajectories, in the order in which they began."""
    return [tuple(request.token_ids) for request in fleet.started]


def test_uniform_gets_the_prompts_it_always_got(tmp_path: Path, updates: list[list[int]]) -> None:
    (arm,) = arms("--prompt-policy", "uniform")
    _, fleet, _ = run(arm, tmp_path)
    pool = make_pool(WORK.pool_size, WORK.unsolvable_share, WORK.seed)
    hands = deal_prompts(pool, WORK.steps, WORK.prompts_per_step, WORK.seed)
    expected = [tuple(prompt_tokens(pool[i])) for hand in hands for i in hand]
    assert asked_of(fleet) == [prompt for prompt in expected for _ in range(WORK.group_size)]
    assert updates == [[4] * 4] * 3


def test_a_prompt_policy_fills_its_batches_and_all_it_wrote_is_counted(
    tmp_path: Path, updates: list[list[int]]
) -> None:
    (arm,) = arms("--prompt-policy", "dynamic_sampling")
    report, fleet, told = run(arm, tmp_path)
    assert updates == [[4] * 4] * 3
    began = len(fleet.started)
    assert began > 3 * 4 * 4  # some groups were filtered
    assert sum(step.tokens for step in report.steps) > sum(
        len(t.token_ids) for t in report.trajectories
    )
    assert (report.lost, report.doubled, len(told)) == (0, 0, 3)

    measured = [r for r in read(tmp_path / "trace.jsonl") if isinstance(r, QualityMeasured)]
    assert [each.evaluated for each in measured] == [4] * 5  # first, after each step, last
    trace = {arm.name: tmp_path / "trace.jsonl"}
    (figures,) = results([report], trace, {"workload": "toy"}, curves=True)["policies"].values()
    assert figures["tokens_to_0.70"] is None
    assert figures["held_out_last"] == measured[-1].quality
    assert figures["tokens"] == sum(step.tokens for step in report.steps)
    assert figures["filtered_tokens"] > 0
