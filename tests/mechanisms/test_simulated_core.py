"""What the simulator's physics promise, one sentence each, in numbers that can be checked by hand.

`FIXED` and `EACH` are powers of two: sums of their multiples are exact.
"""

import copy
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.simulated import _kernel
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import (
    EventKind,
    Events,
    ReplicaSpec,
    Trajectories,
)

FIXED, EACH = 2.0**-6, 2.0**-13
PLAIN = ReplicaSpec(fixed_s=FIXED, sequence_s=EACH)
PREFILL = 2.0**-12


def fleet(*specs: ReplicaSpec) -> SimulatedCore:
    core = SimulatedCore()
    for spec in specs:
        core.add_replica(spec)
    return core


def start(
    core: SimulatedCore, tokens: list[float], replica: int = 0, **given: float | list[int]
) -> np.ndarray:
    rows = core.add(Trajectories.of_one_turn(tokens, **given))  # type: ignore[arg-type]
    core.submit(rows, np.full(len(rows), replica))
    return rows


def ends(events: Events) -> dict[int, float]:
    """When each trajectory finished."""
    over = events.kind == EventKind.FINISHED
    rows, times = events.trajectory[over].tolist(), events.time_s[over].tolist()
    assert len(set(rows)) == len(rows)
    return dict(zip(rows, times, strict=True))


def test_a_batch_takes_what_the_closed_form_says() -> None:
    """T = M * Lmax + c * sum(L), exactly."""
    lengths = np.random.default_rng(1).integers(1, 5000, 200).astype(float)
    core = fleet(PLAIN)
    start(core, lengths.tolist())
    events = core.advance(math.inf)
    assert core.now_s == events.time_s[-1] == FIXED * lengths.max() + EACH * lengths.sum()
    state = core.state()
    assert state.iterations[0] == lengths.max()
    assert state.sequences_run[0] == lengths.sum()
    assert state.busy_s[0] == core.now_s


def test_an_iteration_grows_with_the_context_and_pays_the_knee() -> None:
    """Against the integral of tau, token by token."""
    spec = replace(PLAIN, token_s=1e-6, knee_s=0.5, kv_capacity_tokens=10_000, max_num_seqs=4)
    core = fleet(spec)
    start(core, [900.0, 1600.0, 1600.0, 2500.0], prompt_tokens=500.0)
    done = ends(core.advance(math.inf))

    def tau(batch: int, kv: np.ndarray) -> np.ndarray:
        knee = 0.5 * np.maximum(kv / 10_000 - 0.92, 0)
        return FIXED + EACH * batch + 1e-6 * kv + knee

    def part(batch: int, kv: float, tokens: float) -> float:
        at = np.linspace(0, tokens, 200_001)
        return float(np.trapezoid(tau(batch, kv + batch * at), at))

    first = part(4, 2000, 900)
    second = first + part(3, 1500 + 3 * 900, 700)
    assert done[0] == pytest.approx(first, rel=1e-9)
    assert done[1] == done[2] == pytest.approx(second, rel=1e-9)
    assert done[3] == pytest.approx(second + part(1, 500 + 1600, 900), rel=1e-9)
    core = fleet(spec)
    start(core, [2400.0] * 4)  # up to 9,600 tokens: beyond the knee
    assert ends(core.advance(math.inf))[3] == pytest.approx(part(4, 0, 2400), rel=1e-7)


def tabled(spec: ReplicaSpec, *batch_s: float) -> ReplicaSpec:
    """With a table in place of the line."""
    return replace(spec, sequence_s=0.0, max_num_seqs=len(batch_s), batch_s=batch_s)


def test_a_tabulated_batch_takes_what_its_table_says() -> None:
    core = fleet(tabled(PLAIN, 3 * EACH + FIXED, 8 * EACH + FIXED, 9 * EACH + FIXED))
    start(core, [10.0, 20.0, 30.0, 40.0])  # the fourth joins when the first has left
    done = ends(core.advance(math.inf))
    first = 20 * (FIXED + 9 * EACH)
    assert done == {
        0: first / 2,
        1: first,
        2: first + 10 * (FIXED + 8 * EACH),
        3: first + 10 * (FIXED + 8 * EACH) + 20 * (FIXED + 3 * EACH),
    }


def test_a_table_of_the_line_gives_the_lines_bytes() -> None:
    line = replace(PLAIN, max_num_seqs=5, token_s=2.0**-20, kv_capacity_tokens=2048.0, speed=2.0)
    table = tabled(line, *(FIXED + EACH * b for b in range(1, 6)))

    def run(spec: ReplicaSpec) -> Events:
        core = fleet(PLAIN, spec)
        start(core, (16.0 * np.random.default_rng(0).integers(1, 60, 40)).tolist(), 1)
        early = core.advance(1.0)
        core.set_speculation(1, 2.0, 1.5)
        late = core.advance(math.inf)
        return Events(*(np.concatenate([getattr(p, n) for p in (early, late)]) for n in vars(late)))

    one, other = run(line), run(table)
    assert (one.kind == EventKind.PREEMPTED).any()
    assert all(getattr(one, n).tobytes() == getattr(other, n).tobytes() for n in vars(one))


def test_verifying_drafts_costs_of_a_table_what_is_above_its_fixed_part() -> None:
    core = fleet(tabled(PLAIN, FIXED + 4 * EACH, FIXED + 6 * EACH))
    core.set_speculation(0, 4.0, 2.0)
    start(core, [64.0, 64.0])
    core.advance(math.inf)
    assert core.now_s == 16 * (FIXED + 2 * 6 * EACH)


def test_a_prefill_step_is_paid_once_a_moment_and_less_beside_a_batch() -> None:
    above = (4, 6, 7, 7)  # of the fixed part, by batch
    spec = replace(tabled(PLAIN, *(FIXED + EACH * b for b in above)), prefill_step_s=5 * EACH)
    for running, step in ((0, 5), (1, 5), (2, 3), (3, 2)):
        core = fleet(spec)
        start(core, [64.0] * running)  # no context: nothing to prefill
        core.advance(FIXED)
        start(core, [1.0], prompt_tokens=8.0, group=[9])
        assert core.next_event_s == 2 * FIXED + (step + above[running]) * EACH
    core = fleet(spec)
    start(core, [1.0, 1.0, 1.0], prompt_tokens=8.0)
    core.advance(math.inf)
    assert core.now_s == FIXED + (5 + 7) * EACH
    start(core, [1.0], prompt_tokens=8.0, group=[0])  # its prompt is cached
    core.advance(math.inf)
    assert core.now_s == 2 * FIXED + (5 + 7 + 4) * EACH


def test_figures_of_a_moment_lie_on_the_way_to_the_end() -> None:
    core = fleet(replace(PLAIN, token_s=1e-5, knee_s=1.0, kv_capacity_tokens=1000))
    row = start(core, [499.0, 499.0])[0]
    for until_s in np.linspace(0, 1, 11)[1:] * core.next_event_s:
        core.advance(until_s)
        tokens = core.generated_tokens()[row]
        other = fleet(replace(PLAIN, token_s=1e-5, knee_s=1.0, kv_capacity_tokens=1000))
        start(other, [tokens, tokens])
        assert ends(other.advance(math.inf))[0] == pytest.approx(until_s, rel=1e-12)


def test_looking_more_often_changes_not_a_byte() -> None:
    def run(looks: int) -> Events:
        core = fleet(*[replace(PLAIN, token_s=1e-6, max_num_seqs=5, kv_capacity_tokens=2000)] * 2)
        rng = np.random.default_rng(3)
        rows = core.add(Trajectories.of_one_turn(rng.integers(1, 1000, 60), prompt_tokens=50.0))
        core.submit(rows, rows % 2)
        parts = []
        for until_s in np.linspace(0, 200, looks + 1)[1:]:
            parts.append(core.advance(until_s))
            core.state()
            core.generated_tokens()
        return Events(*(np.concatenate([getattr(p, n) for p in parts]) for n in vars(parts[0])))

    once, often = run(1), run(997)
    assert (once.kind == EventKind.PREEMPTED).any()
    assert all(getattr(once, n).tobytes() == getattr(often, n).tobytes() for n in vars(once))


def test_a_copy_goes_its_own_way() -> None:
    core = fleet(PLAIN)
    start(core, [100.0])
    other = copy.deepcopy(core)
    start(other, [300.0])
    other.advance(math.inf)
    assert core.now_s == 0
    assert ends(core.advance(math.inf)) == {0: 100 * (FIXED + EACH)}


def test_a_replica_with_work_that_fits_is_never_idle() -> None:
    core = fleet(replace(PLAIN, max_num_seqs=3), replace(PLAIN, max_num_seqs=7, speed=3.0))
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 300, 200).astype(float)
    rows = core.add(Trajectories.of_one_turn(lengths))
    core.submit(rows, rng.integers(0, 2, 200))
    while (core.inflight() > 0).any():
        core.advance(core.now_s + 0.31)
        state = core.state()
        assert ((state.running == [3, 7]) | (state.waiting == 0)).all()
    assert core.state().sequences_run.sum() == pytest.approx(lengths.sum(), rel=1e-12)


def test_the_youngest_is_preempted_and_prefilled_again() -> None:
    spec = replace(PLAIN, prefill_token_s=PREFILL, kv_capacity_tokens=300)
    core = fleet(spec)
    start(core, [100.0, 100.0, 100.0], prompt_tokens=[40.0, 40.0, 40.0])  # type: ignore[list-item]
    events = core.advance(math.inf)
    # 3 * (40 + 60) tokens are the capacity; the others go on to 100, and then it comes back
    full_s = 120 * PREFILL + 60 * (FIXED + 3 * EACH)
    both_s = full_s + 40 * (FIXED + 2 * EACH)
    assert events.kind.tolist() == [EventKind.PREEMPTED] + [EventKind.FINISHED] * 3
    assert events.trajectory.tolist() == [2, 0, 1, 2]
    assert events.time_s[0] == full_s
    assert events.time_s[1] == events.time_s[2] == both_s
    assert events.time_s[3] == both_s + 100 * PREFILL + 40 * (FIXED + EACH)
    state = core.state()
    assert state.preemptions[0] == 1
    assert state.prefill_tokens[0] == 120 + 100


def test_a_sequence_larger_than_the_cache_runs_alone_to_its_end() -> None:
    core = fleet(replace(PLAIN, kv_capacity_tokens=100))
    start(core, [50.0, 500.0, 50.0], prompt_tokens=10.0, group=[0, 0, 0])
    start(core, [20.0], prompt_tokens=400.0)
    events = core.advance(math.inf)
    assert sorted(ends(events)) == [0, 1, 2, 3]
    assert core.state().kv_tokens[0] == 0


def test_a_siblings_prompt_is_prefilled_once_per_replica_and_weight_version() -> None:
    spec = replace(PLAIN, prefill_token_s=PREFILL)
    core = fleet(spec, spec)

    def prefilled(replica: int) -> float:
        before = core.state().prefill_tokens[replica]
        start(core, [10.0, 10.0], replica, prompt_tokens=64.0, group=[0, 0])
        core.advance(math.inf)
        return float(core.state().prefill_tokens[replica] - before)

    assert [prefilled(0), prefilled(0), prefilled(1)] == [64, 0, 64]
    core.new_weights(0)
    assert [prefilled(0), prefilled(1)] == [64, 0]


def test_a_small_prefix_cache_forgets_what_was_used_longest_ago() -> None:
    core = fleet(replace(PLAIN, prefill_token_s=PREFILL, prefix_cache_tokens=200.0))

    def prefilled(group: int) -> float:
        before = core.state().prefill_tokens[0]
        start(core, [10.0], prompt_tokens=64.0, group=[group])
        core.advance(math.inf)
        return float(core.state().prefill_tokens[0] - before)

    assert [prefilled(0), prefilled(0), prefilled(1), prefilled(0)] == [64, 0, 64, 0]
    # 64 + 10 tokens of each of the others, three times, are more than 200
    assert [prefilled(1), prefilled(2), prefilled(3), prefilled(0)] == [0, 64, 64, 0]
    assert [prefilled(4), prefilled(5), prefilled(6), prefilled(0)] == [64, 64, 64, 64]


def test_images_stall_the_batch_once_per_prompt() -> None:
    core = fleet(replace(PLAIN, speed=2.0))
    start(core, [10.0, 10.0], prompt_tokens=64.0, group=[0, 0], encode_s=0.5)
    core.advance(math.inf)
    assert core.now_s == 0.25 + 10 * (FIXED + 2 * EACH) / 2


def test_a_migrated_trajectory_takes_its_tokens_along_and_prefills_them() -> None:
    spec = replace(PLAIN, prefill_token_s=PREFILL)
    core = fleet(spec, spec)
    row = start(core, [100.0], prompt_tokens=32.0)
    core.advance(32 * PREFILL + 60 * (FIXED + EACH))
    assert core.abort(row).tolist() == [60]
    assert core.replica_of(row).tolist() == [-1]
    core.submit(row, [1], at_s=core.now_s + 1)
    left_s = core.now_s
    core.advance(left_s + 0.5)
    assert core.state().away.tolist() == [0, 1]
    core.advance(math.inf)
    assert core.now_s == left_s + 1 + (32 + 60) * PREFILL + 40 * (FIXED + EACH)
    assert core.state().prefill_tokens.tolist() == [32, 92]
    assert core.state().sequences_run.tolist() == [60, 40]


def test_tokens_written_before_are_prefilled_counted_and_not_written_again() -> None:
    spec = replace(PLAIN, prefill_token_s=PREFILL, kv_capacity_tokens=1024.0)
    core = fleet(spec)
    rows = core.add(Trajectories.of_one_turn([100.0, 80.0], [0, 0], 32.0, generated=[60.0, 0.0]))
    assert core.generated_tokens(rows).tolist() == [60, 0]
    core.submit(rows, [0, 0])
    assert core.state().kv_tokens[0] == 32 + 60 + 32
    done = ends(core.advance(math.inf))
    both_s = (32 + 60) * PREFILL + 40 * (FIXED + 2 * EACH)
    assert done == {0: both_s, 1: both_s + 40 * (FIXED + EACH)}
    assert core.generated_tokens(rows).tolist() == [100, 80]
    assert core.state().sequences_run[0] == 40 + 80


def test_a_resumed_partial_goes_on_as_a_migrated_trajectory_does() -> None:
    spec = replace(PLAIN, prefill_token_s=PREFILL, token_s=2.0**-20)
    core = fleet(spec, spec)
    row = start(core, [100.0], prompt_tokens=32.0)
    core.advance(1.0)
    written = core.abort(row)
    core.submit(row, [1])
    moved = core.advance(math.inf).time_s[-1] - 1.0
    core = fleet(spec)
    start(core, [100.0], prompt_tokens=32.0, generated=written[0])
    assert core.advance(math.inf).time_s[-1] == pytest.approx(moved, rel=1e-14)


def test_the_kv_cache_is_never_more_than_full() -> None:
    core = fleet(replace(PLAIN, kv_capacity_tokens=100.0))
    start(core, [500.0], prompt_tokens=10.0)
    core.advance(0.5 * core.next_event_s)
    assert core.state().kv_tokens.tolist() == [100]


def test_a_context_kept_between_turns_takes_no_capacity() -> None:
    core = fleet(replace(PLAIN, kv_capacity_tokens=1000.0, keeps_kv_between_turns=True))
    nothing = np.zeros(1)
    given = Trajectories(
        group=np.array([0]),
        prompt_tokens=np.array([900.0]),
        encode_s=nothing,
        turns=np.array([2]),
        turn_tokens=np.array([50.0, 10.0]),
        wait_s=np.array([100.0, 0.0]),
        extra_tokens=np.array([8.0, 0.0]),
    )
    core.submit(core.add(given), [0])
    core.advance(math.inf, stop_on=[EventKind.TURN_ENDED])
    assert core.state().kv_tokens.tolist() == [0]
    start(core, [10.0], prompt_tokens=900.0, group=[1])
    assert core.state().running.tolist() == [1]
    core.advance(math.inf)
    assert core.state().preemptions.tolist() == [0]
    assert core.state().prefill_tokens.tolist() == [900 + 900 + 8]


def test_a_core_that_advances_in_a_thread_lets_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("steersman.mechanisms.simulated.core._LOG_ROWS", 500_000)
    core = fleet(*[replace(PLAIN, max_num_seqs=64)] * 50)
    lengths = np.random.default_rng(0).integers(1, 2000, 400_000).astype(float)
    rows = core.add(Trajectories.of_one_turn(lengths))
    core.submit(rows, rows % 50)
    core.advance(1.0)  # compiled
    compiled, inside = _kernel.advance, threading.Event()

    def watched(*args: object) -> object:
        inside.set()
        answer = compiled(*args)
        inside.clear()
        return answer

    monkeypatch.setattr(_kernel, "advance", watched)
    thread = threading.Thread(target=core.advance, args=(math.inf,))
    thread.start()
    looks = 0
    while thread.is_alive():
        looks += inside.is_set()
        time.sleep(0.001)
    assert looks > 20, "the one long call locked the interpreter"
    assert core.inflight().sum() == 0


def test_turns_wait_outside_of_the_batch() -> None:
    given = Trajectories(
        group=np.array([0]),
        prompt_tokens=np.array([16.0]),
        encode_s=np.zeros(1),
        turns=np.array([3]),
        turn_tokens=np.array([10.0, 20.0, 30.0]),
        wait_s=np.array([1.0, 2.0, 99.0]),
        extra_tokens=np.array([64.0, 0.0, 99.0]),
    )

    def run(keeps: bool) -> tuple[Events, float]:
        spec = replace(PLAIN, prefill_token_s=PREFILL, keeps_kv_between_turns=keeps)
        core = fleet(replace(spec, prefix_cache_tokens=1e9 if keeps else 0.0))
        core.submit(core.add(given), [0])
        events = core.advance(math.inf)
        assert core.generated_tokens().tolist() == [60]
        return events, float(core.state().prefill_tokens[0])

    events, tokens = run(keeps=True)
    assert events.kind.tolist() == [EventKind.TURN_ENDED, EventKind.TURN_ENDED, EventKind.FINISHED]
    assert tokens == 16 + 64
    assert events.time_s[2] == 3 + 80 * PREFILL + 60 * (FIXED + EACH)
    assert run(keeps=False)[1] == 16 + (16 + 10 + 64) + (16 + 10 + 64 + 20)


def test_a_pause_stops_the_clock_and_keeps_the_batch() -> None:
    core = fleet(PLAIN)
    start(core, [100.0])
    core.advance(0.5)
    core.pause(0)
    start(core, [1.0])
    assert len(core.advance(10.5)) == 0
    assert core.state().waiting.tolist() == [1]
    core.resume(0)
    core.advance(math.inf)
    assert core.now_s == pytest.approx(10 + 100 * FIXED + 101 * EACH, rel=1e-15)
    assert core.state().busy_s[0] == pytest.approx(core.now_s - 10, rel=1e-15)


def test_new_weights_recompute_every_running_context_in_order() -> None:
    core = fleet(replace(PLAIN, prefill_token_s=PREFILL, max_num_seqs=3))
    start(core, [64.0] * 4, prompt_tokens=16.0, group=[0, 0, 1, 1])
    core.advance(32 * PREFILL + 32 * (FIXED + 3 * EACH))
    core.pause(0)
    core.new_weights(0)
    core.resume(0)
    state = core.state()
    assert (state.running[0], state.waiting[0], state.preemptions[0]) == (3, 1, 3)
    events = core.advance(core.now_s)
    assert events.trajectory.tolist() == [0, 1, 2]
    assert set(events.kind.tolist()) == {EventKind.PREEMPTED}
    core.advance(math.inf)
    # two prompts anew, 32 tokens of each of three; the fourth has its sibling's prompt
    assert core.state().prefill_tokens[0] == 32 + (32 + 3 * 32)


def test_speculation_and_speed_scale_the_iteration() -> None:
    core = fleet(PLAIN, replace(PLAIN, speed=4.0))
    start(core, [96.0], 0)
    start(core, [96.0], 1)
    core.set_speculation(0, 3.0, 2.0)
    done = ends(core.advance(math.inf))
    assert done == {0: 32 * (FIXED + 2 * EACH), 1: 96 * (FIXED + EACH) / 4}
    assert core.state().iterations.tolist() == [32, 96]


def test_a_dead_replicas_trajectories_are_reported_once_and_can_go_on_elsewhere() -> None:
    core = fleet(replace(PLAIN, max_num_seqs=1), PLAIN)
    rows = start(core, [64.0, 64.0])
    core.submit(later := core.add(Trajectories.of_one_turn([1.0])), [0], at_s=9.0)
    core.advance(32 * (FIXED + EACH))
    core.kill(0)
    assert core.next_event_s == core.now_s
    events = core.advance(5.0, stop_on=[EventKind.LOST])
    assert events.kind.tolist() == [EventKind.LOST] * 3
    assert core.now_s == 32 * (FIXED + EACH)
    assert core.generated_tokens(rows).tolist() == [32, 0]
    with pytest.raises(InvalidInputError, match="on replica 0"):
        core.submit(rows, [1, 0])
    core.submit([*rows, *later], [1, 1, 1])
    assert sorted(ends(core.advance(math.inf))) == [0, 1, 2]
    assert core.state().alive.tolist() == [0, 1]


def test_the_clock_stops_at_the_first_event_that_was_asked_for() -> None:
    core = fleet(PLAIN, PLAIN)
    start(core, [10.0, 10.0, 20.0], 0)
    start(core, [10.0, 10.0, 30.0], 1)
    events = core.advance(99.0, stop_on=[EventKind.FINISHED, EventKind.FINISHED])
    assert core.now_s == 10 * (FIXED + 3 * EACH)
    assert events.trajectory.tolist() == [0, 1, 3, 4]
    assert len(core.advance(core.now_s + 0.01, stop_on=[EventKind.LOST])) == 0


def test_more_events_than_the_log_holds_are_all_reported() -> None:
    core = fleet(replace(PLAIN, max_num_seqs=10_000), replace(PLAIN, max_num_seqs=7))
    rows = core.add(Trajectories.of_one_turn(np.full(20_000, 8.0)))
    core.submit(rows, rows % 2)
    assert sorted(ends(core.advance(math.inf))) == rows.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda core: core.submit([0], [0]), "trajectory 0 on replica 0"),
        (lambda core: core.submit([1, 1], [0, 0]), "trajectory 1 on replica 0"),
        (lambda core: core.submit([1, 7], [0, 0]), "trajectory 7 on replica 0"),
        (lambda core: core.submit([1], [3]), "trajectory 1 on replica 3"),
        (lambda core: core.submit([1], [0, 0]), "one replica for each"),
        (lambda core: core.abort([-1]), "trajectory row"),
        (lambda core: core.kill(1), "replica row"),
        (lambda core: core.advance(-1.0), "until_s"),
        (lambda core: core.set_speculation(0, 0.5, 1.0), "tokens_per_iteration"),
        (lambda core: ReplicaSpec(fixed_s=0.0), "fixed_s"),
        (lambda core: tabled(PLAIN, 2.0, 1.0), "batch_s"),
        (lambda core: tabled(PLAIN, FIXED / 2), "fixed_s"),
        (lambda core: tabled(replace(PLAIN, fixed_s=0.0), 0.0, 1.0), "fixed_s"),
        (lambda core: replace(PLAIN, batch_s=(1.0,) * 256), "sequence_s beside batch_s"),
        (lambda core: ReplicaSpec(FIXED, batch_s=(1.0,)), "one batch_s for each"),
        (lambda core: Trajectories.of_one_turn([9.0], generated=9.0), "generated"),
        (lambda core: Trajectories.of_one_turn([0.0]), "turn_tokens"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(call, message: str) -> None:  # type: ignore[no-untyped-def]
    core = fleet(PLAIN)
    start(core, [10.0])
    core.add(Trajectories.of_one_turn([10.0]))
    with pytest.raises(InvalidInputError, match=message):
        call(core)
    core.submit([1], [0])
    assert ends(core.advance(math.inf)) == {0: core.now_s, 1: core.now_s}


def test_every_request_costs_the_host_its_part() -> None:
    """Three alone on a replica: each stalls it by `request_s` before all decode."""
    core = SimulatedCore()
    replica = core.add_replica(replace(PLAIN, request_s=0.5))
    rows = core.add(Trajectories.of_one_turn([10.0] * 3, prompt_tokens=1.0))
    core.submit(rows, [replica] * 3)
    with_cost = core.advance(math.inf).time_s.max()
    core = SimulatedCore()
    replica = core.add_replica(PLAIN)
    core.submit(core.add(Trajectories.of_one_turn([10.0] * 3, prompt_tokens=1.0)), [replica] * 3)
    assert with_cost == pytest.approx(core.advance(math.inf).time_s.max() + 1.5)
