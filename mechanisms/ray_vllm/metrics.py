"""Counters of one engine, taken from every iteration's statistics without asking the engine.

vLLM calls `record` in the front process once per iteration.  An iteration's time is the time since
the one before, if the engine had work all the while; the first iteration after an idle or paused
time has no such time and is not counted, so that busy_s / iterations is a mean iteration and
sequences_run / iterations its mean batch.
"""

import time
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from steersman.mechanisms.fleet import ReplicaStats
from steersman.mechanisms.ray_vllm.draft_control import DraftControl


class Counters(StatLoggerBase):  # type: ignore[misc]
    """Sums since the engine started, and the last snapshot."""

    def __init__(self, unfinished: Callable[[], int], drafts: DraftControl) -> None:
        self._unfinished = unfinished
        self._drafts = drafts
        self._last_s: float | None = None
        self._paused = False
        self._forgiven = 0
        self._awake_s = time.monotonic()
        self.running = self.waiting = 0
        self.kv_cache_usage = 0.0
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.prefill_tokens = self.iterations = 0
        self.drafted_at: list[int] = []
        self.accepted_at: list[int] = []
        self.busy_s = self.sequences_run = 0.0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """One iteration is over."""
        now_s = self._awake_s = time.monotonic()
        if scheduler_stats is None:
            return
        finished = len(iteration_stats.finished_requests) if iteration_stats else 0
        if self._last_s is not None:
            if iteration_stats is not None:
                self.prefill_tokens += iteration_stats.prompt_token_stats.computed
            self.iterations += 1
            self.busy_s += now_s - self._last_s
            self.sequences_run += scheduler_stats.num_running_reqs + finished
        self._last_s = None if self._paused else now_s
        self._snapshot(scheduler_stats)
        self._sum(scheduler_stats, iteration_stats)
        if self._unfinished() == 0:
            # Also after an abort of everything: the engine reports what it ran until it heard.
            self.idle()

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def work_arrives(self) -> None:
        """A request comes to an idle engine: its silence counts from now."""
        self._awake_s = time.monotonic()

    def idle(self) -> None:
        """Nothing is left to run.  An engine that runs nothing reports nothing, so say it here."""
        self._last_s = None
        self.running = self.waiting = self._forgiven = 0
        self.kv_cache_usage = 0.0

    def pause(self) -> None:
        """A weight update preempts what runs; that says nothing about the engine's memory."""
        self._paused, self._last_s = True, None
        self._forgiven += self.running

    def resume(self) -> None:
        """The engine goes on."""
        self._paused = False
        self._awake_s = time.monotonic()

    def silent_s(self) -> float:
        """Seconds for which the engine has had work and reported nothing."""
        if self._paused or self._unfinished() == 0:
            return 0.0
        return time.monotonic() - self._awake_s

    def stats(self, weight_version: int) -> ReplicaStats:
        """As one value."""
        drafts = self._drafts.counters
        return ReplicaStats(
            running=self.running,
            waiting=self.waiting,
            kv_cache_usage=self.kv_cache_usage,
            preemptions=self.preemptions,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            prefill_tokens=self.prefill_tokens,
            asked_at=drafts.asked.tolist() if drafts else [],
            drafted_at=self.drafted_at,
            accepted_at=self.accepted_at,
            draft_tokens=self._drafts.default,
            draft_classes=drafts.by_class() if drafts else {},
            iterations=self.iterations,
            busy_s=self.busy_s,
            sequences_run=self.sequences_run,
            weight_version=weight_version,
        )

    def _snapshot(self, scheduler_stats: Any) -> None:
        self.running = scheduler_stats.num_running_reqs
        self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        self.kv_cache_usage = scheduler_stats.kv_cache_usage

    def _sum(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        prefix, drafts = scheduler_stats.prefix_cache_stats, scheduler_stats.spec_decoding_stats
        if prefix is not None:
            self.prefix_queries += prefix.queries
            self.prefix_hits += prefix.hits
        if drafts is not None:
            self.drafted_at = _added(self.drafted_at, drafts.num_draft_tokens_per_pos)
            self.accepted_at = _added(self.accepted_at, drafts.num_accepted_tokens_per_pos)
        if iteration_stats is not None:
            forgiven = min(self._forgiven, iteration_stats.num_preempted_reqs)
            self._forgiven -= forgiven
            self.preemptions += iteration_stats.num_preempted_reqs - forgiven


def _added(sums: list[int], more: list[int]) -> list[int]:
    """A new list, so that a report already handed out stays as it was."""
    return [a + b for a, b in zip_longest(sums, more, fillvalue=0)]
