"""What viewers are told of a gateway is what its books, its controller and its engines say."""

import json
import statistics
import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gateway_scene import (
    FIXED_S,
    PER_SEQUENCE_S,
    Scene,
    busy_scene,
    length_of,
)
from support.observations import (
    forecast_of,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.gateway.snapshot import (
    MOST_TRAJECTORIES,
    NAME_LENGTH,
    Look,
    look,
    snapshot,
)
from steersman.controller.gateway.state import GatewayState, decode_state
from steersman.controller.gateway.why import RECENT_S, seconds
from steersman.controller.watching import rewards as rewards_module
from steersman.controller.watching.ends import Ends, predicted_ends
from steersman.controller.watching.rewards import RewardBook
from steersman.estimators.lifecycle import Phase
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place

RUNNING, QUEUED, LEAVING = Phase.RUNNING, Phase.QUEUED, Phase.LEAVING


@pytest.fixture(scope="module")
def busy() -> Any:
    """Late in a step: some samples left, some decisions taken."""
    scene = busy_scene(30.0)
    yield scene
    scene.close()


@pytest.fixture
def scene() -> Any:
    """Nothing asked yet."""
    scene = Scene()
    yield scene
    scene.close()


def crossing(told: GatewayState) -> GatewayState:
    """What a viewer gets."""
    data = msgspec.json.encode(told)
    json.loads(data, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    return decode_state(data)


# Predicted ends


def by_hand(seen: Any, forecast: Any, row: int, at: int) -> float:
    """The end of `row` at quantile column `at`, token by token as the docstring has it."""
    left, destination = forecast.length.remaining_tokens, seen.destination_row
    replica = destination[row]
    own = max(left[row, at], 1.0) if at == 1 else max(left[row, at], left[row, 1], 1.0)
    others = [max(left[i, 1], 1.0) for i in np.flatnonzero(destination == replica) if i != row]
    work = own + sum(min(other, own) for other in others)
    t = forecast.throughput
    return float(t.fixed_s[replica] * own + t.per_sequence_s[replica] * work)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5))
def test_ends_are_those_of_the_affine_model(seed: int, count: int, replicas: int) -> None:
    rng = np.random.default_rng(seed)
    seen = random_observation(rng, count, replicas)
    forecast = forecast_of(seen, rng.integers(1, 3000, count), spread=0.4)
    ends = predicted_ends(seen, forecast, seen)
    for row in range(count):
        if seen.destination_row[row] < 0:
            assert np.isnan(ends.ends_in_s[row])
        else:
            assert ends.ends_in_s[row] == pytest.approx(by_hand(seen, forecast, row, 1))
            assert ends.ends_in_upper_s[row] == pytest.approx(by_hand(seen, forecast, row, 2))
            assert ends.alone_s[row] <= ends.ends_in_s[row] * (1 + 1e-9)
            assert ends.ends_in_s[row] <= ends.ends_in_upper_s[row] * (1 + 1e-9)


def test_what_was_written_since_the_forecast_is_taken_off() -> None:
    then = observation(
        trajectory_table([RUNNING] * 2, replica_row=[0, 0], generated_tokens=[10, 10]),
        replica_table(1),
    )
    more = replace(then.trajectories, generated_tokens=np.array([40, 500]))
    now = replace(then, trajectories=more)
    ends = predicted_ends(now, forecast_of(then, [100, 100], spread=0.5), then)
    assert ends.remaining_tokens.tolist() == [70, 1]  # at least one token is missing
    assert ends.remaining_upper.tolist() == [120, 1]


def test_a_trajectory_that_the_forecast_does_not_know_has_no_end_yet() -> None:
    then = observation(trajectory_table([RUNNING], replica_row=[0]), replica_table(1))
    now = observation(trajectory_table([RUNNING] * 2, replica_row=[0, 0]), replica_table(1))
    ends = predicted_ends(now, forecast_of(then, [100]), then)
    assert np.isfinite(ends.ends_in_s).tolist() == [True, False]


def test_the_last_to_end_comes_first_and_what_waits_comes_last() -> None:
    seen = observation(
        trajectory_table(
            [QUEUED, RUNNING, Phase.PARKED, RUNNING, QUEUED, Phase.ENDED, RUNNING],
            replica_row=[-1, 0, -1, 0, -1, -1, 0],
            queued_s=[8.0, 0, 0, 0, 5.0, 0, 0],
        ),
        replica_table(1),
    )
    end = np.array([np.nan, 3.0, np.nan, 9.0, np.nan, np.nan, np.nan])
    ends = replace(Ends.unknown(7), ends_in_s=end)
    assert Look(9.0, seen, ends, None).shown.tolist() == [3, 1, 6, 4, 0]


# The state as a whole


def test_the_state_crosses_to_a_viewer_unchanged(busy: Scene) -> None:
    told = snapshot(busy)
    assert crossing(told) == told


def test_trajectories_come_by_predicted_end(busy: Scene) -> None:
    told = snapshot(busy)
    ends = [t.ends_in_s for t in told.trajectories]
    assert len(ends) == told.phases["running"] > 5
    assert ends == sorted(ends, reverse=True)
    assert told.figures.ends_in_s == ends[0]
    assert told.groups[0].ends_in_s == ends[0]
    assert max(r.ends_in_s for r in told.replicas if r.ends_in_s) == ends[0]


def test_each_trajectory_is_named_as_its_client_knows_it(busy: Scene) -> None:
    told = snapshot(busy)
    known = {
        e.spec.trajectory_id: q.public_id for q in busy.questions.values() for e in q.executions
    }
    assert told.requests_open == len(busy.questions)
    for t in told.trajectories:
        assert t.request_id == known[t.trajectory_id]
        assert t.prompt_id == busy.ledger.groups[t.group_id].prompt.prompt_id
        assert t.replica == busy.ledger.executions[t.trajectory_id].replica


def test_replicas_are_told_with_address_load_and_speed(busy: Scene) -> None:
    told = snapshot(busy)
    for replica in told.replicas:
        assert replica.url == busy.fleet.engine(replica.name).url
        assert replica.inflight == replica.running > 0
        assert replica.iteration_s == pytest.approx(
            FIXED_S + PER_SEQUENCE_S * replica.running, rel=0.05
        )
        now_per_s = replica.running / replica.iteration_s
        assert now_per_s <= replica.tokens_per_s <= 2 * now_per_s  # the load has been falling
        assert replica.speed_known
    assert told.figures.tokens_per_s == pytest.approx(sum(r.tokens_per_s for r in told.replicas))


def test_sums_are_those_of_the_books(busy: Scene) -> None:
    books, told = busy.ledger.counts(), snapshot(busy).sums
    assert told.answered == books.answered > 100
    assert told.moves == books.moves > 0
    assert told.requests == 28
    ended = [length_of(i) for i in range(books.queued) if i not in busy.ledger.executions]
    assert told.generated_tokens >= sum(ended)


def test_at_most_so_many_trajectories_are_told_one_by_one(scene: Scene) -> None:
    scene.step(prompts=60, size=8)
    scene.play(0.5)
    told = snapshot(scene)
    assert len(told.trajectories) == MOST_TRAJECTORIES
    assert told.trajectories_left_out == 480 - MOST_TRAJECTORIES
    assert sum(told.phases.values()) == 480
    assert len(told.groups) + told.groups_left_out == 60


def test_a_gateway_without_requests_has_a_state(scene: Scene) -> None:
    told = crossing(snapshot(scene))
    assert (told.step, told.step_s, told.trajectories, told.groups) == (-1, 0.0, [], [])
    assert told.figures.bubble == 0.0
    assert told.figures.tail_s is None
    assert told.why.straggler is None


def test_a_gateway_without_engines_has_a_state() -> None:
    scene = Scene(replicas=0)
    told = crossing(snapshot(scene))
    scene.close()
    assert (told.replicas, told.figures.bubble, told.figures.kv_most) == ([], 0.0, 0.0)


def test_long_names_are_cut(scene: Scene) -> None:
    scene.ask("x" * 5000, 1)
    scene.play(0.25)
    assert snapshot(scene).trajectories[0].prompt_id == "x" * NAME_LENGTH


def test_without_a_controller_everything_is_shown_and_nothing_predicted() -> None:
    scene = Scene("mode=off")
    scene.step(prompts=4, size=4)
    scene.play(1.0)
    told = crossing(snapshot(scene))
    scene.close()
    assert told.decider.state == "off"
    assert len(told.trajectories) == 16
    assert all(t.generated_tokens > 0 for t in told.trajectories)
    assert {t.ends_in_s for t in told.trajectories} == {None}
    assert told.figures.tail_s is None


def test_an_old_decision_does_not_stand_for_the_present(scene: Scene) -> None:
    scene.step(prompts=2, size=4)
    scene.play(1.0)
    scene.loop.fail_open("a decision took more than 0.75 s")
    scene.play(4.0)
    told = snapshot(scene)
    assert told.decider.state == "fail_open"
    assert told.decider.why == "a decision took more than 0.75 s"
    assert told.decider.since_s == 1.0
    written = {i: e.generated_tokens for i, e in scene.ledger.executions.items()}
    assert {t.trajectory_id: t.generated_tokens for t in told.trajectories} == written
    assert all(t.ends_in_s for t in told.trajectories)


def test_a_pause_is_told(scene: Scene) -> None:
    scene.step(prompts=1, size=2)
    scene.play(1.0)
    scene.paused = scene.loop.held = True
    for info in scene.fleet.replicas:
        scene.fleet.engine(info.name).paused = True
    scene.play(5.0)
    told = snapshot(scene)
    assert told.paused
    assert all(r.paused for r in told.replicas)


def test_a_dead_engine_is_told_and_is_no_idle_capacity() -> None:
    scene = busy_scene(20.0)
    scene.fleet.kill("engine-2")
    scene.play(1.0)
    told = snapshot(scene)
    dead = told.replicas[2]
    scene.close()
    assert not dead.alive
    assert dead.report_age_s > 5
    assert told.sums.lost > 0
    assert told.figures.bubble == 0.0
    assert not [t for t in told.trajectories if t.replica == "engine-2"]


def test_engines_without_work_are_a_bubble_only_while_others_work(scene: Scene) -> None:
    scene.ask("alone", 1)
    scene.play(0.5)
    assert snapshot(scene).figures.bubble == 0.75
    scene.play(600.0)
    assert snapshot(scene).figures.bubble == 0.0


def test_requests_whose_client_went_away_are_counted(scene: Scene) -> None:
    question = scene.ask("a", 3)
    scene.play(0.5)
    scene.cut(question)
    scene.play(0.5)
    assert snapshot(scene).sums.abandoned == 3


def test_groups_with_equal_rewards_are_degenerate(scene: Scene) -> None:
    rewards = {0: (1.0, 1.0), 1: (0.0, 1.0), 2: (0.0, 0.0), 3: (1.0,)}
    questions = {g: scene.ask(f"p{g}", len(values)) for g, values in rewards.items()}
    scene.play(600.0)
    ids = {
        g: [e.spec.trajectory_id for e in question.executions] for g, question in questions.items()
    }
    for trajectory_id, reward in zip(ids[0], rewards[0], strict=True):
        scene.ledger.reward(trajectory_id, reward)  # before its group is closed
    scene.settle_groups()
    for g in (1, 2, 3):
        for trajectory_id, reward in zip(ids[g], rewards[g], strict=True):
            scene.ledger.reward(trajectory_id, reward)
    figures = snapshot(scene).figures
    assert figures.groups_rewarded == 3  # one answer alone has nothing to differ from
    assert figures.degenerate_share == pytest.approx(2 / 3)


def test_a_trainer_that_never_rewards_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewards_module, "MAX_OPEN", 20)
    book = RewardBook()
    for trajectory_id in range(1000):
        group_id = trajectory_id // 8
        book.answered(trajectory_id, group_id)
        if trajectory_id % 8 == 7:
            book.closed(group_id)
    assert len(book._group_of) <= 20
    assert len(book._groups) <= 4
    book.rewarded(0, 1.0)  # given up long ago
    for trajectory_id in range(992, 1000):
        book.rewarded(trajectory_id, float(trajectory_id % 2))
        book.rewarded(trajectory_id, 5.0)  # only the first counts
    assert (book.degenerate, book.informative) == (0, 1)


def test_nothing_is_kept_of_trajectories_that_have_ended(scene: Scene) -> None:
    for round_ in range(3):
        scene.step(prompts=2, size=4, first=10 * round_)
        scene.play(400.0)
        scene.settle_groups()
    counts = scene.counts
    kept = (counts._where, counts._queued_s, counts._recorded, counts._awaited)
    assert kept == ({}, {}, {}, {})


# Why


class Moves(Stateless):
    """Places everything on the first engine and wants to move the first sample at each tick."""

    def decide(self, seen: Any, forecast: Any, rng: Any) -> list[Decision]:
        placed = [place(seen, row, 0, "moves", "there") for row in seen.queued]
        moved = [
            Decision(
                int(seen.trajectories.trajectory_id[row]), Action.MIGRATE, "moves",
                "it would end 3.2 s earlier", "engine-1", gain_s=3.2, cost_s=0.1, row=int(row),
            )
            for row in seen.running[:1]
        ]  # fmt: skip
        return placed + moved


def test_the_straggler_is_named_with_place_time_and_lateness(busy: Scene) -> None:
    told = snapshot(busy)
    straggler, last = told.why.straggler, told.trajectories[0]
    assert straggler is not None
    assert straggler.trajectory_id == last.trajectory_id
    ends = [t.ends_in_s for t in told.trajectories]
    assert straggler.after_next_s == pytest.approx(ends[0] - ends[1])
    assert straggler.after_middle_s == pytest.approx(ends[0] - statistics.median(ends))
    assert 0 <= straggler.sharing_s < straggler.ends_in_s
    sentence = straggler.sentence
    assert sentence.startswith(f"Trajectory {last.trajectory_id} on {last.replica} ends last:")
    assert f"in about {seconds(straggler.ends_in_s)}" in sentence
    assert f"after the middle one of {len(ends)}" in sentence
    assert f"It has written {last.generated_tokens:,} tokens" in sentence


def test_a_sample_alone_on_its_engine_owes_nothing_to_others(scene: Scene) -> None:
    scene.ask("alone", 1)
    scene.play(1.0)
    straggler = snapshot(scene).why.straggler
    assert straggler is not None
    assert straggler.sharing_s == 0.0
    assert "Nothing else runs." in straggler.sentence
    assert "runs there alone" in straggler.sentence


def test_a_crowded_engine_is_blamed_for_its_share() -> None:
    scene = busy_scene(20.0)
    told = snapshot(scene)
    scene.close()
    straggler = told.why.straggler
    assert straggler is not None
    others = next(r.inflight for r in told.replicas if r.name == straggler.replica) - 1
    assert straggler.sharing_s > 0.15 * straggler.ends_in_s
    blamed = f"{seconds(straggler.sharing_s)} of its time is the price of sharing with {others}"
    assert f"{blamed} others." in straggler.sentence


def test_decisions_are_told_with_reason_gain_cost_and_outcome() -> None:
    scene = Scene(policy=Moves())
    question = scene.ask("a", 1)
    (trajectory,) = question.executions
    scene.play(1.0)
    told = snapshot(scene)
    scene.close()
    move = next(d for d in told.why.decisions if d.action == "migrate")
    assert (move.trajectory_id, move.source, move.target) == (0, "engine-0", "engine-1")
    assert (move.reason, move.gain_s, move.cost_s) == ("it would end 3.2 s earlier", 3.2, 0.1)
    assert (move.enforced, move.outcome, move.became) == (True, "applied", "applied")
    assert trajectory.moves == told.trajectories[0].moves == 1
    assert told.trajectories[0].why == "migrate (applied): it would end 3.2 s earlier"


def test_the_guards_objections_are_told_apart_from_decisions() -> None:
    scene = Scene(policy=Moves())
    scene.ask("a", 1)
    scene.play(2.0)
    told = snapshot(scene)
    scene.close()
    assert [d.action for d in told.why.decisions].count("migrate") == 1
    assert told.why.objections == {"it was moved a moment ago": 6}


def test_what_a_shadow_would_do_again_and_again_is_told_once() -> None:
    scene = Scene("mode=shadow", policy=Moves())
    scene.ask("a", 1)
    scene.play(3.0)
    told = snapshot(scene)
    scene.close()
    (move,) = [d for d in told.why.decisions if d.action == "migrate"]
    assert (move.mode, move.enforced, move.became) == ("shadow", False, "only recorded")
    assert move.t_s == pytest.approx(told.now_s - 0.25)
    assert told.trajectories[0].moves == 0


def test_an_old_decision_no_longer_explains_a_trajectory() -> None:
    scene = Scene(policy=Moves())
    scene.ask("a", 1)
    scene.play(1.0)
    scene.loop.switch_off("that is enough")
    scene.clock.now_s += RECENT_S
    told = snapshot(scene)
    scene.close()
    assert told.trajectories[0].why == ""
    assert [d.action for d in told.why.decisions] == ["migrate", "place"]


def test_what_was_weighed_and_chosen_is_told(busy: Scene) -> None:
    told = snapshot(busy).why
    assert "nothing moved" in told.alternatives
    assert told.stack


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_seconds_are_told_as_people_read_them(value_s: float, text: str) -> None:
    assert seconds(value_s) == text


# Cost


@pytest.mark.benchmark
def test_a_snapshot_of_ten_thousand_takes_at_most_20_ms() -> None:
    scene = Scene("mode=off", replicas=16)
    scene.step(prompts=1250, size=8)
    scene.play(0.25)
    seen = scene.ledger.observation(5, scene._signal())
    scene.loop.latest = seen, scene.controller.decide(seen)
    taken = []
    for _ in range(7):
        scene.clock.now_s = 1000.0 + seen.now_s
        started_s = time.thread_time()
        msgspec.json.encode(snapshot(scene))
        taken.append(time.thread_time() - started_s)
    assert len(look(scene).observation.trajectories) == 10_000
    scene.close()
    assert statistics.median(taken) <= 0.020
