"""Seer: probes first, then the longest groups; placed again after a chunk, if that helps."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from support.observations import (
    forecast_of,
    observation,
    random_observation,
    replica_table,
    trajectory_table,
)

from steersman.controller.config import PartConfig, load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.run import replay
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass, Phase
from steersman.estimators.observation import Ints, Observation
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.contract import Stateless
from steersman.policies.decision import Action, Decision, place
from steersman.policies.placement._slots import Slots
from steersman.policies.placement.seer import NAME, PROBE, REASONS, Seer

Q, R, E = Phase.QUEUED, Phase.RUNNING, Phase.ENDED
PROFILE = HardwareProfile(
    name="toy", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01, sequence_s=0.0005,
    token_s=1e-8, prefill_token_s=2e-5, kv_capacity_tokens=0, max_num_seqs=4,
)  # fmt: skip


def decide(policy: Seer, seen: Observation) -> list[Decision]:
    forecast = forecast_of(seen, [100.0] * len(seen.trajectories))
    return policy.decide(seen, forecast, np.random.default_rng(0))


def fleet(phase: list[int], group_size: int, replicas: int = 1, **columns: Any) -> Observation:
    """Trajectories in these phases; `slots` and `kv` are the replicas'."""
    slots, kv = columns.pop("slots", 32), columns.pop("kv", 0)
    table = trajectory_table(phase, group_size, **columns)
    limits = {"max_num_seqs": [slots] * replicas, "kv_capacity_tokens": [kv] * replicas}
    return observation(table, replica_table(replicas, **limits))


def placed(decisions: list[Decision]) -> list[int]:
    return [d.trajectory_id for d in decisions if d.action is Action.PLACE]


def test_one_probe_of_each_group_goes_first() -> None:
    assert placed(decide(Seer(), fleet([Q] * 9, 3, slots=4))) == [0, 3, 6, 1]


def test_a_probe_that_lost_its_replica_goes_after_those_that_have_written_less() -> None:
    seen = fleet([Q] * 4, 2, slots=2, generated_tokens=[0, 700, 0, 0])
    assert placed(decide(Seer(), seen)) == [2, 1]


def test_then_the_group_whose_longest_finished_sibling_is_longest_and_unknown_before_known() -> (
    None
):
    phase = [E, E, Q, E, Q, Q, R, Q, Q]
    tokens = [900, 20, 0, 500, 0, 0, 9, 0, 0]
    seen = fleet(phase, 3, generated_tokens=tokens, replica_row=[-1] * 6 + [0, -1, -1])
    assert placed(decide(Seer(), seen)) == [7, 8, 2, 4, 5]


def test_now_and_then_the_group_that_was_served_least_has_its_turn() -> None:
    """Group 0 is long and has one waiting, group 1 is short and has three."""
    phase = [E, E, E, Q, E, Q, Q, Q]
    seen = fleet(phase, 4, generated_tokens=[900, 0, 0, 0, 10, 0, 0, 0], slots=1)
    assert placed(decide(Seer(starvation_every=1), seen)) == [5]
    assert placed(decide(Seer(starvation_every=2), seen)) == [3]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_each_is_placed_once_however_often_the_neglected_have_their_turn(every: int) -> None:
    decisions = decide(Seer(starvation_every=every), fleet([Q] * 12, 4))
    assert sorted(placed(decisions)) == list(range(12))


def test_no_more_is_placed_than_slots_are_free_and_next_chunks_fit() -> None:
    """100 prompt tokens and a chunk of 400 each: 1,200 tokens hold two."""
    policy = Seer(chunk_tokens=400)
    assert len(decide(policy, fleet([Q] * 6, 1, 2, slots=4, kv=1200))) == 4
    assert len(decide(policy, fleet([Q] * 6, 1, 2, slots=1, kv=1200))) == 2


def test_siblings_share_a_replica_until_the_spread_is_too_large() -> None:
    seen = fleet([Q] * 8, 8, 2, prompt_tokens=[600] * 8)
    assert {d.replica for d in decide(Seer(spread=8), seen)} == {"r0"}
    names = [d.replica for d in decide(Seer(spread=2), seen)]
    assert names == ["r0", "r0", "r0", "r1", "r1", "r1", "r0", "r1"]


def test_a_short_prompt_keeps_nobody_to_its_siblings_replica() -> None:
    names = [d.replica for d in decide(Seer(), fleet([Q] * 4, 4, 2, prompt_tokens=[512] * 4))]
    assert names == ["r0", "r1", "r0", "r1"]


def test_a_chunk_is_an_eighth_of_a_short_token_cap() -> None:
    """1,100 tokens hold two with 100 of prompt and 400 of chunk, not three."""
    seen = fleet([Q] * 4, 1, kv=1100, max_new_tokens=[3200] * 4)
    assert len(decide(Seer(), seen)) == 2


def crossing(replica_row: list[int], **more: Any) -> tuple[Seer, Observation]:
    """Trajectory 0 has just written its first chunk of 1,000 tokens."""
    n = len(replica_row)
    options = {name: more.pop(name) for name in ("spread",) if name in more}
    policy = Seer(chunk_tokens=1000, chunks=1, **options)
    before, now = [[tokens] + [10] * (n - 1) for tokens in (990, 1005)]
    columns: dict[str, Any] = {"replica_row": replica_row, **more}
    assert decide(policy, fleet([R] * n, 1, 2, generated_tokens=before, **columns)) == []
    return policy, fleet([R] * n, 1, 2, generated_tokens=now, **columns)


def test_after_a_chunk_it_moves_to_the_emptiest_replica_if_the_spread_is_too_large() -> None:
    policy, seen = crossing([0, 0, 0, 0, 1], spread=2)
    (move,) = decide(policy, seen)
    assert (move.action, move.trajectory_id, move.replica) == (Action.MIGRATE, 0, "r1")
    assert decide(policy, seen) == []  # placed again once per chunk


def test_after_a_chunk_it_stays_with_its_prefix_while_the_spread_is_small() -> None:
    policy, seen = crossing([0, 0, 0, 0, 1])
    assert decide(policy, seen) == []


def test_after_a_chunk_it_leaves_a_replica_that_cannot_hold_everyones_next_chunk() -> None:
    """Three times 1,100 and then 1,000 more of the first are more than 4,000 tokens."""
    policy, seen = crossing([0, 0, 0], kv=4000)
    (move,) = decide(policy, seen)
    assert (move.action, move.trajectory_id, move.replica) == (Action.MIGRATE, 0, "r1")


class OneByOne(Seer):
    """The same placements in plain Python."""

    def _place(
        self, observation: Observation, slots: Slots, ahead: Ints, homes: Ints
    ) -> list[Decision]:
        t, alive = observation.trajectories, np.flatnonzero(observation.replicas.alive)
        shares: dict[int, set[int]] = {}
        for row in np.flatnonzero((homes >= 0) & (t.prompt_tokens > self.prefix_tokens)).tolist():
            shares.setdefault(int(t.group_row[row]), set()).add(int(homes[row]))
        decisions = []
        for row, why in list(self._order(observation, slots.free)):
            written, prompt = t.generated_tokens[row], t.prompt_tokens[row]
            prefix = shares.setdefault(int(t.group_row[row]), set())
            if written > 0 and prompt + written > self.prefix_tokens and homes[row] in alive:
                likes = {int(homes[row])}
            else:
                likes = prefix
            takes = [
                r
                for r in alive.tolist()
                if slots.count[r] < slots.limit[r]
                and (slots.count[r] == 0 or slots.reserved[r] + ahead[row] <= slots.capacity[r])
            ]
            if np.ptp(slots.count[alive]) <= self.spread and likes.intersection(takes):
                takes = [r for r in takes if r in likes]
            if not takes:
                break
            target = min(takes, key=lambda r: (slots.count[r], observation.replicas.names[r]))
            slots.take(target, int(ahead[row]))
            homes[row] = target
            (prefix.add if prompt > self.prefix_tokens else prefix.discard)(target)
            self._served += why != PROBE
            decisions.append(place(observation, row, target, NAME, REASONS[why]))
        return decisions


@pytest.mark.parametrize(("slots", "kv"), [(2, 0), (40, 0), (40, 30_000), (16, 9_000), (16, 900)])
def test_compiled_placement_decides_as_plain_python_does(slots: int, kv: int) -> None:
    """Two ticks each: in the second, homes and served placements are remembered."""
    decided = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        options = {"spread": int(rng.integers(1, 40)), "starvation_every": int(rng.integers(1, 6))}
        ours, plain = Seer(**options), OneByOne(**options)
        for _ in range(2):
            weights = (0.88, 0.04, 0.01, 0.02, 0.05) if seed % 2 else (0.6, 0.2, 0.05, 0.05, 0.1)
            seen = random_observation(rng, 300, 12, weights=weights, slots=slots, alive_share=0.8)
            capacity = rng.integers(kv // 2, kv + 1, 12)
            seen = replace(seen, replicas=replace(seen.replicas, kv_capacity_tokens=capacity))
            decisions = decide(ours, seen)
            assert decisions == decide(plain, seen)
            assert ours.state_dict() == plain.state_dict()
            decided += len(decisions)
    assert decided > 10


@dataclass
class LongestFirst(Stateless):
    """An oracle: the longest true length first, to a free slot of the replica with the fewest."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    lengths: list[int] = field(default_factory=list)
    """By trajectory id."""

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> list[Decision]:
        """Fill the free slots."""
        queued, count = observation.queued, observation.inflight()
        length = np.array(self.lengths)[observation.trajectories.trajectory_id[queued]]
        free = int(observation.replicas.max_num_seqs.sum() - count.sum())
        decisions = []
        for row in queued[np.argsort(-length)][:free].tolist():
            target = int(np.argmin(count))
            count[target] += 1
            decisions.append(place(observation, row, target, "oracle", "the longest"))
        return decisions


def seconds(given: Workload, policy: str, **options: Any) -> float:
    """Of a step.  The clock ticks rarely: an end wakes the controller while anything waits."""
    config = load_config(None, ["tick_s=30.0"], environ={})
    config = msgspec.structs.replace(config, placement=PartConfig(policy, options))
    return replay(given, FleetPlan(PROFILE, 4), config).steps[0].makespan_s


def share_of_the_oracles_gain(prompt_share: float) -> float:
    """192 trajectories in 48 groups on 16 slots."""
    lengths = Lengths(steps=1, groups=48, group_size=4, prompt_share=prompt_share, pool=1 << 12)
    given = made_up(lengths, seed=0)
    default, ours = seconds(given, "sticky_least_inflight"), seconds(given, "seer")
    truth = given.steps[0].length.tolist()
    best = seconds(given, f"{__name__}:LongestFirst", lengths=truth)
    assert best < 0.95 * default
    return (default - ours) / (default - best)


def test_probes_bring_nine_tenths_of_what_knowing_the_lengths_would_if_siblings_are_alike() -> None:
    assert share_of_the_oracles_gain(0.99) > 0.9


def test_probes_bring_little_of_it_if_siblings_are_unlike() -> None:
    assert share_of_the_oracles_gain(0.1) < 0.5


def test_admission_by_chunks_preempts_nobody_where_the_default_preempts() -> None:
    lengths = Lengths(steps=1, groups=16, median_tokens=800, p90_over_p50=3.0, max_new_tokens=8192)
    small = replace(PROFILE, kv_capacity_tokens=20_000, max_num_seqs=64)
    preemptions = {}
    for policy in ("sticky_least_inflight", "seer"):
        config = load_config(None, ["tick_s=30.0", f"placement.name={policy}"], environ={})
        run = replay(made_up(lengths, seed=0), FleetPlan(small, 2), config)
        preemptions[policy] = run.preemptions
    assert preemptions["sticky_least_inflight"] > 50
    assert preemptions["seer"] == 0
