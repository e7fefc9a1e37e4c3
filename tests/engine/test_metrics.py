"""The counters, fed by hand: vLLM's base class is replaced, as it takes 8 s to import."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from steersman.mechanisms.drafting.source import DraftClass
from steersman.mechanisms.ray_vllm.draft_control import DraftControl
from steersman.mechanisms.ray_vllm.draft_counters import NO_SLOT, DraftCounters


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = "steersman.mechanisms.ray_vllm.metrics"
    loggers: Any = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object
    for package in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


class Engine:
    """The counters under test, a clock and the front's count of unfinished requests."""

    def __init__(self, metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.unfinished = 100.0, 0
        monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.drafts = DraftControl(4, dict)
        self.counters = metrics.Counters(lambda: self.unfinished, self.drafts)

    def step(
        self,
        seconds: float,
        running: int,
        finished: int = 0,
        preempted: int = 0,
        prefilled: int = 0,
        drafts: Any = None,
    ) -> None:
        self.now_s += seconds
        scheduler = SimpleNamespace(
            num_running_reqs=running,
            num_waiting_reqs=0,
            num_skipped_waiting_reqs=0,
            kv_cache_usage=running / 10,
            prefix_cache_stats=None,
            spec_decoding_stats=drafts,
        )
        iteration = SimpleNamespace(
            finished_requests=[None] * finished,
            num_preempted_reqs=preempted,
            prompt_token_stats=SimpleNamespace(computed=prefilled),
        )
        self.counters.record(scheduler, iteration)


@pytest.fixture
def engine(metrics: Any, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(metrics, monkeypatch)


def test_idle_and_paused_time_is_not_busy_time(engine: Engine) -> None:
    counters, engine.unfinished = engine.counters, 4
    engine.step(5.0, running=4)  # the first of a busy time: its length is not known
    engine.step(0.25, running=4)
    engine.unfinished = 0
    engine.step(0.25, running=0, finished=4)
    engine.unfinished = 2
    engine.step(50.0, running=2)
    engine.step(0.5, running=2)
    counters.pause()
    engine.now_s += 30.0
    counters.resume()
    engine.step(0.5, running=2)
    engine.step(0.5, running=2)
    assert counters.busy_s == 0.25 + 0.25 + 0.5 + 0.5
    assert counters.iterations == 4
    assert counters.sequences_run == 4 + 4 + 2 + 2


def test_a_late_report_of_what_was_aborted_does_not_make_an_idle_engine_busy(
    engine: Engine,
) -> None:
    engine.unfinished = 32
    engine.step(0.25, running=32)
    engine.unfinished = 0  # all aborted at the front; the engine's core has not heard of it
    engine.counters.idle()
    engine.step(0.25, running=32)
    stats = engine.counters.stats(weight_version=1)
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert engine.counters.silent_s() == 0.0
    engine.unfinished = 1
    engine.step(60.0, running=1)
    assert engine.counters.busy_s == 0.0


def test_preemptions_by_a_weight_push_are_not_counted_and_others_are(engine: Engine) -> None:
    engine.unfinished = 4
    engine.step(0.25, running=3)
    engine.counters.pause()
    engine.counters.resume()
    engine.step(0.25, running=4, preempted=2)
    engine.step(0.25, running=4, preempted=3)
    assert engine.counters.preemptions == 2


def test_prompt_tokens_count_where_the_iteration_does(engine: Engine) -> None:
    """The first iteration after idling has no time of its own; its prefill would go unpaid."""
    engine.unfinished = 2
    engine.step(5.0, running=1, prefilled=100)
    engine.step(0.25, running=2, prefilled=30)
    assert engine.counters.stats(weight_version=0).prefill_tokens == 30


def test_drafts_add_up_by_position_and_an_old_report_stays_as_it_was(engine: Engine) -> None:
    engine.unfinished = 2

    def drafts(drafted: list[int], accepted: list[int]) -> SimpleNamespace:
        return SimpleNamespace(
            num_draft_tokens_per_pos=drafted, num_accepted_tokens_per_pos=accepted
        )

    engine.step(0.25, running=2, drafts=drafts([2, 1], [1, 0]))
    before = engine.counters.stats(weight_version=0)
    engine.step(0.25, running=2, drafts=drafts([2, 2], [2, 1]))
    after = engine.counters.stats(weight_version=0)
    assert (before.drafted_at, before.accepted_at) == ([2, 1], [1, 0])
    assert (after.drafted_at, after.accepted_at) == ([4, 3], [3, 1])


def test_an_engine_that_has_work_and_says_nothing_is_silent(engine: Engine) -> None:
    engine.unfinished = 1
    engine.counters.work_arrives()
    engine.now_s += 7.0
    assert engine.counters.silent_s() == 7.0
    engine.counters.pause()
    assert engine.counters.silent_s() == 0.0


def test_what_the_proposer_counted_and_the_engine_was_told_is_in_the_report(engine: Engine) -> None:
    report = engine.counters.stats(0)
    assert (report.draft_tokens, report.draft_classes) == (0, {})
    engine.drafts.default = 3
    engine.drafts.counters = DraftCounters.private(4)
    engine.drafts.counters.add(DraftClass.OTHER, NO_SLOT, 3, 1)
    engine.drafts.counters.asked += (5, 4, 4, 0)
    report = engine.counters.stats(0)
    assert (report.draft_tokens, report.draft_classes) == (3, {"other": [1, 3, 1]})
    assert report.asked_at == [5, 4, 4, 0]
