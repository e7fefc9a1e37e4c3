"""Measuring a live fleet: from counters to a profile."""

from dataclasses import replace

import pytest
from support.counting_fleet import CountingFleet

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.simulated.live import (
    TOKENS,
    Point,
    Sample,
    Samples,
    measure,
    plan,
    profile_of_samples,
)
from steersman.mechanisms.simulated.profile import HardwareProfile

TRUE = HardwareProfile(
    name="true",
    gpu="gpu",
    model="model",
    tensor_parallel=1,
    fixed_s=4e-3,
    sequence_s=300e-6,
    token_s=2e-6,
    prefill_token_s=50e-6,
    kv_capacity_tokens=4096,
    max_num_seqs=8,
)
UNKNOWN = replace(
    TRUE, name="measured", fixed_s=1.0, sequence_s=0.0, token_s=0.0, prefill_token_s=0.0
)


async def test_a_measured_profile_is_the_fleets_own() -> None:
    fleet, shares = CountingFleet(TRUE, max_model_len=512), list[float]()
    try:
        profile = await measure(fleet, UNKNOWN, progress=shares.append)
    finally:
        await fleet.close()
    for batch, context in ((1.0, 100.0), (4.0, 300.0), (8.0, 300.0)):
        assert profile.iteration_s(batch, batch * context) == pytest.approx(
            TRUE.iteration_s(batch, batch * context), rel=0.02
        )
    assert profile.prefill_s(200.0) == pytest.approx(TRUE.prefill_s(200.0), rel=0.05)
    assert profile.batch_range == (1, 8)
    assert profile.fit_error_median is not None
    assert profile.fit_error_median < 0.02
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_samples_with_prompts_in_them_are_dropped_and_none_left_is_an_error() -> None:
    samples = Samples()
    samples.add(Point(1, 32), Sample(64, 0.3, 64, prefill_tokens=32))
    samples.add(Point(1, 32), Sample(0, 0.0, 0, prefill_tokens=0))
    with pytest.raises(FleetError, match="who else uses the fleet"):
        profile_of_samples(samples, UNKNOWN)


def test_a_stall_in_one_round_changes_nothing() -> None:
    samples = Samples()
    for busy_s in (0.30, 0.31, 5.0):
        samples.add(Point(4, 32), Sample(60, busy_s, 240, prefill_tokens=0))
    rows = samples.decode_rows()
    assert rows.batch.tolist() == [4]
    assert rows.kv_tokens.tolist() == [4 * (32 + TOKENS / 2 + 1)]
    assert rows.seconds.tolist() == [0.31 / 60]


def test_no_point_fills_the_kv_cache_or_the_model_length() -> None:
    points = plan(max_num_seqs=48, max_model_len=1024, kv_capacity_tokens=10_000)
    decode = [point for point in points if point.batch]
    assert {point.batch for point in decode} == {1, 2, 4, 8, 16, 32}
    assert max(point.batch * (point.prompt + TOKENS) for point in decode) <= 8000
    assert max(point.prompt for point in points) + TOKENS < 1024
    assert [point.prompt for point in points if not point.batch] == [33, 129, 513]
    assert len(set(points)) == len(points)


def test_an_engine_without_room_for_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"193 has no room .* 194 or more"):
        plan(max_num_seqs=8, max_model_len=193, kv_capacity_tokens=0)
    assert Point(1, 33) in plan(max_num_seqs=1, max_model_len=194, kv_capacity_tokens=0)
