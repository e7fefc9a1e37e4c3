"""What a trace says that a quality had cost, and what drafts earned in each third of a run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.synthetic_trace import SyntheticRun

from steersman.controller.evaluate.acceptance import acceptance, ratio_of_sums
from steersman.controller.evaluate.paired import student
from steersman.controller.evaluate.reading import read
from steersman.controller.evaluate.traced import Books
from steersman.controller.trace import records as rec
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.mechanisms.fleet import ReplicaInfo, ReplicaStats, VersionSpan

METRIC = "pass@1 on 500 held-out prompts"


def written(path: Path, records: Iterator[rec.Record] | Sequence[rec.Record]) -> Path:
    writer = TraceWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def evaluated(run: SyntheticRun, metric: str = METRIC) -> Iterator[rec.Record]:
    """The run, measured after each step."""
    for record in run.records():
        yield record
        if isinstance(record, rec.StepEnded):
            yield rec.QualityMeasured(
                t_s=record.t_s,
                weight_version=record.step,
                quality=0.2 + 0.05 * record.step,
                evaluated=500,
                metric=metric,
            )


def test_a_trace_tells_what_its_qualities_had_cost(tmp_path: Path) -> None:
    study = read([written(tmp_path / "run.jsonl", evaluated(SyntheticRun(steps=4, seed=3)))])
    records = list(SyntheticRun(steps=4, seed=3).records())
    run = study.arm("tail_planner")[3]
    written_tokens = sum(r.tokens for r in records if isinstance(r, rec.AttemptEnded))
    seconds = sum(r.seconds for r in records if isinstance(r, rec.StepEnded))
    assert run.tokens[-1] == written_tokens
    assert run.replica_s[-1] == pytest.approx(2 * seconds)
    assert run.step.tolist() == [1, 2, 3, 4, 5]
    assert run.quality[0] == pytest.approx(0.2)
    assert (run.extras["mean_length"] > 0).all()
    assert study.header["metric"] == METRIC
    assert study.of_arm("tail_planner") == {"max_lag": 1}


def test_the_arm_of_a_trace_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", evaluated(SyntheticRun(steps=2)))
    assert read([f"mine={path}"]).arms == ["mine"]


def test_a_trace_without_an_evaluation_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", SyntheticRun(steps=2).records())
    with pytest.raises(InvalidInputError, match=r"the trainer tells them by session.quality"):
        read([path])


def test_two_metrics_in_a_trace_are_not_mixed(tmp_path: Path) -> None:
    both = [
        r if not isinstance(r, rec.QualityMeasured) or r.weight_version else _renamed(r)
        for r in evaluated(SyntheticRun(steps=2))
    ]
    with pytest.raises(InvalidInputError, match="measures several qualities: reward, pass@1"):
        read([written(tmp_path / "run.jsonl", both)])


def _renamed(record: rec.QualityMeasured) -> rec.QualityMeasured:
    import msgspec

    return msgspec.structs.replace(record, metric="reward")


# What counts as rollout


def books_of(*records: rec.Record) -> Books:
    books = Books()
    started = rec.RunStarted(
        t_s=0.0, started_unix_s=0.0, config={}, seed=0,
        replicas=[ReplicaInfo(name="a"), ReplicaInfo(name="b")],
    )  # fmt: skip
    for record in (started, *records):
        books.take(record)
    return books


def began(t_s: float) -> rec.StepStarted:
    return rec.StepStarted(
        t_s=t_s, step=0, weight_version=0, objective="barrier", groups=1, max_lag=2
    )


def ended(t_s: float, seconds: float) -> rec.StepEnded:
    return rec.StepEnded(t_s=t_s, step=0, seconds=seconds, tokens=0, groups=1)


def measured(t_s: float, seconds: float = 0.0) -> rec.QualityMeasured:
    return rec.QualityMeasured(
        t_s=t_s, weight_version=0, quality=0.5, evaluated=100, metric="x", seconds=seconds
    )


def test_time_between_steps_is_no_rollout_but_passes() -> None:
    books = books_of(began(10), ended(15, 5), began(40), ended(42, 2), measured(50))
    point = books.point("a", 0)
    assert point.replica_s == pytest.approx(2 * 7)
    assert point.wall_s == 50


def test_what_measuring_took_is_no_part_of_the_wall_clock() -> None:
    books = books_of(began(0), ended(5, 5), measured(9, seconds=4), measured(12, seconds=1))
    assert [books.point("a", i).wall_s for i in (0, 1)] == [5, 7]


def test_a_weight_push_within_a_stream_is_a_pause() -> None:
    pushed = rec.WeightsPushed(t_s=14, weight_version=1, seconds=3)
    books = books_of(began(10), pushed, ended(20, 10), measured(20))
    assert books.point("a", 0).replica_s == pytest.approx(2 * 7)


def test_a_dead_replica_costs_nothing_from_then_on() -> None:
    dead = rec.ReplicaReport(t_s=12, replica="b", alive=False, stats=ReplicaStats())
    books = books_of(began(10), dead, ended(20, 10), measured(20))
    assert books.point("a", 0).replica_s == pytest.approx(2 * 2 + 8)


def test_a_step_that_is_still_open_counts_until_now() -> None:
    assert books_of(began(10), measured(13)).point("a", 0).replica_s == pytest.approx(6)


# Acceptance


def drafting(rates: Sequence[float], per_version: int = 200) -> Iterator[rec.Record]:
    """One attempt per weight version and slot, three positions drafted, so many accepted."""
    yield rec.RunStarted(
        t_s=0.0, started_unix_s=0.0, config={"placement": {"name": "sticky"}}, seed=0,
        replicas=[ReplicaInfo(name="a")],
    )  # fmt: skip
    for version, rate in enumerate(rates):
        for i in range(4):
            wobble = (-1) ** i * 4
            accepted = [round(per_version * rate) + wobble, round(per_version * rate**2), 0]
            yield rec.AttemptEnded(
                t_s=float(version), attempt_id=f"{version}-{i}", trajectory_id=4 * version + i,
                replica="a", reason="stop", tokens=per_version + sum(accepted),
                spans=[VersionSpan(version, 0, per_version + sum(accepted))],
                drafted_at=[per_version] * 3, accepted_at=accepted,
            )  # fmt: skip
    yield rec.RunEnded(t_s=99.0, clean=True)


def test_acceptance_that_decays_is_told_by_thirds(tmp_path: Path) -> None:
    rates = [0.8] * 4 + [0.6, 0.62] * 2 + [0.4, 0.42] * 2
    found = acceptance([("", written(tmp_path / "t.jsonl", drafting(rates)))])
    stages = found.figures["runs"][0]["stages"]
    per_verify = [stage["accepted_per_verify"]["mean"] for stage in stages]
    assert per_verify == pytest.approx([0.8 + 0.64, 0.61 + 0.372, 0.41 + 0.168], abs=0.01)
    assert [stage["versions"] for stage in stages] == [[0, 3], [4, 7], [8, 11]]
    assert "sticky: acceptance falls over training" in found.verdict


def test_the_jackknife_of_equal_shares_is_students_interval() -> None:
    accepted = np.array([3.0, 5.0, 4.0, 8.0])
    found, expected = ratio_of_sums(accepted, np.full(4, 2.0)), student(accepted / 2)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )


def test_acceptance_that_only_wobbles_does_not_change(tmp_path: Path) -> None:
    rates = [0.6, 0.64, 0.58, 0.62] * 3
    found = acceptance([("ours", written(tmp_path / "t.jsonl", drafting(rates)))])
    assert "ours: acceptance does not change over training" in found.verdict


def test_a_trace_without_drafts_or_with_few_versions_is_an_error(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.jsonl", SyntheticRun(steps=2).records())
    with pytest.raises(InvalidInputError, match="tells of no drafted token"):
        acceptance([("", plain)])
    short = written(tmp_path / "short.jsonl", drafting([0.5] * 4))
    with pytest.raises(InvalidInputError, match="by 4 weight versions; stages need 6 or more"):
        acceptance([("", short)])
