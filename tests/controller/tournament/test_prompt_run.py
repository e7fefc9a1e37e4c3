"""Prompt policies in virtual time: same samples for all, every token counted, every step timed."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from support.real_data import real_data

from steersman.controller.calibration.tables import samples_from_csv
from steersman.controller.config import load_config
from steersman.controller.plugins import build
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import Asked
from steersman.controller.tournament._rollouts import Round, rolled_out
from steersman.controller.tournament.prompt_run import PromptRunResult, run_prompts
from steersman.controller.tournament.sample_banks import (
    DriftingSamples,
    RecordedSamples,
    SampleBank,
)
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.observation import Ints
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import (
    Candidates,
    FinishedGroups,
    PromptChoice,
    PromptRequest,
    Selection,
)
from steersman.policies.prompts.uniform import Uniform

PLAN = FleetPlan(
    HardwareProfile(
        name="small", gpu="none", model="none", tensor_parallel=1, fixed_s=0.01,
        sequence_s=0.0001, token_s=0.0, prefill_token_s=0.0, kv_capacity_tokens=0, max_num_seqs=64,
    ),
    replicas=2,
)  # fmt: skip


def run(
    policy: PromptPolicy | str,
    bank: SampleBank | None = None,
    steps: int = 3,
    groups: int = 4,
    candidates: int = 16,
    seed: int = 0,
    placement: str = "sticky_least_inflight",
) -> PromptRunResult:
    config = load_config(None, [f"placement.name={placement}", "tick_s=60.0"], environ={})
    played = build("policies.prompts", policy, {}) if isinstance(policy, str) else policy
    bank = bank or small_bank()
    return run_prompts(bank, played, PLAN, config, steps, groups, candidates, seed)


def small_bank(**options: float) -> DriftingSamples:
    given = {"prompts": 200, "median_tokens": 40.0, "max_new_tokens": 400, **options}
    return DriftingSamples(**given)


def outcomes(result: PromptRunResult) -> dict[int, list[tuple[int, float]]]:
    """Length and reward of every sample, by prompt, in the order they were asked for."""
    found: dict[int, list[tuple[int, float]]] = {}
    for asked in result.workload.steps:
        keys = asked.prompt_key[asked.group_row].tolist()
        for key, length, reward in zip(
            keys, asked.length.tolist(), asked.reward.tolist(), strict=True
        ):
            found.setdefault(key, []).append((length, reward))
    return found


@dataclass
class Watching(Uniform):
    """Remembers what it was offered."""

    seen: list[Candidates] = field(default_factory=list)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        self.seen.append(request.candidates)
        return super().choose(request, rng)


def test_every_policy_sees_the_same_samples_as_far_as_it_asks_for_them() -> None:
    bank = small_bank(rise=0.0, walk=0.0)
    plain = outcomes(run("uniform", bank))
    for name in ("speed_rl", "aero"):
        staged = outcomes(run(name, bank))
        both = staged.keys() & plain.keys()
        assert len(both) >= 8
        for key in both:
            count = min(len(staged[key]), len(plain[key]))
            assert staged[key][:count] == plain[key][:count]


def test_a_second_visit_brings_other_samples_of_the_prompt() -> None:
    bank = DriftingSamples.still(np.full(4, 0.5))
    visits = outcomes(run("uniform", bank, steps=2, groups=4))
    assert all(own[:8] != own[8:] for own in visits.values())


@pytest.mark.parametrize("placement", ["sticky_least_inflight", "tail_planner"])
def test_what_was_rolled_out_is_what_was_timed_whatever_the_placement(placement: str) -> None:
    result = run("speed_rl", placement=placement)
    assert result.samples == sum(len(asked) for asked in result.workload.steps)
    assert result.tokens == sum(step.tokens for step in result.replay.steps)
    rounds = [step.makespan_s for step in result.replay.steps]
    assert sum(step.rounds for step in result.steps) == len(rounds)
    assert sum(step.stages for step in result.steps) > len(rounds)
    assert result.seconds == pytest.approx(sum(rounds))
    assert all(step.seconds > 0.0 for step in result.steps)


def test_a_group_is_extended_when_its_own_samples_have_ended_not_when_all_have() -> None:
    length, none = np.array([1000, 10, 20, 500]), np.zeros(4, dtype=np.int64)
    asked = Asked(
        step=0, prompt_key=np.arange(2), group_row=np.array([0, 1, 1, 1]), prompt_tokens=none + 5,
        length=length, max_new_tokens=none + 2000, censored=np.zeros(4, dtype=np.bool_),
        reward=np.zeros(4), images=none, turns=Turns.single(length),
    )  # fmt: skip
    config = load_config(None, ["placement.name=sticky_least_inflight", "tick_s=0.1"], environ={})
    timed = rolled_out([Round(0, asked, np.array([0, 0, 0, 1]))], PLAN, config)
    order = np.argsort(timed.attempts.trajectory)
    begin, end = timed.attempts.start_s[order], timed.attempts.end_s[order]
    assert end[2] <= begin[3] <= end[2] + 0.1
    assert end[3] < end[0] == pytest.approx(1000 * 0.0101, rel=0.03)
    assert timed.steps[0].makespan_s == pytest.approx(end[0], abs=0.1)
    assert timed.steps[0].tokens == 1530


def test_the_same_seed_repeats_a_run_and_another_does_not() -> None:
    assert run("dynamic_sampling").steps == run("dynamic_sampling").steps
    assert run("dynamic_sampling").steps != run("dynamic_sampling", seed=1).steps


def test_a_trainers_default_takes_one_round_a_step_and_visits_every_prompt_once_an_epoch() -> None:
    result = run("uniform", DriftingSamples.still(np.full(12, 0.5)), steps=6, groups=4)
    assert [step.rounds for step in result.steps] == [1] * 6
    assert {len(own) for own in outcomes(result).values()} == {2 * 8}
    assert result.distinct_prompts == 12
    assert result.effective_share == pytest.approx(1.0)


def test_dynamic_sampling_fills_every_batch_and_pays_with_rounds_tokens_and_time() -> None:
    plain, refilled = run("uniform", steps=5), run("dynamic_sampling", steps=5)
    assert [step.informative for step in refilled.steps] == [4] * 5
    assert refilled.informative_groups > plain.informative_groups
    assert sum(step.rounds for step in refilled.steps) > 5
    assert refilled.tokens > plain.tokens
    assert refilled.seconds > plain.seconds


def test_replay_makes_a_group_that_teaches_cheaper_than_refilling_does() -> None:
    replayed, refilled = run("popo", steps=8, groups=8), run("dynamic_sampling", steps=8, groups=8)
    assert sum(step.replayed for step in replayed.steps) > 0
    assert replayed.seconds_per_informative_group < refilled.seconds_per_informative_group
    assert replayed.tokens_per_informative_group < refilled.tokens_per_informative_group


def test_a_subset_that_is_trained_on_changes_neither_rollout_nor_informative_groups() -> None:
    plain, subset = run("uniform"), run("pods")
    assert (subset.seconds, subset.tokens) == (plain.seconds, plain.tokens)
    assert subset.informative_groups == plain.informative_groups
    trained = [sum(step.samples_trained for step in each.steps) for each in (subset, plain)]
    assert trained == [3 * 4 * 2, 3 * 4 * 8]


def test_a_cap_below_the_trainers_cuts_lengths_and_what_it_cuts_has_failed() -> None:
    bank = small_bank(rise=0.0, walk=0.0)
    cut, whole = outcomes(run("horizon_schedule", bank)), outcomes(run("uniform", bank))
    pairs = [pair for key, own in cut.items() for pair in zip(own, whole[key], strict=True)]
    short = [pair for pair in pairs if pair[0] != pair[1]]
    assert short
    assert all(length < full and reward == 0.0 for (length, reward), (full, _) in short)


def test_candidates_are_described_by_what_was_learned_of_them() -> None:
    rates, policy = np.array([0.001] * 4 + [0.5] * 4 + [0.999] * 4), Watching()
    run(policy, DriftingSamples.still(rates), steps=8, groups=12, candidates=12)
    first, last = policy.seen[0], policy.seen[-1]
    assert np.isnan(first.mean_tokens).all()
    assert np.ptp(first.pass_probability) == 0.0
    assert np.isfinite(last.mean_tokens).all()
    assert np.abs(last.pass_probability - rates[last.prompt_key]).max() < 0.2
    sure = np.abs(rates[last.prompt_key] - 0.5) > 0.4
    assert last.degenerate_probability[sure].min() > 0.8
    assert last.degenerate_probability[~sure].max() < 0.2


def test_a_policy_that_chooses_nothing_meets_new_candidates_in_the_next_step() -> None:
    class Nobody(Watching):
        def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
            self.seen.append(request.candidates)
            none = np.zeros(0, dtype=np.int64)
            return PromptChoice.of(request, none, np.zeros(0), "nobody")

    policy = Nobody()
    result = run(policy, DriftingSamples.still(np.full(30, 0.5)), steps=3, candidates=10)
    assert {key for seen in policy.seen for key in seen.prompt_key.tolist()} == set(range(30))
    assert result.samples == 0
    assert result.seconds_per_informative_group == float("inf")


def test_unequal_inclusion_probabilities_lower_the_effective_share() -> None:
    class Uneven(Uniform):
        def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
            return PromptChoice.of(request, np.arange(4), np.array([1.0, 1.0, 1.0, 0.1]), "uneven")

    result = run(Uneven())
    assert result.effective_share == pytest.approx(13.0**2 / 103.0 / 4)


def test_a_policy_that_never_accepts_ends_its_step_all_the_same() -> None:
    class Picky(Uniform):
        def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
            none, nobody = (
                np.zeros(len(groups), np.bool_),
                np.zeros(len(groups.group_row), np.bool_),
            )
            return Selection(none, nobody)

    step = run(Picky(), steps=1, groups=1).steps[0]
    assert (step.rounds, step.groups_accepted, step.samples_trained) == (20, 0, 0)


def test_a_policy_that_extends_for_ever_is_named_as_such() -> None:
    class Endless(Uniform):
        def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
            return np.ones(len(groups), dtype=np.int64)

    with pytest.raises(FleetError, match="extended 200 times"):
        run(Endless(), steps=1, groups=1)


def test_the_model_gets_better_and_harder_prompts_write_more() -> None:
    bank = DriftingSamples(prompts=500)
    rates = [bank.pass_rate(version).mean() for version in (0, 50, 200)]
    assert rates == sorted(rates)
    assert rates[-1] - rates[0] > 0.1
    rng = np.random.default_rng(0)
    length = np.array([np.median(bank.draw(key, 30, 0, rng).length) for key in range(500)])
    hard = bank.pass_rate(0) < 0.1
    assert length[hard].mean() > 1.5 * length[~hard].mean()


def test_the_first_samples_of_a_larger_draw_are_those_of_a_smaller_one(tmp_path: Path) -> None:
    banks: list[SampleBank] = [small_bank(), recorded(tmp_path)]
    for bank in banks:
        few, many = (bank.draw(1, count, 3, np.random.default_rng(5)) for count in (4, 9))
        assert few.length.tolist() == many.length[:4].tolist()
        assert few.reward.tolist() == many.reward[:4].tolist()


def recorded(folder: Path) -> RecordedSamples:
    path = folder / "samples.csv"
    lines = [f"{key},{10 * key + sample},{sample % 2}" for key in (1, 2) for sample in range(4)]
    path.write_text("prompt_id,length,reward\n" + "\n".join(lines) + "\n3,50,\n", encoding="utf-8")
    return RecordedSamples(samples_from_csv(path), group_size=4)


def test_recorded_samples_are_drawn_of_their_own_prompt_and_unrewarded_ones_never(
    tmp_path: Path,
) -> None:
    bank = recorded(tmp_path)
    assert bank.keys.tolist() == [0, 1]
    drawn = bank.draw(1, 400, 0, np.random.default_rng(0))
    assert set(zip(drawn.length.tolist(), drawn.reward.tolist(), strict=True)) == {
        (20, 0.0), (21, 1.0), (22, 0.0), (23, 1.0),
    }  # fmt: skip


def test_samples_without_rewards_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("prompt_id,length\n1,10\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="no rewards"):
        RecordedSamples(samples_from_csv(path), group_size=4)


def test_real_samples_of_a_small_model_fill_batches() -> None:
    samples = samples_from_csv(real_data("multisample_rg_llama3b_rl_aime24_amc23_n50.csv.gz"))
    result = run("dynamic_sampling", RecordedSamples(samples, group_size=8), steps=2)
    assert [step.informative for step in result.steps] == [4, 4]
