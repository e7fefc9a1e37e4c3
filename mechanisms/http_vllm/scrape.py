"""An engine's Prometheus page, read cheaply, and what it says about iterations.

The page is scanned line by line for vLLM's own names (`vllm:x`; `vllm_x` and `ray_vllm_x` where Ray
exports them), without its buckets: 0.4 ms for 54 kB, where a full parser takes 10 ms.

An engine tells the number of its iterations and of tokens, but not the time they took.  That is
taken from the clock between two looks at both of which it ran something, and only tokens and
iterations of such times are counted, so that busy_s / iterations is a mean iteration and
sequences_run / iterations its mean batch.
"""

from dataclasses import dataclass, field

from steersman.mechanisms.fleet import ReplicaStats

_PREFIXES = (b"vllm:", b"vllm_", b"ray_vllm_")
_SHARES = frozenset({"kv_cache_usage_perc"})
"""Means over the engines of one page (data parallel); everything else is a sum."""


@dataclass(frozen=True, slots=True)
class Page:
    """One look at an engine."""

    values: dict[str, float] = field(default_factory=dict)
    """By name without prefix and `_total`; samples of one name are added up."""
    kv_capacity_tokens: int = 0
    """0: not told."""
    born_s: float = 0.0
    """When its process began (Unix time); 0: not told."""

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, 0.0)


def read_page(text: bytes) -> Page:
    """All of vLLM's samples but buckets and creation times."""
    values: dict[str, float] = {}
    seen: dict[str, int] = {}
    capacity = 0
    for line in text.split(b"\n"):
        if line[:1] not in b"vr" or b"_bucket{" in line or not line.startswith(_PREFIXES):
            continue
        sample, _, told = line.rpartition(b" ")
        labelled = sample.partition(b"{")
        name = labelled[0].partition(b"vllm")[2][1:].decode().removesuffix("_total")
        if name.endswith("_created"):
            continue
        try:
            value = float(told)
        except ValueError:
            continue
        values[name] = values.get(name, 0.0) + value
        seen[name] = seen.get(name, 0) + 1
        if name == "cache_config_info":
            capacity += _capacity(labelled[2].decode(errors="replace"))
    for name in _SHARES & values.keys():
        values[name] /= seen[name]
    return Page(values, capacity, _born_s(text))


def _capacity(labels: str) -> int:
    """Tokens that the KV cache holds, from the labels of `cache_config_info`."""
    told = _label(labels, "kv_cache_size_tokens")
    return told or _label(labels, "num_gpu_blocks") * _label(labels, "block_size")


def _born_s(text: bytes) -> float:
    told = text.partition(b"\nprocess_start_time_seconds ")[2].partition(b"\n")[0]
    try:
        return float(told)
    except ValueError:
        return 0.0


def _label(labels: str, name: str) -> int:
    value = f",{labels}".partition(f',{name}="')[2].partition('"')[0]
    return int(value) if value.isdecimal() else 0


_STEADY = ["preemptions", "prefix_queries", "prefix_hits"]
_BUSY = ["iterations", "tokens", "prefill"]


class Counters:
    """Sums over an engine's life here; its own counters start anew with its process."""

    def __init__(self) -> None:
        self.page = Page()
        self.seen_s = float("-inf")
        self.moved_s = float("-inf")
        """When its counters last changed."""
        self.looks = 0
        """Grows with everything that changes what `stats` says, but for its arguments."""
        self._busy_s = 0.0
        self._last: dict[str, float] = {}
        self._sums = dict.fromkeys(_STEADY + _BUSY, 0.0)
        self._was_running = False
        self._own_then = 0

    @property
    def running(self) -> int:
        """In its batch at the last look."""
        return int(self.page["num_requests_running"])

    @property
    def waiting(self) -> int:
        """In its queue at the last look."""
        return int(self.page["num_requests_waiting"])

    def take(self, page: Page, own: int, now_s: float, *, paused: bool) -> None:
        """Note a look, with `own` requests from here under way and its time."""
        self.looks += 1
        now = _counters(page)
        running = page["num_requests_running"] > 0 and not paused
        deltas = {name: value - self._last.get(name, value) for name, value in now.items()}
        if any(deltas.values()):
            self.moved_s = now_s
        if min(deltas.values(), default=0.0) >= 0:  # else its process is a new one
            counted = _STEADY
            if running and self._was_running and deltas["iterations"] > 0:
                self._busy_s += now_s - self.seen_s
                counted = _STEADY + _BUSY
            for name in counted:
                self._sums[name] += deltas[name]
        self._last, self._was_running = now, running
        self.page, self._own_then, self.seen_s = page, own, now_s

    def forget(self) -> None:
        """The engine died: what it said is no longer true, but the sums are."""
        self.looks += 1
        self.page, self._last, self._was_running, self._own_then = Page(), {}, False, 0

    def stats(self, own: int, max_num_seqs: int, weight_version: int) -> ReplicaStats:
        """The last look, brought up to date by what was sent there and ended since.

        What was sent joins the batch where nothing waited and there is room, and the queue
        otherwise; what ended left room for the queue.  An engine that has nothing to do shows the
        cache use of its last iteration for ever: it is nothing.
        """
        running, waiting = self.running, self.waiting
        total = max(own, running + waiting + own - self._own_then)
        running = min(total, running if waiting else max_num_seqs)
        return ReplicaStats(
            running=running,
            waiting=total - running,
            kv_cache_usage=self.page["kv_cache_usage_perc"] if total else 0.0,
            preemptions=int(self._sums["preemptions"]),
            prefix_queries=int(self._sums["prefix_queries"]),
            prefix_hits=int(self._sums["prefix_hits"]),
            prefill_tokens=int(self._sums["prefill"]),
            iterations=int(self._sums["iterations"]),
            busy_s=self._busy_s,
            sequences_run=self._sums["tokens"],
            weight_version=weight_version,
            reported_s=self.seen_s,
        )


def _counters(page: Page) -> dict[str, float]:
    """A token that a draft brought took no place of its own in a batch."""
    return {
        "preemptions": page["num_preemptions"],
        "prefix_queries": page["prefix_cache_queries"],
        "prefix_hits": page["prefix_cache_hits"],
        "iterations": page["iteration_tokens_total_count"],
        "tokens": page["generation_tokens"] - page["spec_decode_num_accepted_tokens"],
        "prefill": page["prompt_tokens"] - page["prompt_tokens_cached"],
    }
