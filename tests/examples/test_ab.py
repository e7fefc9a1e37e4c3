"""The paired comparison, on a fleet without engines."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fake_fleet import EOS, FakeFleet, reference

from steersman.controller.cli import main
from steersman.controller.results import Prompt
from steersman.controller.trace import reader
from steersman.examples import paired
from steersman.mechanisms.fleet import AttemptRequest, EndReason, Sampling

CAP, GROUP_SIZE, SEED = 60, 3, 7
QUICK = "tick_s=0.005,guard.move_cooldown_s=0,guard.max_moves_per_tick=99"
DEFAULT, RESTLESS = (
    f"{name},{QUICK}" for name in ("sticky_least_inflight", "support.restless_policy:Restless")
)
PROMPTS = [
    [[Prompt(f"{b}{s}{i}", [3 + i, 4 + s, 5 + b]) for i in range(4)] for s in range(2)]
    for b in range(3)
]


@asynccontextmanager
async def bench() -> AsyncIterator[paired.Bench]:
    fleet = FakeFleet(2)
    engine = asyncio.create_task(fleet.run())
    sampling = Sampling(stop_token_ids=(EOS,), seed=SEED)
    try:
        yield paired.Bench(fleet, [], paired.Work(PROMPTS, GROUP_SIZE, CAP, sampling))
    finally:
        engine.cancel()


async def test_every_setting_does_the_same_work_to_the_token(tmp_path: Path) -> None:
    settings = [paired.Setting.parse(text, SEED) for text in (DEFAULT, RESTLESS)]
    said: list[str] = []
    async with bench() as made:
        lengths = await made.record(settings[0])
        played = await made.compare(settings, lengths, tmp_path, said.append)
    assert len(lengths) == len(set(lengths)) == 3 * 2 * 4 * GROUP_SIZE
    default, restless = paired.summarize(settings, played)
    counted = 2 * 2 * 4 * GROUP_SIZE
    assert default["answers"] == restless["answers"] == restless["same_length"] == counted
    assert default["tokens"] == restless["tokens"]
    assert default["lost"] == restless["lost"] == default["doubled"] == restless["doubled"] == 0
    # on a machine that is busy elsewhere, a decision may have come late and been forgiven
    assert {row["controller"].partition(":")[0] for row in (default, restless)} == {"enforcing"}
    assert restless["moved"] > 0
    assert restless["late"] > 0
    assert restless["drain_s"] > 0
    assert default["moved"] == default["late"] == default["drain_s"] == 0
    assert len(said) == 3
    for i in range(2):
        assert reader.check(reader.read(tmp_path / f"{i}.jsonl")) == []


def test_what_drafts_kept_is_told_by_source_and_of_all() -> None:
    counts = {("self", "drafts"): 4, ("self", "drafted"): 20, ("self", "accepted"): 3}
    counts |= {("sibling", "drafts"): 6, ("sibling", "drafted"): 30, ("sibling", "accepted"): 12}
    played = paired.Played(drafts=Counter(counts), step_s=[1.0], block_s=[1.0])
    setting = paired.Setting.parse(DEFAULT, SEED)
    (row,) = paired.summarize([setting], {setting.name: played})
    assert row["accepted_per_draft"] == {"self": 0.75, "sibling": 2.0, "all": 1.5}


async def test_engines_begin_each_step_of_a_setting_without_drafts() -> None:
    settings = [paired.Setting.parse(text, SEED) for text in (DEFAULT, RESTLESS)]
    async with bench() as made:
        for info in made.fleet.replicas:
            made.fleet.draft(info.name, 4)
        await made.compare(settings, None, None, lambda line: None)
        fleet = made.fleet
    assert isinstance(fleet, FakeFleet)
    assert fleet.draft_tokens == {"r0": 0, "r1": 0}


async def test_free_answers_all_come_back_once() -> None:
    settings = [paired.Setting.parse(text, SEED) for text in (DEFAULT, RESTLESS)]
    async with bench() as made:
        played = await made.compare(settings, None, None, lambda line: None)
    for row in paired.summarize(settings, played):
        assert row["answers"] == 2 * 2 * 4 * GROUP_SIZE
        assert row["lost"] == row["doubled"] == 0


async def test_the_seconds_of_a_block_are_its_steps_and_its_drain() -> None:
    played = paired.Played(step_s=[1.0, 2.0], drain_s=[0.5])
    played.end_block()
    played.step_s += [4.0]
    played.drain_s += [0.25]
    played.end_block()
    assert played.block_s == [3.5, 4.25]


async def test_a_scripted_trajectory_ends_by_itself_at_its_length_wherever_it_was_cut() -> None:
    inner, prompt, length = FakeFleet(1), [3, 4, 5], 9
    work = paired.Work([], 1, CAP, Sampling(stop_token_ids=(EOS,)))
    fleet = paired.ScriptedLengths(inner, work, {1: length})
    assert len(reference(prompt, CAP)) > length
    first = fleet.start("r0", AttemptRequest("run-0-0", prompt, CAP, Sampling(seed=1)))
    assert first.request.max_tokens == length
    rest = AttemptRequest("run-0-1", [*prompt, 6, 6, 6, 6], CAP - 4, Sampling(seed=99))
    second = fleet.start("r0", rest)
    assert second.request.max_tokens == length - 4
    inner.advance("r0", length)
    inner.confirm("r0")
    assert [first.end and first.end.reason, second.end and second.end.reason] == [
        EndReason.STOP,
        EndReason.STOP,
    ]
    free = fleet.start("r0", AttemptRequest("run-1-0", prompt, CAP, Sampling(seed=2)))
    assert (free.request.max_tokens, free.request.sampling.stop_token_ids) == (CAP, (EOS,))


def test_the_interval_is_students_over_the_pairs() -> None:
    ratio, low, high = paired.paired_ratio([0.8, 0.8, 0.8], [1.0, 1.0, 1.0])
    assert (ratio, low, high) == pytest.approx((0.8, 0.8, 0.8))
    ratio, low, high = paired.paired_ratio([0.5, 2.0], [1.0, 1.0])
    assert ratio == pytest.approx(1.0)
    assert high == pytest.approx(2**12.706, rel=1e-3)
    assert low == pytest.approx(2**-12.706, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "sticky_least_inflight"], "two or more different settings"),
        (["--policy", "round_robin", "--policy", "round_robin"], "two or more different settings"),
        (["--policy", "tail_planer", "--policy", "round_robin"], "tail_planner"),
        (["--policy", "tail_planner,backlogg=1", "--policy", "round_robin"], "backlog"),
        (["--blocks", "0"], "--blocks is 0"),
        (["--draft-tokens", "-1"], "--draft-tokens is -1"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "live", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
