"""Replay: the live controller in virtual time loses nothing, doubles nothing and beats no bound."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.controller import cli
from steersman.controller.config import Config, load_config
from steersman.controller.plugins import names
from steersman.controller.replay.bounds import bounds
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.run import Options, Result, replay
from steersman.controller.replay.summary import summarize
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import Asked, Workload
from steersman.controller.replay.world import World
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import TrainerSignal
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.decision import Action, Decision

PROFILE = HardwareProfile(
    name="toy",
    gpu="none",
    model="none",
    tensor_parallel=1,
    fixed_s=0.01,
    sequence_s=0.0005,
    token_s=1e-8,
    prefill_token_s=2e-5,
    kv_capacity_tokens=60_000,
    max_num_seqs=8,
)
FREE = HardwareProfile(
    name="free", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.001,
    token_s=0.0, prefill_token_s=0.0, kv_capacity_tokens=0, max_num_seqs=64,
)  # fmt: skip


def asked(step: int, rng: np.random.Generator, groups: int, size: int, cap: int = 2000) -> Asked:
    n = groups * size
    length = np.minimum(np.exp(rng.normal(5.5, 0.9, n)).astype(np.int64) + 1, cap)
    return Asked(
        step=step,
        prompt_key=rng.integers(0, 1 << 40, groups),
        group_row=np.repeat(np.arange(groups), size),
        prompt_tokens=rng.integers(10, 300, groups).repeat(size),
        length=length,
        max_new_tokens=np.full(n, cap),
        censored=np.zeros(n, dtype=np.bool_),
        reward=(rng.random(n) < 0.5).astype(np.float64),
        images=np.zeros(n, dtype=np.int64),
        turns=Turns.single(length),
    )


def workload(seed: int = 0, steps: int = 3, groups: int = 6, size: int = 4) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload([asked(number, rng, groups, size) for number in range(steps)])


def config(policy: str = "tail_planner", *overrides: str) -> Config:
    return load_config(None, [f"placement.name={policy}", *overrides], environ={})


def tokens_written(run: Result) -> dict[int, int]:
    a = run.attempts
    written: Counter[int] = Counter()
    for row, first, last in zip(
        a.trajectory.tolist(), a.first_token.tolist(), a.last_token.tolist(), strict=True
    ):
        written[row] += last - first
    return dict(written)


@pytest.mark.parametrize("policy", names("policies.placement"))
def test_every_trajectory_ends_once_with_all_its_tokens(policy: str) -> None:
    given_ = workload()
    run = replay(given_, FleetPlan(PROFILE, 3), config(policy))
    lengths = np.concatenate([step.length for step in given_.steps])
    endings = run.attempts.ending
    ended = run.attempts.trajectory[endings <= ENDINGS.index("truncated")]
    assert sorted(ended.tolist()) == list(range(len(lengths)))
    assert tokens_written(run) == dict(enumerate(lengths.tolist()))
    assert sum(step.finished for step in run.steps) == len(lengths)
    assert sum(step.tokens for step in run.steps) == lengths.sum()


@given(seed=st.integers(0, 10_000), replicas=st.integers(1, 4))
@settings(deadline=None, max_examples=15)
def test_no_policy_beats_a_bound(seed: int, replicas: int) -> None:
    given_, plan = workload(seed, steps=1), FleetPlan(PROFILE, replicas)
    run = replay(given_, plan, config("sticky_least_inflight"))
    (step,) = given_.steps
    assert run.steps[0].makespan_s >= bounds(step.length, step.prompt_tokens, plan).best_s * 0.999


def test_one_replica_with_room_for_all_takes_what_the_books_say() -> None:
    """T = M Lmax + c sum(L), when all run together, prefills are free and memory is no matter."""
    given_ = workload(steps=1)
    run = replay(given_, FleetPlan(FREE, 1), config("round_robin"), Options(latency_s=0.0))
    length = given_.steps[0].length
    assert run.steps[0].makespan_s == pytest.approx(0.01 * length.max() + 0.001 * length.sum())


def test_the_same_seed_gives_the_same_replay() -> None:
    first, again = (replay(workload(), FleetPlan(PROFILE, 2), config()) for _ in range(2))
    for name in ("trajectory", "replica", "start_s", "end_s", "last_token"):
        np.testing.assert_array_equal(getattr(first.attempts, name), getattr(again.attempts, name))


def test_a_stream_keeps_so_many_groups_open_and_delivers_all_in_batches() -> None:
    given_ = workload(steps=3, groups=7)
    options = Options(inflight_groups=5, batch_groups=4)
    run = replay(given_, FleetPlan(PROFILE, 2), config("tail_planner", "max_lag=9"), options)
    lengths = np.concatenate([step.length for step in given_.steps])
    assert tokens_written(run) == dict(enumerate(lengths.tolist()))
    assert sum(step.finished for step in run.steps) == len(lengths)
    assert 21 / 4 <= len(run.steps) <= 6
    a = run.attempts
    for moment in a.start_s + 1e-9:
        open_rows = a.trajectory[(a.start_s <= moment) & (a.end_s > moment)]
        assert len(set((open_rows // 4).tolist())) <= 5


def test_tools_keep_a_trajectory_away_and_its_turns_are_counted() -> None:
    """Three turns of 50 tokens with 2 s of waiting between them, alone on a replica."""
    step = workload(steps=1, groups=1, size=1).steps[0]
    turns = Turns(np.array([3]), np.full(3, 50.0), np.array([2.0, 2.0, 0.0]), np.zeros(3))
    given_ = Workload([replace(step, length=np.array([150]), turns=turns)])
    run = replay(given_, FleetPlan(FREE, 1), config("round_robin"), Options(latency_s=0.0))
    assert run.steps[0].makespan_s == pytest.approx(150 * 0.011 + 4.0)
    assert run.steps[0].tokens == 150


def test_an_image_takes_its_time_to_encode() -> None:
    step = workload(steps=1, groups=1, size=1).steps[0]
    given_ = Workload([replace(step, images=np.array([3]))])
    plan = FleetPlan(FREE, 1, image_encode_s=0.5)
    without = replay(Workload([step]), plan, config("round_robin")).steps[0].makespan_s
    assert replay(given_, plan, config("round_robin")).steps[0].makespan_s == pytest.approx(
        without + 1.5
    )


def test_a_length_drawn_anew_changes_the_last_turn() -> None:
    turns = Turns(np.array([2, 3]), np.array([10.0, 5, 4, 4, 4]), np.zeros(5), np.arange(5.0))
    longer = turns.reaching(np.array([40, 3]))
    assert longer.count.tolist() == [2, 1]
    assert longer.tokens.tolist() == [10.0, 30.0, 3.0]
    part = turns.of(np.array([1]))
    assert (part.count.tolist(), part.extra_tokens.tolist()) == ([3], [2.0, 3.0, 4.0])


def test_a_faster_fleet_is_faster() -> None:
    slow = replay(workload(), FleetPlan(PROFILE, 2), config())
    fast = replay(workload(), FleetPlan(PROFILE, 2, speeds=(2.0, 2.0)), config())
    for a, b in zip(slow.steps, fast.steps, strict=True):
        assert b.makespan_s < 0.75 * a.makespan_s


def world_with(groups: int = 2, size: int = 2) -> tuple[World, np.ndarray]:
    world = World(FleetPlan(PROFILE, 2))
    return world, world.admit(asked(0, np.random.default_rng(0), groups, size))


def decision(row: int, action: Action, replica: str = "") -> Decision:
    return Decision(
        trajectory_id=int(row), action=action, policy="test", reason="", replica=replica
    )


def test_a_migration_keeps_the_tokens_and_arrives_after_the_hand_over() -> None:
    world, rows = world_with()
    row = int(rows[np.argmax(world.ints["length"][rows])])
    world.apply([decision(row, Action.PLACE, "replica-0")])
    world.advance(0.5)
    world.observe(TrainerSignal())
    assert world.apply([decision(row, Action.MIGRATE, "replica-1")]) == 1
    kept = world.ints["generated"][row]
    assert kept > 0
    assert world.ints["phase"][row] == Phase.LEAVING
    world.advance(world.now_s + world.plan.handover_s)
    assert (world.ints["phase"][row], world.ints["replica"][row]) == (Phase.RUNNING, 1)
    world.advance(1000.0)
    assert world.ints["phase"][row] == Phase.ENDED
    assert world.intervals.attempts().first_token.tolist() == [0, kept]


def test_what_is_deferred_waits_for_the_next_step_with_its_tokens() -> None:
    world, rows = world_with()
    world.apply([decision(rows[0], Action.PLACE, "replica-0")])
    world.advance(0.2)
    world.apply([decision(rows[0], Action.DEFER)])
    kept = world.ints["generated"][rows[0]]
    assert world.ints["phase"][rows[0]] == Phase.PARKED
    world.advance(5.0)
    assert world.ints["generated"][rows[0]] == kept
    world.resume_parked()
    assert world.ints["phase"][rows[0]] == Phase.QUEUED


def test_a_lost_replica_sends_its_trajectories_back_to_wait() -> None:
    world, rows = world_with()
    world.apply([decision(row, Action.PLACE, "replica-0") for row in rows])
    world.advance(0.2)
    world.core.kill(0)
    world.advance(0.3)
    assert (world.ints["phase"][rows] == Phase.QUEUED).all()
    assert not world.observe(TrainerSignal()).replicas.alive[0]


def test_a_decision_that_does_not_fit_changes_nothing() -> None:
    world, rows = world_with()
    wrong = [decision(rows[0], Action.MIGRATE, "replica-1"), decision(rows[1], Action.RESTART)]
    assert world.apply([*wrong, decision(rows[2], Action.PLACE, "no-such-replica")]) == 0
    assert (world.ints["phase"][rows] == Phase.QUEUED).all()


def test_censored_lengths_are_drawn_anew_from_what_is_longer() -> None:
    step = workload(steps=1, groups=10, size=8).steps[0]
    cut = np.zeros(len(step), dtype=np.bool_)
    cut[:10] = True
    run = Workload([type(step)(**{**vars(step), "censored": cut})])
    drawn = [run.imputed(np.random.default_rng(seed)).steps[0].length for seed in range(2)]
    for length in drawn:
        assert (length[:10] >= step.length[:10]).all()
        assert (length[10:] == step.length[10:]).all()
    assert (drawn[0] != drawn[1]).any()


def test_a_policy_compared_with_itself_is_exactly_as_fast() -> None:
    given_, plan = workload(), FleetPlan(PROFILE, 2)
    run = replay(given_, plan, config("round_robin"))
    first, same = summarize([given_], [[run], [run]], plan)
    assert (same.ratio.value, same.ratio.low, same.ratio.high) == (1.0, 1.0, 1.0)
    assert 0 < first.efficiency.value <= 1
    assert first.mean_length_kept == first.mean_length_asked


def table(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"p{i % 6},{length}" for i, length in enumerate(rng.integers(50, 900, 48).tolist())]
    path = folder / "samples.csv"
    path.write_text("\n".join(["prompt_id,length", *rows]))
    return path


def test_the_command_compares_policies_on_one_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", "qwen3-8b-h100-tp1", "--replicas", "2", "--max-num-seqs", "4"]
    made_up = ["--group-size", "4", "--prompts-per-step", "3", "--passes", "1", "--json"]
    assert cli.main(["replay", str(table(tmp_path)), *arguments, *made_up]) == 0
    printed = json.loads(capsys.readouterr().out)
    default, ours = printed["policies"]
    assert (default["policy"], ours["policy"]) == ("sticky_least_inflight", "adaptive")
    assert default["tokens"] == ours["tokens"]
    assert default["ratio"]["value"] == 1.0
    assert {p["tier"] for p in printed["policies"]} == {"simulation"}
    assert any("made up" in sentence for sentence in printed["assumed"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.parquet", "--profile", "qwen3-8b-h100-tp1"], "no.parquet: no such file"),
        (["samples.csv", "--profile", "qwen3-8b-h1000"], "qwen3-8b-h100"),
        (["samples.csv", "--profile", "qwen3-8b-h100-tp1", "--replicas", "0"], "replicas is 0"),
        (["samples.csv", "--profile", "qwen3-8b-h100-tp1", "--policy", "x"], "placement policy"),
        (["samples.csv", "--profile", "qwen3-8b-h100-tp1", "--steps", "0"], "steps is 0"),
        (["notes.txt", "--profile", "qwen3-8b-h100-tp1"], "cannot be replayed; valid"),
    ],
)
def test_bad_input_to_replay_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert cli.main(["replay", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
