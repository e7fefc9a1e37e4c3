"""The gateway's metrics in Prometheus' text format.

Nothing is kept twice: at a scrape they are read from the desk, from what its trace told, and from
the requests counted here.  Labels have few values, whatever clients do: a replica, an action, a
disposition, a state, a path that the gateway knows ("other" for the rest), a class of status.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from steersman.controller.gateway.snapshot import Look, figures_of, look, sums_of, written
from steersman.controller.loop import LoopState
from steersman.controller.watching.record_counts import Histogram
from steersman.estimators.lifecycle import Disposition, Phase

if TYPE_CHECKING:
    from steersman.controller.gateway.desk import Desk

DURATION_BOUNDS_S = (
    0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0,
)  # fmt: skip
"""From a health check to the longest samples of a step."""
PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/inference/v1/generate",
        "/health",
        "/metrics",
        "/load",
        "/pause",
        "/resume",
        "/dashboard",
        "/dashboard/state",
    }
)
"""That have a time series of their own."""
OTHER = "other"
GONE = "gone"
"""Class of requests whose client went away before it had an answer."""
_CLASSES = {status: f"{status // 100}xx" for status in range(100, 600)}


class GatewayMetrics(Collector):
    """Counts requests, and exposes them with everything that the desk knows."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        self.requests: Counter[tuple[str, str]] = Counter()
        """By path and class of status."""
        self.rejected = 0
        """Answered with 429: come again later."""
        self.durations: dict[str, Histogram] = {}
        """Seconds by path, of requests that got an answer."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """One answer is out; `status` 0: its client went away."""
        if path not in PATHS:
            path = OTHER
        self.requests[path, _CLASSES.get(status, GONE)] += 1
        if status == 429:
            self.rejected += 1
        if status:
            histogram = self.durations.get(path)
            if histogram is None:
                histogram = self.durations[path] = Histogram(DURATION_BOUNDS_S)
            histogram.observe(seconds)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All of it, in the format that suits `accept`, and the format's content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def describe(self) -> Iterable[Metric]:
        """Nothing is read when it is registered: there may be no engine yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        seen = look(self._desk)
        yield from self._of_requests()
        yield from self._of_trajectories(seen)
        yield from self._of_decisions()
        yield from self._of_the_trainer()
        yield from self._of_the_fleet(seen)
        yield from self._of_replicas(seen)

    def _of_requests(self) -> Iterator[Metric]:
        requests = _counter("requests", "HTTP requests answered.", "path", "status")
        for (path, status), n in sorted(self.requests.items()):
            requests.add_metric([path, status], n)
        yield requests
        yield _counter("requests_rejected", "Requests answered with 429.", value=self.rejected)
        durations = HistogramMetricFamily(
            "steersman_request_duration_seconds",
            "From the request to the end of its answer.",
            labels=["path"],
        )
        for path, histogram in sorted(self.durations.items()):
            durations.add_metric([path], _buckets(histogram), histogram.total)
        yield durations
        yield _gauge("requests_open", "Client requests under way.", len(self._desk.questions))

    def _of_trajectories(self, seen: Look) -> Iterator[Metric]:
        desk, phases = self._desk, seen.observation.trajectories.phase
        trajectories = _gauge("trajectories", "Unfinished trajectories by state.", None, "state")
        for phase in (Phase.QUEUED, Phase.RUNNING, Phase.LEAVING, Phase.PARKED):
            trajectories.add_metric([phase.name.lower()], int((phases == phase).sum()))
        yield trajectories
        yield _gauge("queue_length", "Trajectories that wait for an engine.", desk.ledger.waiting)
        yield _gauge("queue_limit", "Most of them.", desk.queue_limit)
        wait = HistogramMetricFamily(
            "steersman_placement_wait_seconds", "From a trajectory's arrival to its first engine."
        )
        wait.add_metric([], _buckets(desk.counts.placement_wait), desk.counts.placement_wait.total)
        yield wait
        ended = _counter("trajectories_ended", "Trajectories by how they ended.", "disposition")
        for disposition in Disposition:
            ended.add_metric([disposition.value], desk.counts.ended[disposition.value])
        yield ended
        tokens = desk.counts.generated_tokens
        yield _counter("generated_tokens", "Tokens written in attempts that ended.", value=tokens)

    def _of_decisions(self) -> Iterator[Metric]:
        desk, sums = self._desk, sums_of(self._desk)
        decisions = _counter(
            "decisions", "Decisions by action and by what became of them.", "action", "state"
        )
        for (action, became), n in sorted(desk.counts.decisions.items()):
            decisions.add_metric([action, became], n)
        yield decisions
        yield _counter("migrations", "Trajectories that went on elsewhere.", value=sums.moves)
        yield _counter("deferrals", "Trajectories parked for a later step.", value=sums.deferrals)
        yield _counter("restarts", "Trajectories drawn anew.", value=sums.restarts)
        state = _gauge("controller_state", "1 for who decides, else 0.", None, "state")
        changes = _counter("controller_state_changes", "Times it entered the state.", "state")
        for name in LoopState:
            state.add_metric([name.value], int(desk.loop.state is name))
            changes.add_metric([name.value], desk.counts.states[name.value])
        yield state
        yield changes

    def _of_the_trainer(self) -> Iterator[Metric]:
        desk, rewards = self._desk, self._desk.counts.rewards
        yield _gauge("step", "Step of the trainer; -1 before the first.", desk.pace.step)
        yield _gauge("weight_version", "The trainer's.", desk.pace.weight_version)
        pushes = desk.counts.weight_pushes
        yield _counter("weight_updates", "Times new weights came.", value=pushes)
        yield _gauge("paused", "1 while the trainer has paused the fleet.", int(desk.paused))
        yield _gauge("draining", "1 while nothing is taken in any more.", int(desk.draining))
        groups = _counter("groups_rewarded", "Groups all of whose rewards are known.", "state")
        groups.add_metric(["degenerate"], rewards.degenerate)
        groups.add_metric(["informative"], rewards.informative)
        yield groups

    def _of_the_fleet(self, seen: Look) -> Iterator[Metric]:
        figures = figures_of(self._desk, seen)
        yield _gauge("bubble_ratio", "Idle engines while others work, of all.", figures.bubble)
        yield _gauge("slots_taken_ratio", "Running requests over slots.", figures.slots_taken)
        if figures.tail_s is not None:
            about = "From four fifths of the predicted ends to the last."
            yield _gauge("predicted_tail_seconds", about, figures.tail_s)
        if figures.ends_in_s is not None:
            yield _gauge("predicted_end_seconds", "To the last predicted end.", figures.ends_in_s)

    def _of_replicas(self, seen: Look) -> Iterator[Metric]:
        r, counts = seen.observation.replicas, self._desk.counts
        inflight = seen.observation.inflight().tolist()
        fleet = self._desk.fleet
        paused = [int(fleet.engine(name).paused) for name in r.names]
        columns = (
            ("up", "1 if the engine answers.", r.alive.astype(int).tolist()),
            ("paused", "1 while the trainer has paused it.", paused),
            ("running_requests", "In its batch, by its own report.", r.running.tolist()),
            ("waiting_requests", "In its own queue.", r.waiting.tolist()),
            ("inflight_trajectories", "This gateway's trajectories there.", inflight),
            ("kv_cache_usage_ratio", "KV cache in use.", r.kv_cache_usage.tolist()),
            ("weight_version", "Of the weights it holds.", r.weight_version.tolist()),
        )
        for name, about, values in columns:
            gauge = _gauge(f"replica_{name}", about, None, "replica")
            for replica, value in zip(r.names, values, strict=True):
                gauge.add_metric([replica], value)
            yield gauge
        pairs = zip(r.names, r.sequences_run.tolist(), strict=True)
        tokens = [written(self._desk, name, run) for name, run in pairs]
        sums = (
            ("generated_tokens", "Written since it started.", tokens),
            ("preemptions", "Requests it preempted.", r.preemptions.tolist()),
            ("lost", "Times it was given up.", [counts.engines_lost[n] for n in r.names]),
            ("lost_attempts", "Attempts that it lost.", [counts.lost(n) for n in r.names]),
        )
        for name, about, values in sums:
            counter = _counter(f"replica_{name}", about, "replica")
            for replica, value in zip(r.names, values, strict=True):
                counter.add_metric([replica], value)
            yield counter


def _counter(
    name: str, about: str, *labels: str, value: float | None = None
) -> CounterMetricFamily:
    return CounterMetricFamily(f"steersman_{name}", about, value=value, labels=labels or None)


def _gauge(name: str, about: str, value: float | None, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"steersman_{name}", about, value=value, labels=labels or None)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulated, as Prometheus has them."""
    bounds = [*map(_bound, histogram.bounds), "+Inf"]
    total, buckets = 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, cast(float, total)))
    return buckets


def _bound(value: float) -> str:
    return f"{value:g}" if value != int(value) else f"{value:.1f}"
