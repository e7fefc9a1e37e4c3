"""The study of prompt policies counts what it spends, and goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from steersman.controller import cli
from steersman.controller.evaluate.quality_log import QualityPoint
from steersman.controller.evaluate.reading import read
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.examples import prompt_study
from steersman.examples.signs import prompt_loop, prompt_plan
from steersman.examples.signs.grpo import GrpoTrainer
from steersman.examples.signs.model import Shape, SignsModel, export_hf
from steersman.examples.signs.prompt_loop import LoopSettings, PromptLoop
from steersman.examples.signs.prompt_plan import Plan
from steersman.examples.signs.sampling import Generation, sample
from steersman.examples.signs.task import Problem
from steersman.policies.contract import PromptPolicy, Stateless
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts.dynamic_sampling import DynamicSampling

TINY = Shape(hidden=16, intermediate=16, layers=1, heads=1, max_positions=512)
SHORT = LoopSettings(groups=4, group_size=4, max_new_tokens=12, pool_size=20)
BUDGET = 400
"""Three steps: an untrained model hardly ever stops."""


def toss(problem: Problem, tokens: Sequence[int], finished: bool) -> float:
    """A reward that an untrained model earns now and then."""
    return float(tokens[0] % 2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prompt_study,
        "settings_of",
        lambda args, share, seed=0: replace(SHORT, seed=seed, unsolvable_share=share),
    )


@pytest.fixture
def earning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_loop, "reward", toss)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    export_hf(SignsModel(TINY, seed=0), folder)
    return folder


def study(out: Path, model: Path, *more: str) -> int:
    asked = ["--out", str(out), "--model", str(model), "--tokens", str(BUDGET), "--every", "150"]
    fixed = ["--problems", "8", "--unsolvable", "0.5", "--json"]
    return cli.main(["bench", "prompts", *asked, *fixed, *more])


def lines(out: Path) -> list[dict[str, Any]]:
    """The evaluations, without what a clock measured."""
    timed = {"replica_s", "wall_s"}
    found = []
    for line in (out / "unsolvable-0.5.jsonl").read_text().splitlines()[1:]:
        point = {name: value for name, value in json.loads(line).items() if name not in timed}
        point["extras"] = {k: v for k, v in point["extras"].items() if not k.endswith("_s")}
        found.append(point)
    return found


TWO = ("--arm", "uniform", "--arm", "mopps,uniform_share=0.1")


def test_every_arm_seed_and_control_is_in_the_log_and_in_the_table(
    tmp_path: Path, model: Path, earning: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(tmp_path, model, *TWO, "--seeds", "2") == 0
    told = read([tmp_path / "unsolvable-0.5.jsonl"])
    assert told.arms == ["uniform", "mopps,uniform_share=0.1", "equal_work"]
    for arm in told.arms:
        for run in told.arm(arm).values():
            assert run.step[0] == 0
            assert run.tokens[-1] >= BUDGET
    (rows,) = json.loads(capsys.readouterr().out)["pools"].values()
    assert [row["arm"] for row in rows] == told.arms
    assert [row["seeds"] for row in rows] == [2, 2, 2]


def test_a_study_goes_on_where_it_was_stopped(
    tmp_path: Path, model: Path, earning: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert study(tmp_path / "whole", model, *TWO, "--seeds", "2") == 0
    assert study(tmp_path / "parts", model, *TWO, "--seeds", "1", "--no-control") == 0
    log = tmp_path / "parts" / "unsolvable-0.5.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # killed while writing
    played, play = list[tuple[str, int]](), prompt_plan.play

    def watched(plan: Plan) -> list[QualityPoint]:
        played.append((plan.arm, plan.settings.seed))
        return play(plan)

    monkeypatch.setattr(prompt_plan, "play", watched)
    assert study(tmp_path / "parts", model, *TWO, "--seeds", "2") == 0
    assert ("uniform", 0) not in played
    assert ("mopps,uniform_share=0.1", 0) in played
    key = json.dumps
    assert sorted(map(key, lines(tmp_path / "parts"))) == sorted(
        map(key, lines(tmp_path / "whole"))
    )


def test_another_process_measures_what_this_one_does(tmp_path: Path, model: Path) -> None:
    one = ("--arm", "uniform", "--seeds", "1", "--no-control")
    assert study(tmp_path / "1", model, *one) == 0
    assert study(tmp_path / "2", model, *one, "--jobs", "2") == 0
    key = json.dumps
    assert sorted(map(key, lines(tmp_path / "1"))) == sorted(map(key, lines(tmp_path / "2")))


def test_the_control_asks_for_as_many_samples_as_its_run(
    tmp_path: Path, model: Path, earning: None
) -> None:
    assert study(tmp_path, model, "--arm", "dynamic_sampling,oversampling=2", "--seeds", "1") == 0
    arms = read([tmp_path / "unsolvable-0.5.jsonl"]).runs
    own, control = arms["dynamic_sampling,oversampling=2"][0], arms["equal_work"][0]
    ends = np.isin(control.step, own.step)
    assert ends.sum() >= 2
    samples = np.interp(control.step[ends], own.step, own.extras["samples"])
    assert np.abs(control.extras["samples"][ends] - samples).max() <= 4
    assert (control.extras["accepted"] == control.extras["groups"]).all()


def spent(
    loop: PromptLoop, monkeypatch: pytest.MonkeyPatch, steps: int = 3
) -> tuple[int, int, float]:
    """Tokens and samples that were generated in truth, and the samples that were trained on."""
    wrote, update = list[Generation](), GrpoTrainer.update
    trained = []

    def sampled(*args: Any, **more: Any) -> list[Generation]:
        answers = sample(*args, **more)
        wrote.extend(answers)
        return answers

    def updated(self: GrpoTrainer, groups: Any) -> dict[str, float]:
        trained.append(sum(len(group) for group in groups))
        return update(self, groups)

    monkeypatch.setattr(prompt_loop, "sample", sampled)
    monkeypatch.setattr(GrpoTrainer, "update", updated)
    for _ in range(steps):
        loop.step()
    return sum(len(answer.tokens) for answer in wrote), len(wrote), sum(trained)


class ForgetsFiltered(PromptLoop):
    """Mutant: pays for what is accepted only."""

    def _round(self, lacking: int, step: int, refill: int) -> Any:
        before = self.costs.tokens
        accepted, weights = super()._round(lacking, step, refill)
        kept = sum(len(s.response) for group in accepted or () for s in group)
        self.costs.tokens = before + kept
        return accepted, weights


@pytest.mark.parametrize(("kind", "honest"), [(PromptLoop, True), (ForgetsFiltered, False)])
def test_every_token_that_was_generated_is_paid_for(
    kind: type[PromptLoop], honest: bool, monkeypatch: pytest.MonkeyPatch, earning: None
) -> None:
    loop = kind(SignsModel(TINY, seed=0), DynamicSampling(), SHORT)
    tokens, samples, trained = spent(loop, monkeypatch)
    assert samples > trained  # something was filtered, or there is nothing to forget
    assert (loop.costs.tokens == tokens) is honest
    assert loop.costs.samples == samples


@dataclass
class ProbesOne(Stateless):
    """One sample of each, then two more of every other, twice."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        row = np.arange(request.groups_wanted)
        cap = np.where(row % 2, 3, request.max_new_tokens)
        return PromptChoice(row, np.ones_like(row), cap, np.where(row % 2, 1.0, 0.1), "probes")

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> np.ndarray:
        return np.where((groups.group_id % 2 == 0) & (groups.size < 5), 2, 0)

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        accepted = np.ones(len(groups), dtype=np.bool_)
        return Selection(accepted, np.repeat(groups.size > 1, groups.size))

    def learn(self, groups: FinishedGroups) -> None:
        self.sizes = groups.size.tolist()
        self.lengths = groups.tokens


def updated_with(
    policy: PromptPolicy, settings: LoopSettings, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The groups of the first update."""
    seen: list[Any] = []
    update = GrpoTrainer.update

    def look(self: GrpoTrainer, groups: Any) -> dict[str, float]:
        seen.append(groups)
        return update(self, groups)

    monkeypatch.setattr(GrpoTrainer, "update", look)
    PromptLoop(SignsModel(TINY, seed=0), policy, settings).step()
    return seen[0]


def test_groups_grow_as_the_policy_says_and_what_it_leaves_out_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch, earning: None
) -> None:
    policy = ProbesOne()
    groups = updated_with(policy, SHORT, monkeypatch)
    assert sorted(policy.sizes) == [1, 1, 5, 5]
    assert [len(group) for group in groups] == [5, 5]
    assert policy.lengths.max() == SHORT.max_new_tokens


@pytest.mark.parametrize(("most", "spread"), [(1.0, 1.0), (4.0, 10.0), (1.5, 8.25)])
def test_weights_are_those_of_the_choice_normalised_and_clipped(
    most: float, spread: float, monkeypatch: pytest.MonkeyPatch, earning: None
) -> None:
    @dataclass
    class Keeps(ProbesOne):
        def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
            return Selection.everything(groups)

    settings = LoopSettings(
        groups=4, group_size=4, max_new_tokens=12, pool_size=20, max_weight=most
    )
    groups = updated_with(Keeps(), settings, monkeypatch)
    weights = np.array([group[0].weight for group in groups])
    assert weights.mean() == pytest.approx(1.0)
    assert weights.max() / weights.min() == pytest.approx(spread)


def test_a_step_that_accepts_nothing_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_loop, "reward", lambda *_: 0.0)
    loop = PromptLoop(SignsModel(TINY, seed=0), DynamicSampling(max_rounds=2), SHORT)
    assert loop.step() == {}
    assert loop.trainer.weight_version == 1
    assert loop.costs.samples == 2 * SHORT.groups * SHORT.group_size


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--arm", "unifrm"], "did you mean 'uniform'"),
        (["--arm", "uniform", "--arm", "uniform"], "names one prompt policy twice"),
        (["--arm", "mopps,targt=1"], "targt"),
        (["--arm", "uniform,max_lag=1"], "max_lag"),
        (["--seeds", "0"], "--seeds is 0; valid: 1 or more"),
        (["--first-seed", "-1"], "--first-seed is -1"),
        (["--unsolvable", "1"], "--unsolvable is 1.0; valid: 0 to below 1"),
        (["--unsolvable", "0.50"], "--unsolvable names one pool twice"),
        (["--jobs", "0"], "--jobs is 0"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    asked: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    assert study(tmp_path / "out", model, *asked) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_log_of_another_study_is_not_continued(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--arm", "uniform", "--seeds", "1", "--no-control")
    assert study(tmp_path, model, *one) == 0
    assert study(tmp_path, model, *one, "--problems", "9") == 2
    assert "its header is another" in capsys.readouterr().err
