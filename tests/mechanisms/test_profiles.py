"""Hardware profiles: what is shipped, what a file may hold, and what a fit recovers."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.mechanisms.simulated.batch_run import batch_run_s, lengths_from_summary
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.fit import (
    DecodeRows,
    PrefillRows,
    fit_decode,
    fit_prefill,
    relative_least_squares,
)
from steersman.mechanisms.simulated.memory import MODELS, kv_capacity_tokens
from steersman.mechanisms.simulated.profile import (
    HardwareProfile,
    load_profile,
    profile_names,
    save_profile,
)
from steersman.mechanisms.simulated.spec import Trajectories

DENSE = HardwareProfile(
    name="dense",
    gpu="gpu",
    model="model",
    tensor_parallel=1,
    fixed_s=6e-3,
    sequence_s=10e-6,
    token_s=50e-9,
    prefill_token_s=20e-6,
    kv_capacity_tokens=0,
)
MIXTURE = replace(
    DENSE, name="mixture", batch_points=(1, 8, 64, 512), batch_point_s=(4e-3, 9e-3, 20e-3, 30e-3)
)


def grid(profile: HardwareProfile) -> DecodeRows:
    batch, context = (
        values.ravel().astype(np.float64)
        for values in np.meshgrid([1, 2, 8, 32, 64, 128, 512], [512, 2048, 8192])
    )
    return DecodeRows(batch, batch * context, profile.iteration_s(batch, batch * context))


@pytest.mark.parametrize("name", profile_names())
class TestShipped:
    def test_it_loads_under_its_own_name_and_says_where_it_is_from(self, name: str) -> None:
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source
        assert profile.overhead_source

    def test_times_are_of_a_gpu_and_rise_with_batch_and_context(self, name: str) -> None:
        profile = load_profile(name)
        batch = np.arange(1.0, profile.batch_range[1] + 100)
        times = profile.iteration_s(batch, batch * 2048)
        assert (np.diff(times) > 0).all()
        assert 1e-3 < times[0] < 50e-3
        assert profile.token_s > 0
        assert 1e-6 < profile.prefill_token_s < 1e-3

    def test_one_sequence_reads_the_weights_no_faster_than_the_memory_can(self, name: str) -> None:
        profile = load_profile(name)
        if profile.batch_points:
            return  # a mixture of experts reads only some of its weights
        weights = MODELS[profile.model].weight_bytes / profile.tensor_parallel
        assert 0.3e12 < weights / profile.iteration_s(1.0, 0.0) < 8e12

    def test_the_kv_cache_holds_a_long_answer_and_the_fit_stayed_within_it(self, name: str) -> None:
        profile = load_profile(name)
        derived = kv_capacity_tokens(profile.gpu, profile.model, profile.tensor_parallel)
        assert profile.kv_capacity_tokens == derived
        assert profile.kv_capacity_tokens > 32_768
        assert profile.context_range[1] <= profile.kv_capacity_tokens

    def test_the_fit_is_within_4_and_10_percent(self, name: str) -> None:
        profile = load_profile(name)
        if "rescaled" not in profile.source:
            assert profile.fit_error_median is not None
            assert profile.fit_error_p90 is not None
            assert profile.fit_error_median < 0.04
            assert profile.fit_error_p90 < 0.10


def test_at_least_6_pairs_of_gpu_and_model_are_shipped() -> None:
    profiles = [load_profile(name) for name in profile_names()]
    assert len({(profile.gpu, profile.model) for profile in profiles}) >= 6
    assert len({profile.gpu for profile in profiles}) >= 5


def test_a_saved_profile_loads_as_it_was(tmp_path: Path) -> None:
    for profile in (DENSE, MIXTURE, load_profile(profile_names()[0])):
        save_profile(profile, tmp_path / "own.json")
        assert load_profile(tmp_path / "own.json") == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixd_s": 1.0}, "unknown profile key 'fixd_s'; did you mean 'fixed_s'?"),
        ({"token_s": -1.0}, "token_s is -1.0; valid: 0 or more"),
        ({"token_s": "fast"}, "Expected `float`, got `str` - at `$.token_s`"),
        ({"fixed_s": 0.0, "sequence_s": 0.0}, "an iteration takes no time"),
        ({"batch_points": [1, 2], "batch_point_s": [1.0]}, "are equally long"),
        ({"batch_points": [1, 2], "batch_point_s": [2.0, 1.0]}, "batch_point_s never decrease"),
        ({"batch_points": [2, 2], "batch_point_s": [1.0, 1.0]}, "batch_points increase"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(asdict(DENSE) | change))
    with pytest.raises(InvalidInputError) as caught:
        load_profile(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'qwen3-8b-h20-tp2'"):
        load_profile("qwen3-8b-h20")


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("tau")
    with pytest.raises(InvalidInputError, match="is not JSON"):
        load_profile(tmp_path / "text.json")


def test_a_table_is_linear_between_its_points_and_beyond_the_last() -> None:
    assert MIXTURE.batch_s(8.0) == pytest.approx(9e-3)
    assert MIXTURE.batch_s(36.0) == pytest.approx(14.5e-3)
    assert MIXTURE.batch_s(960.0) == pytest.approx(40e-3)


def test_the_core_gets_the_overhead_in_its_line() -> None:
    profile = replace(DENSE, overhead_s=1e-3, overhead_sequence_s=5e-6)
    spec = profile.replica_spec()
    assert spec.fixed_s + 3 * spec.sequence_s == pytest.approx(profile.batch_s(3.0))
    assert spec.kv_capacity_tokens == np.inf


@pytest.mark.parametrize("profile", [MIXTURE, load_profile("qwen3-30b-a3b-h100-tp2")])
def test_the_core_runs_a_table_as_it_was_fitted(profile: HardwareProfile) -> None:
    profile = replace(profile, overhead_s=1e-3, overhead_sequence_s=5e-6, prefill_token_s=0.0)
    for batch in (1, 5, 64, 200):
        core = SimulatedCore()
        replica = core.add_replica(profile.replica_spec())
        rows = core.add(Trajectories.of_one_turn(np.full(batch, 100.0)))
        core.submit(rows, np.full(batch, replica))
        core.advance(math.inf)
        kv = batch * np.arange(100) + batch / 2  # in the middle of each token
        expected = profile.iteration_s(np.full(100, float(batch)), kv).sum()
        assert core.now_s == pytest.approx(expected, rel=1e-9)
        assert profile.replica_spec().sequence_s == 0


def test_the_core_pays_a_profiles_prefill_step() -> None:
    profile = replace(MIXTURE, prefill_step_s=2e-3)
    core = SimulatedCore()
    rows = core.add(Trajectories.of_one_turn([1.0], prompt_tokens=100.0))
    core.submit(rows, [core.add_replica(profile.replica_spec())])
    core.advance(math.inf)
    expected = profile.prefill_s(100.0) + profile.iteration_s(1.0, 100.5)
    assert core.now_s == pytest.approx(expected, rel=1e-9)


def test_a_fit_recovers_the_line_it_was_given() -> None:
    fitted = fit_decode(grid(DENSE))
    assert (fitted.fixed_s, fitted.sequence_s, fitted.token_s) == pytest.approx(
        (DENSE.fixed_s, DENSE.sequence_s, DENSE.token_s), rel=1e-4
    )
    assert fitted.points == ()
    assert fitted.errors.max() < 1e-4


def test_a_concave_batch_cost_becomes_a_table_and_only_that() -> None:
    fitted = fit_decode(grid(MIXTURE))
    assert fitted.points == (1, 2, 8, 32, 64, 128, 512)
    assert fitted.errors.max() < 1e-3
    assert fitted.token_s == pytest.approx(MIXTURE.token_s, rel=1e-2)
    assert fitted.point_s == pytest.approx(
        MIXTURE.batch_s(np.array(fitted.points, dtype=np.float64)), rel=1e-2
    )


def test_noise_alone_makes_no_table() -> None:
    rows, rng = grid(DENSE), np.random.default_rng(0)
    for _ in range(10):
        noise = np.exp(rng.normal(0.0, 0.3, len(rows.batch)))
        fitted = fit_decode(replace(rows, seconds=rows.seconds * noise))
        assert fitted.points == ()
        assert np.quantile(fitted.errors, 0.9) > 0.1


def test_a_table_never_falls_though_the_measurements_do() -> None:
    rows = grid(MIXTURE)
    noisy = replace(rows, seconds=np.where(rows.batch == 32, 0.5, 1.0) * rows.seconds)
    fitted = fit_decode(noisy)
    assert fitted.points
    assert (np.diff(fitted.point_s) >= 0).all()


def test_errors_are_relative_so_that_short_iterations_count_as_much() -> None:
    # 1 and 100 seconds for the same load: the relative optimum is near the small one.
    solved, _ = relative_least_squares(np.ones((2, 1)), np.array([1.0, 100.0]))
    assert solved[0] == pytest.approx(1.01 / 1.0001)


def test_no_coefficient_is_negative() -> None:
    batch = np.array([1.0, 2.0, 4.0, 8.0])
    fitted = fit_decode(DecodeRows(batch, 100 * batch, 2e-3 - 1e-6 * batch))
    assert min(fitted.fixed_s, fitted.sequence_s, fitted.token_s) >= 0


def test_rows_that_no_kv_cache_holds_are_left_out() -> None:
    rows = grid(DENSE)
    assert rows.within(20_000).kv_tokens.max() <= 20_000
    assert len(rows.within(0).batch) == len(rows.batch)
    with pytest.raises(InvalidInputError, match="1 decode rows fit the KV cache; 3 are the least"):
        fit_decode(rows.within(600))


def test_prefill_is_fitted_beyond_what_the_iteration_takes_anyway() -> None:
    tokens = np.array([128.0, 512.0, 2048.0, 8192.0, 32768.0])
    seconds = 6e-3 + 1e-3 + 20e-6 * tokens
    fitted = fit_prefill(PrefillRows(tokens, seconds), 6e-3)
    assert (fitted.step_s, fitted.token_s) == pytest.approx((1e-3, 20e-6), rel=1e-4)
    assert fitted.prompt_tokens.max() == 8192


def test_a_batch_run_is_the_sum_of_its_iterations() -> None:
    profile = replace(MIXTURE, knee_s=1.0, kv_capacity_tokens=3000)
    lengths, prompts = np.array([3, 7, 7, 50]), np.array([100.0, 900.0, 900.0, 900.0])
    total = profile.prefill_s(2800.0)
    for j in range(1, 51):
        alive = lengths >= j
        total += profile.iteration_s(float(alive.sum()), float((prompts[alive] + j).sum()))
    assert batch_run_s(profile, prompts, lengths) == pytest.approx(total, rel=1e-12)


def test_a_batch_run_of_the_line_is_m_times_the_longest_plus_c_times_the_sum() -> None:
    profile = replace(DENSE, token_s=0.0, prefill_token_s=0.0)
    lengths = np.random.default_rng(0).integers(1, 4000, 200)
    expected = profile.fixed_s * lengths.max() + profile.sequence_s * lengths.sum()
    assert batch_run_s(profile, np.zeros(200), lengths) == pytest.approx(expected, rel=1e-12)


def test_a_group_shares_its_prompts_prefill() -> None:
    lengths, prompts = np.full(8, 10), np.full(8, 100.0)
    alone, shared = (batch_run_s(DENSE, prompts, lengths, size) for size in (1, 8))
    assert alone - shared == pytest.approx(700 * DENSE.prefill_token_s)


def test_a_run_of_more_than_one_wave_is_refused() -> None:
    lengths, prompts = np.full(8, 10), np.full(8, 100.0)
    with pytest.raises(InvalidInputError, match="8 sequences at once; dense runs 4"):
        batch_run_s(replace(DENSE, max_num_seqs=4), prompts, lengths)
    with pytest.raises(InvalidInputError, match="880 tokens of context at once; dense holds 500"):
        batch_run_s(replace(DENSE, kv_capacity_tokens=500), prompts, lengths)


@pytest.mark.parametrize("spread", [None, 0.8])
def test_made_up_lengths_have_the_mean_and_the_longest_of_the_log(spread: float | None) -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        lengths, deviation = lengths_from_summary(1800.0, 8192, 128, rng, spread)
        assert lengths.mean() == pytest.approx(1800.0, rel=2e-3)
        assert lengths.max() == 8192
        assert 0.4 < deviation < 1.2 if spread is None else deviation == spread
