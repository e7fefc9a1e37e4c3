"""What Prometheus is told: names by convention, few labels, and the desk's own figures."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from support.gateway_scene import Scene, busy_scene

from steersman.controller.gateway.metrics import GONE, OTHER, PATHS, GatewayMetrics
from steersman.controller.gateway.snapshot import snapshot
from steersman.controller.trace import records
from steersman.controller.watching.record_counts import RecordCounts
from steersman.mechanisms.fleet import ReplicaStats

LABELS = {"replica", "action", "disposition", "path", "status", "state", "le"}
UNITS = ("_seconds", "_tokens", "_ratio")


@pytest.fixture(scope="module")
def busy() -> Any:
    scene = busy_scene(30.0)
    yield scene
    scene.close()


def read(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels."""
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    return read(metrics)[f"steersman_{name}", tuple(sorted(labels.items()))]


def test_every_metric_has_a_help_text_and_a_conventional_name(busy: Scene) -> None:
    metrics = GatewayMetrics(busy)
    metrics.observe_request("/v1/completions", 200, 0.2)
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"steersman(_[a-z]+)+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            names = {s.name for s in family.samples}
            assert names <= {f"{family.name}_total", f"{family.name}_created"}
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family.name


def test_labels_are_few_and_known(busy: Scene) -> None:
    metrics = GatewayMetrics(busy)
    for i in range(500):
        metrics.observe_request(f"/v1/completions/{i}", 404, 0.001)
    samples = read(metrics)
    assert {label for _, labels in samples for label, _ in labels} <= LABELS
    paths = {v for _, labels in samples for label, v in labels if label == "path"}
    assert paths == {OTHER}
    assert len(samples) < 200


def test_the_exposition_is_also_valid_openmetrics(busy: Scene) -> None:
    metrics = GatewayMetrics(busy)
    metrics.observe_request("/v1/completions", 200, 0.2)
    body, content_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert list(openmetrics.text_string_to_metric_families(body.decode()))


def test_requests_are_counted_by_path_and_class_and_timed(busy: Scene) -> None:
    metrics = GatewayMetrics(busy)
    for status, seconds in ((200, 0.002), (200, 2.0), (429, 0.0005), (0, 9.0), (503, 0.01)):
        metrics.observe_request("/v1/completions", status, seconds)
    assert "/v1/completions" in PATHS

    def of(name: str, **labels: str) -> float:
        return value(metrics, name, path="/v1/completions", **labels)

    assert of("requests_total", status="2xx") == 2
    assert of("requests_total", status="4xx") == 1
    assert of("requests_total", status="5xx") == 1
    assert of("requests_total", status=GONE) == 1
    assert value(metrics, "requests_rejected_total") == 1
    assert of("request_duration_seconds_bucket", le="0.001") == 1
    assert of("request_duration_seconds_bucket", le="0.003") == 2
    assert of("request_duration_seconds_bucket", le="+Inf") == 4  # nobody got the fifth
    assert of("request_duration_seconds_count") == 4
    assert of("request_duration_seconds_sum") == pytest.approx(2.0125)


def test_a_bound_belongs_to_its_bucket(busy: Scene) -> None:
    metrics = GatewayMetrics(busy)
    metrics.observe_request("/health", 200, 0.001)
    assert value(metrics, "request_duration_seconds_bucket", path="/health", le="0.001") == 1


def test_the_fleet_and_its_books_are_told(busy: Scene) -> None:
    metrics, told = GatewayMetrics(busy), snapshot(busy)
    samples = read(metrics)

    def of(name: str, **labels: str) -> float:
        return samples[f"steersman_{name}", tuple(sorted(labels.items()))]

    for replica in told.replicas:
        assert of("replica_up", replica=replica.name) == 1
        assert of("replica_paused", replica=replica.name) == 0
        assert of("replica_running_requests", replica=replica.name) == replica.running
        assert of("replica_inflight_trajectories", replica=replica.name) == replica.inflight
        assert of("replica_kv_cache_usage_ratio", replica=replica.name) == replica.kv_usage
        assert of("replica_weight_version", replica=replica.name) == 1
        assert of("replica_generated_tokens_total", replica=replica.name) > 10_000
    assert of("trajectories", state="running") == told.phases["running"]
    assert of("trajectories_ended_total", disposition="finished") == told.sums.answered
    assert of("generated_tokens_total") == told.sums.generated_tokens
    assert of("migrations_total") == told.sums.moves
    assert of("decisions_total", action="migrate", state="applied") >= told.sums.moves
    assert of("predicted_tail_seconds") == told.figures.tail_s
    assert of("predicted_end_seconds") == told.figures.ends_in_s
    assert of("bubble_ratio") == told.figures.bubble
    assert (of("step"), of("weight_version")) == (told.step, told.weight_version)


def test_who_decides_is_told() -> None:
    scene = Scene()
    metrics = GatewayMetrics(scene)
    assert value(metrics, "controller_state", state="enforcing") == 1
    scene.loop.fail_open("a decision took more than 0.75 s")
    assert value(metrics, "controller_state", state="enforcing") == 0
    assert value(metrics, "controller_state", state="fail_open") == 1
    assert value(metrics, "controller_state_changes_total", state="fail_open") == 1
    scene.close()


def test_what_waits_is_told_and_how_long_it_took() -> None:
    scene = Scene()
    metrics = GatewayMetrics(scene)
    scene.ask("a", 4)
    assert value(metrics, "queue_length") == 4
    scene.clock.now_s += 0.02
    scene.play(0.25)
    assert value(metrics, "queue_length") == 0
    assert value(metrics, "placement_wait_seconds_count") == 4
    assert value(metrics, "placement_wait_seconds_bucket", le="0.01") == 0
    assert value(metrics, "placement_wait_seconds_bucket", le="0.03") == 4
    scene.close()


def test_a_lost_engine_is_counted_once() -> None:
    scene = Scene()
    metrics = GatewayMetrics(scene)
    scene.step(prompts=2, size=8)
    scene.play(3.0)
    running = len(scene.fleet._running["engine-1"])
    scene.fleet.kill("engine-1")
    scene.play(5.0)
    assert value(metrics, "replica_up", replica="engine-1") == 0
    assert value(metrics, "replica_lost_total", replica="engine-1") == 1
    assert value(metrics, "replica_lost_attempts_total", replica="engine-1") == running > 0
    assert value(metrics, "replica_lost_total", replica="engine-0") == 0
    scene.close()


def test_metrics_can_be_read_before_anything_was_asked() -> None:
    scene = Scene(replicas=0)
    assert value(GatewayMetrics(scene), "requests_open") == 0
    scene.close()


def test_a_viewer_of_the_trace_that_fails_stops_nothing() -> None:
    shown = []

    def bad(record: records.Record) -> None:
        shown.append(record)
        raise RuntimeError("a bug")

    scene = Scene(viewers=[bad])
    scene.ask("a", 1)
    scene.play(1.0)
    scene.close()
    assert len(shown) == 1
    assert len(scene.records) > 5
    assert scene.counts.decisions["place", "applied"] == 1


def test_rates_are_those_of_the_last_seconds_and_survive_a_restart() -> None:
    counts = RecordCounts()

    def report(t_s: float, tokens: float) -> None:
        stats = ReplicaStats(sequences_run=tokens, reported_s=t_s)
        counts.take(records.ReplicaReport(t_s=t_s, replica="a", alive=True, stats=stats))

    report(0.0, 100.0)
    assert counts.tokens_per_s("a") is None
    report(0.0, 100.0)  # the same report again
    assert counts.tokens_per_s("a") is None
    report(2.0, 300.0)
    assert counts.tokens_per_s("a") == 100.0
    for t_s in range(3, 30):
        report(float(t_s), 300.0)
    assert counts.tokens_per_s("a") == 0.0
    report(30.0, 10.0)  # the engine began anew
    assert counts.tokens_per_s("a") is None
    report(31.0, 60.0)
    assert counts.tokens_per_s("a") == 50.0
    assert counts.tokens_per_s("b") is None


@pytest.mark.benchmark
def test_counting_a_request_takes_less_than_5_microseconds(busy: Scene) -> None:
    metrics, count = GatewayMetrics(busy), 20_000
    started_s = time.thread_time()
    for _ in range(count):
        metrics.observe_request("/v1/completions", 200, 0.3)
    assert (time.thread_time() - started_s) / count < 5e-6


# The dashboard that is shipped for Grafana

BOARD = Path(__file__).parents[3] / "examples" / "deploy" / "grafana.json"
NAME = re.compile(r"\b(?:steersman|process)_\w+")


def expressions(board: Any) -> list[str]:
    """Every query in it."""
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    found += [note["expr"] for note in board["annotations"]["list"]]
    return found + [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]


def exposed(busy: Scene) -> dict[str, str]:
    """Name of each sample that can be queried, and its type."""
    metrics = GatewayMetrics(busy)
    metrics.observe_request("/v1/completions", 200, 0.1)
    families = text_string_to_metric_families(metrics.exposition()[0].decode())
    return {sample.name: family.type for family in families for sample in family.samples}


def test_grafana_asks_only_for_what_is_exposed(busy: Scene) -> None:
    board, known = json.loads(BOARD.read_text(encoding="utf-8")), exposed(busy)
    asked = {name for expr in expressions(board) for name in NAME.findall(expr)}
    assert asked <= set(known)
    shown_otherwise = {
        "steersman_generated_tokens_total",  # the engines' own are shown
        "steersman_replica_paused",
        "steersman_replica_inflight_trajectories",
        "steersman_controller_state_changes_total",
    }
    ours = {name for name in known if name.startswith("steersman_")}
    unused = {name for name in ours - asked if not name.endswith(("_sum", "_count", "_created"))}
    assert unused == shown_otherwise


def test_grafana_takes_rates_of_counters_and_values_of_gauges(busy: Scene) -> None:
    board, known = json.loads(BOARD.read_text(encoding="utf-8")), exposed(busy)
    for expr in expressions(board):
        grown = set(re.findall(r"(?:rate|increase|changes)\((\w+)", expr))
        for name in NAME.findall(expr):
            counts = known[name] in ("counter", "histogram")
            assert counts == (name in grown), expr


def test_the_panels_of_grafana_fill_their_rows_without_overlap() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height
