import json
from dataclasses import replace

import numpy as np
import pytest
from support.controllers import steered_by
from support.observations import forecast_of, observation, replica_table, trajectory_table

from steersman.controller.config import load_config
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.options import Options
from steersman.controller.replay.ticks import Ticks
from steersman.controller.replay.world import World
from steersman.controller.tournament.lengths import Lengths, made_up
from steersman.estimators.observation import Objective
from steersman.mechanisms.simulated.profile import load_profile
from steersman.policies.adaptive.sharing import FEWEST, LARGEST, Sharing
from steersman.policies.placement.adaptive import Adaptive

NOTHING = trajectory_table([])
TICK_S, SLOTS = 1.0, 16


class Engines:
    """Steps whose batches thin out at different times.  An iteration takes M + c b, M = 10 ms and
    c = 1 ms as forecast, times exp(gain * share of the others that are idle), and noise."""

    def __init__(
        self, replicas: int, gain: float, seed: int = 0, off: float = 1.0, fixed_s: float = 0.01
    ) -> None:
        self.gain, self.off, self.fixed_s = gain, off, fixed_s
        self.rng = np.random.default_rng(seed)
        self.counters, self.now_s = np.zeros((5, replicas)), 0.0

    def run(self, sharing: Sharing, steps: int = 4, prompt: int = 0, drafted: int = 0) -> None:
        replicas = self.counters.shape[1]
        for _ in range(steps):
            batch = self.rng.integers(4, SLOTS + 1, replicas).astype(float)
            while batch.any():
                busy = batch > 0
                idle = 1 - (busy.sum() - busy) / (replicas - 1)
                tau = self.off * (self.fixed_s + 0.001 * batch) * np.exp(self.gain * idle)
                tau *= np.exp(self.rng.normal(0, 0.03, replicas))
                n = np.where(busy, np.floor(TICK_S / tau), 0.0)
                # a busy engine is busy all the time: the rest of an iteration comes along
                seconds = np.where(busy, n * tau, 0.0)
                self.counters += np.stack((n, seconds, n * batch, prompt * busy, drafted * busy))
                self.now_s += TICK_S
                sharing.follow(*self.seen())
                batch = np.maximum(batch - self.rng.integers(0, 4, replicas), 0.0)

    def seen(self):  # type: ignore[no-untyped-def]
        n, busy_s, sequences, prefills, drafts = self.counters
        table = replica_table(
            len(n),
            iterations=n.astype(np.int64),
            busy_s=busy_s.copy(),
            sequences_run=sequences.copy(),
            prefill_tokens=prefills.astype(np.int64),
            drafted_at=drafts[:, None].astype(np.int64),
        )
        seen = observation(NOTHING, table, self.now_s)
        return seen, forecast_of(seen, [])


def learned(gain: float, replicas: int = 8, seed: int = 0, **how: float) -> Sharing:
    sharing = Sharing()
    Engines(replicas, gain, seed, **how).run(sharing, steps=10)
    return sharing


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("replicas", [2, 8])
def test_engines_that_run_forty_percent_faster_alone_are_found(seed: int, replicas: int) -> None:
    sharing = learned(np.log(0.6), replicas, seed)
    assert sharing.speed_up(1, replicas) == pytest.approx(0.6, abs=0.06)
    assert sharing.speed_up(replicas, replicas) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_engines_that_share_nothing_are_found_to_share_nothing(seed: int) -> None:
    sharing = learned(0.0, seed=seed)
    assert sharing.speed_up(1, 8) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("off", [0.7, 1.4])
def test_a_model_that_is_off_everywhere_is_not_sharing(off: float) -> None:
    assert learned(0.0, off=off).speed_up(1, 8) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("fixed_s", [0.006, 0.016])
def test_a_model_that_is_off_where_batches_are_small_is_not_sharing(fixed_s: float) -> None:
    """Tails run small batches, and others are idle then."""
    assert learned(0.0, fixed_s=fixed_s).speed_up(1, 8) == pytest.approx(1.0, abs=0.05)


def test_the_other_idle_replicas_are_what_counts() -> None:
    sharing = Sharing(gain=-0.6)
    sharing._gram[0, 0] = FEWEST
    assert sharing.speed_up(5, 9) == pytest.approx(np.exp(-0.3))
    assert sharing.speed_up(1, 1) == 1.0


def test_nothing_follows_from_few_samples_or_from_engines_that_help_each_other() -> None:
    few = Sharing(gain=-0.6)
    few._gram[0, 0] = FEWEST - 1
    other = Sharing(gain=0.6)
    other._gram[0, 0] = 10 * FEWEST
    assert few.speed_up(1, 8) == other.speed_up(1, 8) == 1.0


@pytest.mark.parametrize("what", ["prompt", "drafted"])
def test_prefills_and_drafts_say_nothing(what: str) -> None:
    sharing = Sharing()
    Engines(8, -0.5).run(sharing, **{what: 3})
    assert sharing.gain == 0.0


def test_what_is_learned_is_bounded_and_forgotten() -> None:
    sharing = Sharing()
    Engines(8, -3.0).run(sharing, steps=10)
    assert -LARGEST <= sharing.gain < -0.5
    Engines(8, 0.0, seed=1).run(sharing, steps=60)
    assert sharing.speed_up(1, 8) == pytest.approx(1.0, abs=0.06)


def test_a_simulated_fleet_that_shares_nothing_gathers_nothing() -> None:
    """Tails of four steps, with the estimators' own forecasts."""
    policy = Adaptive()
    controller = steered_by(policy)
    config = load_config(None, ["placement.name=adaptive", "tick_s=1.0"], environ={})
    plan = FleetPlan(replace(load_profile("qwen3-8b-h100-tp1"), max_num_seqs=16), 4)
    world = World(plan)
    ticks = Ticks(world, controller, config, Options())
    for asked in made_up(Lengths(steps=4, groups=16, group_size=4), 0).steps:
        ticks.begin_step(asked.step)
        world.admit(asked)
        while world.waiting or world.running:
            ticks.once(0, Objective.BARRIER, 0)
            assert policy._open == ()
        world.new_weights(asked.step + 1)
    assert policy._sharing._gram[0, 0] > FEWEST
    assert policy._sharing.speed_up(1, 4) == pytest.approx(1.0, abs=0.05)


def test_a_state_that_was_saved_goes_on_the_same() -> None:
    sharing, engines = Sharing(), Engines(4, -0.4)
    engines.run(sharing, steps=2)
    again = Sharing.from_state(json.loads(json.dumps(sharing.state_dict(), allow_nan=False)))
    fork = Engines(4, -0.4)
    fork.counters, fork.now_s = engines.counters.copy(), engines.now_s
    fork.rng.bit_generator.state = engines.rng.bit_generator.state
    engines.run(sharing, steps=1)
    fork.run(again, steps=1)
    assert again.state_dict() == sharing.state_dict()
