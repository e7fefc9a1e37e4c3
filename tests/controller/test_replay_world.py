"""The world of a replay: nothing is lost or doubled, whatever is decided and whoever dies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.controller.replay._books import ANSWERS, REPLACED
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import ENDINGS
from steersman.controller.replay.redraw import FromWorkload, Slots
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import NEVER, NOT_TOLD, Asked, Workload
from steersman.controller.replay.world import World
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import TrainerSignal
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.decision import Action, Decision, DraftDecision

PROFILE = HardwareProfile(
    name="toy", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.0005,
    token_s=1e-8, prefill_token_s=2e-5, kv_capacity_tokens=20_000, max_num_seqs=8,
)  # fmt: skip
REPLICAS = 3
RESTARTED = ENDINGS.index("restarted")


def asked(step: int, lengths: list[int], size: int, cap: int = 2000, **columns: object) -> Asked:
    n = len(lengths)
    length = np.minimum(np.array(lengths), cap)
    return Asked(
        step=step,
        prompt_key=np.arange(n // size),
        group_row=np.arange(n) // size,
        prompt_tokens=np.full(n, 50),
        length=length,
        max_new_tokens=np.full(n, cap),
        censored=np.zeros(n, dtype=np.bool_),
        reward=np.arange(n) % 2.0,
        images=np.zeros(n, dtype=np.int64),
        turns=Turns.single(length),
        **columns,  # type: ignore[arg-type]
    )


def decision(row: int, action: Action, replica: int = 0) -> Decision:
    return Decision(
        trajectory_id=int(row),
        action=action,
        policy="test",
        reason="",
        replica=f"replica-{replica}",
    )


def draw_lengths(rng: np.random.Generator, n: int) -> list[int]:
    return (np.exp(rng.normal(5.0, 1.0, n)).astype(int) + 1).tolist()


def check_books(world: World, sizes: dict[int, int]) -> None:
    """Every slot has exactly one trajectory that is not replaced, and answers are counted once."""
    i, books = world.ints, world.books
    assert ((i["phase"] == Phase.ENDED) == (i["ending"] >= 0)).all()
    current = ~np.isin(i["ending"], REPLACED)
    slots = list(zip(i["group"][current].tolist(), i["index"][current].tolist(), strict=True))
    assert sorted(slots) == [(g, k) for g, size in sorted(sizes.items()) for k in range(size)]
    answers = np.bincount(i["group"][np.isin(i["ending"], ANSWERS)], minlength=books.groups)
    assert (answers == books.group_ints["ended"]).all()
    on_replica = np.isin(i["phase"], (Phase.RUNNING, Phase.LEAVING))
    assert ((world.core.replica_of(np.arange(len(books))) >= 0) == on_replica).all()


ACTIONS = (
    Action.PLACE, Action.MIGRATE, Action.ISOLATE, Action.DEFER, Action.RESTART, Action.STOP,
    Action.CONTINUE,
)  # fmt: skip


@given(seed=st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_or_doubled_whatever_is_decided_and_whoever_dies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, later = (asked(s, draw_lengths(rng, 12), 3) for s in range(2))
    world = World(FleetPlan(PROFILE, REPLICAS), FromWorkload(Workload([first, later]), seed))
    world.admit(first)
    sizes = dict.fromkeys(range(4), 3)
    alive = REPLICAS
    for turn in range(25):
        world.observe(TrainerSignal())
        rows = rng.permutation(len(world.books))[: rng.integers(0, 8)]
        world.apply(
            [
                decision(r, ACTIONS[rng.integers(len(ACTIONS))], int(rng.integers(REPLICAS)))
                for r in rows
            ]
        )
        check_books(world, sizes)
        if alive > 1 and rng.random() < 0.08:
            replica = int(rng.integers(REPLICAS))
            alive -= bool(world.alive[replica])
            world.kill(replica)
        if rng.random() < 0.1:
            groups = rng.integers(0, world.books.groups, 2)
            for group in groups.tolist():
                sizes[group] += 1
            world.extend(groups, later.of(rng.integers(0, 12, 2)))
        if rng.random() < 0.1:
            world.new_weights(world.weight_version + 1, max_lag=int(rng.integers(0, 3)))
        if rng.random() < 0.1:
            world.interrupt()
        if rng.random() < 0.2:
            world.resume_parked(max_lag=1)
        if turn == 10:
            world.admit(later)
            sizes |= dict.fromkeys(range(4, 8), 3)
        world.advance(world.now_s + rng.exponential(0.7))
        check_books(world, sizes)
    while world.open_groups:
        world.resume_parked()
        target = int(rng.choice(np.flatnonzero(world.alive)))
        queued = np.flatnonzero(world.ints["phase"] == Phase.QUEUED)
        world.apply([decision(r, Action.PLACE, target) for r in queued])
        world.advance(world.now_s + 5.0)
    check_books(world, sizes)
    assert world.books.group_ints["ended"].tolist() == [sizes[g] for g in range(8)]


def running(lengths: list[int], redraw: FromWorkload | None = None, **columns: object) -> World:
    """One group on one replica, half a second after its start."""
    world = World(FleetPlan(PROFILE, 2), redraw)
    rows = world.admit(asked(0, lengths, len(lengths), **columns))
    world.apply([decision(r, Action.PLACE) for r in rows])
    world.advance(0.5)
    return world


def test_a_restart_throws_the_tokens_away_and_a_fresh_sample_waits_in_the_slot() -> None:
    world = running([400, 300])
    assert world.apply([decision(1, Action.RESTART)]) == 1
    i = world.ints
    assert (i["phase"][1], i["ending"][1]) == (Phase.ENDED, RESTARTED)
    assert i["generated"][1] > 0
    assert (i["phase"][2], i["group"][2], i["index"][2]) == (Phase.QUEUED, 0, 1)
    assert (i["restarts"][2], i["generated"][2], i["length"][2]) == (1, 0, 300)
    assert world.books.group_ints["ended"].tolist() == [0]
    seen = world.observe(TrainerSignal())
    assert seen.trajectories.trajectory_id.tolist() == [0, 2]
    assert (seen.ended.trajectory_id.tolist(), seen.ended.censored.tolist()) == ([1], [True])
    assert len(seen.rewarded) == 0


def test_fresh_samples_are_the_same_for_every_policy_and_of_the_same_prompt() -> None:
    run = Workload([asked(0, [100, 200, 300, 7], 2), asked(1, [110, 220, 330, 8], 2)])
    slots = Slots(
        np.array([0, 1, 0]), np.array([0, 1, 0]), np.array([0, 1, 1]), np.array([1, 1, 2])
    )
    drawn = FromWorkload(run, seed=5)(slots)
    again = FromWorkload(run, seed=5)(Slots(*(c[::-1] for c in vars(slots).values())))
    assert drawn.length.tolist() == again.length[::-1].tolist()
    own = ({100, 200, 110, 220}, {300, 7, 330, 8})
    for seed in range(20):
        first, second, third = FromWorkload(run, seed)(slots).length.tolist()
        assert {first, third} <= own[0]
        assert second in own[1]
    assert len({tuple(FromWorkload(run, seed)(slots).length.tolist()) for seed in range(20)}) > 5


def test_a_prompt_with_one_sample_borrows_one_of_the_whole_run() -> None:
    run = Workload([asked(0, [100, 200, 300], 1)])
    slots = Slots(*(np.array([0]) for _ in range(4)))
    drawn = {int(FromWorkload(run, seed)(slots).length[0]) for seed in range(40)}
    assert drawn == {100, 200, 300}


def test_a_fresh_sample_respects_the_cap_of_its_slot() -> None:
    run = Workload([asked(0, [900, 950], 1)])
    world = running([400, 300], FromWorkload(run), cap=500)
    world.apply([decision(0, Action.RESTART)])
    assert world.ints["length"][2] == world.ints["cap"][2] == 500


def test_a_complete_group_that_is_extended_is_open_again() -> None:
    world = running([40, 30])
    world.advance(20.0)
    assert (world.complete_groups, len(world.observe(TrainerSignal()).groups)) == (1, 0)
    rows = world.extend(np.zeros(2, dtype=np.int64), asked(1, [50, 60], 2))
    seen = world.observe(TrainerSignal())
    assert (seen.groups.size.tolist(), seen.groups.ended.tolist()) == ([4], [2])
    assert seen.trajectories.phase.tolist() == [Phase.ENDED] * 2 + [Phase.QUEUED] * 2
    assert world.ints["index"][rows].tolist() == [2, 3]


def test_rewards_of_the_answered_are_in_the_group() -> None:
    world = running([10, 20, 400])  # rewards 0, 1, 0
    groups = world.observe(TrainerSignal()).groups
    assert (groups.rewarded.tolist(), groups.reward_sum.tolist()) == ([2], [1.0])
    assert (groups.reward_low.tolist(), groups.reward_high.tolist()) == ([0.0], [1.0])


def test_what_a_cut_answer_would_have_earned_is_not_known() -> None:
    world = running([400, 400])
    world.apply([decision(1, Action.STOP)])
    seen = world.observe(TrainerSignal())
    assert (seen.ended.trajectory_id.tolist(), len(seen.rewarded)) == ([1], 0)
    assert seen.groups.ended.tolist() == [1]


def test_beyond_the_lag_bound_new_weights_replace_what_runs_and_leave_what_is_parked() -> None:
    world = running([400, 300, 350])
    world.apply([decision(2, Action.DEFER)])
    world.new_weights(1, max_lag=1)
    assert not (world.ints["ending"] >= 0).any()
    world.new_weights(2, max_lag=1)
    assert world.ints["ending"][:3].tolist() == [ENDINGS.index("expired")] * 2 + [-1]
    assert world.ints["phase"][2:].tolist() == [Phase.PARKED, Phase.QUEUED, Phase.QUEUED]
    world.resume_parked(max_lag=1)
    assert world.ints["ending"][2] == ENDINGS.index("expired")
    assert world.ints["index"][3:].tolist() == [0, 1, 2]


def test_what_has_no_token_yet_is_as_old_as_the_weights_it_is_placed_under() -> None:
    """As in a live run: a request that only waited in an engine's queue is not stale."""
    world = running([2000] * 9)  # one more than the batch holds
    assert world.observe(TrainerSignal()).trajectories.generated_tokens[8] == 0
    world.interrupt()
    world.new_weights(3)
    world.apply([decision(row, Action.PLACE) for row in range(9)])
    assert world.ints["version"].tolist() == [0] * 8 + [3]


def test_regret_is_shown_of_who_wrote_and_loops_by_their_share_of_the_last_tokens() -> None:
    world = running(
        [2000] * 4,
        regret=np.array([0.5, 0.25, np.nan, 1.0]),
        loops_from=np.array([0, NEVER, NOT_TOLD, 1990]),
    )
    first = world.observe(TrainerSignal()).trajectories
    np.testing.assert_array_equal(first.regret, [0.5, 0.25, np.nan, 1.0])
    share = first.generated_tokens[0] / 256
    assert 0 < share < 1
    np.testing.assert_array_equal(first.repeated_share, [share, 0.0, np.nan, 0.0])
    again = world.observe(TrainerSignal()).trajectories
    assert np.isnan(again.regret).all()
    world.advance(1000.0)
    assert world.books.group_ints["ended"].tolist() == [4]


def test_a_workload_that_tells_nothing_shows_no_regret_and_no_loops() -> None:
    t = running([400]).observe(TrainerSignal()).trajectories
    assert np.isnan([t.regret[0], t.repeated_share[0]]).all()


ACCEPTANCE = (0.8, 0.5)


def drafting(tokens: int, draft_token_s: float = 0.0) -> World:
    plan = FleetPlan(PROFILE, 2, acceptance=ACCEPTANCE, draft_token_s=draft_token_s)
    world = World(replace(plan, profile=replace(PROFILE, token_s=0.0, prefill_token_s=0.0)))
    rows = world.admit(asked(0, [1000] * 4, 4))
    told = [DraftDecision("replica-0", tokens, "test", ""), DraftDecision("no", 1, "test", "")]
    assert world.draft(told) == (tokens <= len(ACCEPTANCE))
    world.apply([decision(r, Action.PLACE) for r in rows])
    return world


def test_drafting_writes_more_and_costs_more_as_the_closed_form_says() -> None:
    """1000 tokens at E(2) = 2.2 per iteration of M + c b (K + 1) + K d seconds."""
    world = drafting(2, draft_token_s=0.001)
    world.advance(100.0)
    expected = 1000 / 2.2 * (0.01 + 0.0005 * 4 * 3 + 2 * 0.001)
    assert world.intervals.latest_s == pytest.approx(expected)


def test_drafted_and_accepted_tokens_are_counted_by_position_and_never_shrink() -> None:
    world = drafting(2)
    world.advance(1.0)
    first = world.observe(TrainerSignal()).replicas
    rounds = first.sequences_run[0]
    assert first.drafted_at[0].tolist() == [round(rounds)] * 2
    assert first.accepted_at[0].tolist() == [round(0.8 * rounds), round(0.4 * rounds)]
    assert (first.draft_tokens.tolist(), first.max_draft_tokens.tolist()) == ([2, 0], [2, 2])
    world.draft([DraftDecision("replica-0", 1, "test", "")])
    world.advance(1.5)
    second = world.observe(TrainerSignal()).replicas
    assert second.drafted_at[0, 1] == first.drafted_at[0, 1]
    assert second.drafted_at[0, 0] > first.drafted_at[0, 0]
    world.drafting.change_acceptance(np.array([0.0, 0.0]))
    world.advance(2.0)
    third = world.observe(TrainerSignal()).replicas
    assert third.drafted_at[0, 0] > second.drafted_at[0, 0]
    assert third.accepted_at[0].tolist() == second.accepted_at[0].tolist()


def test_an_engine_that_cannot_speculate_drafts_nothing() -> None:
    world = World(FleetPlan(PROFILE, 2))
    assert world.draft([DraftDecision("replica-0", 1, "test", "")]) == 0
    replicas = world.observe(TrainerSignal()).replicas
    assert replicas.drafted_at.shape == (2, 0)
    assert replicas.max_draft_tokens.tolist() == [0, 0]
    assert drafting(3).drafting.tokens.tolist() == [0, 0]
