"""What an engine's metrics page says, under all names that it goes by."""

import re
from pathlib import Path

import pytest
from support.attempts import carried_out, end_of, until
from support.fake_vllm import FakeVllm
from support.plain_dialect import plain_ask, request_of

from steersman.mechanisms.http_vllm.fleet import HttpFleet, HttpSettings
from steersman.mechanisms.http_vllm.scrape import Counters, Page, read_page

PAGE = (Path(__file__).parents[2] / "data" / "vllm_metrics.txt").read_text()
"""Of a vLLM 0.32 that had answered 193 requests; most of its buckets are left out."""
NAMES = {
    "vllm:": PAGE,
    "vllm_": PAGE.replace("vllm:", "vllm_"),
    "ray_vllm_": PAGE.replace("vllm:", "ray_vllm_").replace(
        'engine="0"', 'ReplicaId="r",WorkerId="w",engine="0"'
    ),
    "without _total": re.sub(r"(?m)_total(?=\{)", "", PAGE),
}


@pytest.mark.parametrize("style", NAMES)
def test_a_real_page_is_read_under_every_name(style: str) -> None:
    page = read_page(NAMES[style].encode())
    assert page["generation_tokens"] == 5463
    assert page["prompt_tokens"] == 4172
    assert page["prompt_tokens_cached"] == page["prefix_cache_hits"] == 1920
    assert page["iteration_tokens_total_count"] == 5458
    assert page["num_requests_running"] == page["kv_cache_usage_perc"] == 0
    assert page["nothing_of_the_kind"] == 0
    assert page.kv_capacity_tokens == 65536
    assert page.born_s == pytest.approx(1.796e9, rel=1e-3)


def test_engines_of_one_page_are_added_up_and_their_use_averaged() -> None:
    page = read_page(
        b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",engine="0"} 1.0\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",engine="1"} 1.0\n'
        b"vllm:broken nothing\nvllm:half"
    )
    assert page["num_requests_running"] == 7
    assert page["kv_cache_usage_perc"] == pytest.approx(0.3)
    assert page.kv_capacity_tokens == 160


def _page(iterations: float, tokens: float, running: float, waiting: float = 0) -> Page:
    return Page(
        {
            "iteration_tokens_total_count": iterations,
            "generation_tokens": tokens,
            "num_requests_running": running,
            "num_requests_waiting": waiting,
            "num_preemptions": iterations // 10,
        }
    )


def _stats(counters: Counters, own: int = 0) -> tuple[int, float, float, int]:
    stats = counters.stats(own, 256, 0)
    return stats.iterations, stats.busy_s, stats.sequences_run, stats.preemptions


def test_only_times_with_work_at_both_ends_count() -> None:
    counters = Counters()
    for now_s, page in (
        (0.0, _page(1000, 5000, 0)),
        (1.0, _page(1030, 5120, 4)),  # began to work in between
        (2.0, _page(1130, 5520, 4)),  # 100 iterations of 4 in a second
        (3.0, _page(1150, 5600, 0)),  # ended in between
        (9.0, _page(1150, 5600, 0)),
    ):
        counters.take(page, 0, now_s, paused=False)
    assert _stats(counters) == (100, 1.0, 400.0, 15)


def test_paused_time_is_no_work() -> None:
    counters = Counters()
    counters.take(_page(0, 0, 4), 0, 0.0, paused=False)
    counters.take(_page(10, 40, 4), 0, 1.0, paused=True)
    counters.take(_page(20, 80, 4), 0, 5.0, paused=False)
    counters.take(_page(120, 480, 4), 0, 6.0, paused=False)
    assert _stats(counters)[:3] == (100, 1.0, 400.0)


def test_sums_go_on_when_the_engine_starts_anew() -> None:
    counters = Counters()
    counters.take(_page(0, 0, 4), 0, 0.0, paused=False)
    counters.take(_page(100, 400, 4), 0, 1.0, paused=False)
    counters.take(_page(50, 200, 4), 0, 2.0, paused=False)
    counters.take(_page(150, 600, 4), 0, 3.0, paused=False)
    assert _stats(counters) == (200, 2.0, 800.0, 20)


def test_what_was_sent_since_the_last_look_counts() -> None:
    counters = Counters()
    counters.take(_page(0, 0, running=6), own=4, now_s=0.0, paused=False)  # two of somebody else
    stats = counters.stats(own=7, max_num_seqs=8, weight_version=0)
    assert (stats.running, stats.waiting) == (8, 1)
    stats = counters.stats(own=1, max_num_seqs=8, weight_version=0)
    assert (stats.running, stats.waiting) == (3, 0)
    counters.take(_page(0, 0, running=4, waiting=3), own=7, now_s=1.0, paused=False)
    stats = counters.stats(own=9, max_num_seqs=8, weight_version=0)
    assert (stats.running, stats.waiting) == (4, 5), "a queue shows that the batch is full"
    stats = counters.stats(own=2, max_num_seqs=8, weight_version=0)
    assert (stats.running, stats.waiting) == (2, 0)


def test_an_idle_engine_holds_nothing_whatever_its_last_iteration_held() -> None:
    counters = Counters()
    for running, own, share in ((1, 0, 0.9), (0, 1, 0.9), (0, 0, 0.0)):
        page = Page({"num_requests_running": running, "kv_cache_usage_perc": 0.9})
        counters.take(page, own, 0.0, paused=False)
        assert counters.stats(own, 256, 0).kv_cache_usage == share


@pytest.mark.parametrize("style", ["vllm:", "vllm_", "ray_vllm_"])
async def test_a_fleet_reports_what_its_engines_do(style: str) -> None:
    fake = FakeVllm(token_s=0.001, max_num_seqs=4, metric_style=style)  # type: ignore[arg-type]
    async with fake as url:
        fleet = await HttpFleet.attach([url], HttpSettings(scrape_s=0.02))
        assert fleet.stats("engine-0").reported_s > 0, "the first look is part of the attachment"
        attempts = [
            fleet.start(
                "engine-0", request_of(plain_ask([n], 800, body={"ignore_eos": True}), f"{n}")
            )
            for n in range(1, 7)
        ]
        assert fleet.stats("engine-0").running == 4
        assert fleet.stats("engine-0").waiting == 2
        await until(lambda: fleet.engine("engine-0").gauges["num_requests_waiting"] == 2)
        assert fleet.stats("engine-0").running == 4
        assert 0 < fleet.stats("engine-0").kv_cache_usage < 1
        for attempt in attempts:
            await end_of(attempt)
        # a page that was on its way while the last one ended still counts it
        await until(lambda: fleet.stats("engine-0").running == 0)
        stats = fleet.stats("engine-0")
        assert stats.waiting == 0
        assert stats.iterations > 100
        assert stats.busy_s / stats.iterations == pytest.approx(0.001, rel=0.5)
        assert 2 <= stats.sequences_run / stats.iterations <= 4.01
        await fleet.close()


async def test_an_engine_without_metrics_is_served_all_the_same() -> None:
    fake = FakeVllm(token_s=0.001, metrics=False)
    async with fake as url:
        settings = HttpSettings(scrape_s=0.02, stall_timeout_s=0.2)
        fleet = await HttpFleet.attach([url], settings)
        ask = plain_ask([5], 800, body={"ignore_eos": True, "stream_interval": 10_000})
        assert len((await carried_out(fleet, "engine-0", ask)).tokens) == 800
        assert fleet.is_alive("engine-0")
        await fleet.close()
