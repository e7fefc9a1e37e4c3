"""Our own trace as a run table: every trajectory, the replaced ones too."""

from pathlib import Path

import numpy as np
import pytest
from support.imports import imported
from support.synthetic_trace import SyntheticRun

from steersman.controller.calibration.traces import steps_from_trace
from steersman.controller.runs.log import BadRecordError
from steersman.controller.trace import records as rec
from steersman.controller.trace.writer import TraceWriter

RUN = list(SyntheticRun(steps=3, groups=3, size=4).records())


def written(path: Path, records: list[rec.Record]) -> Path:
    writer = TraceWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def test_a_trace_has_the_steps_that_calibration_sees(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", RUN)
    frame, info = imported("steersman", path, tmp_path)
    steps = steps_from_trace(path)
    assert info.rows == sum(len(step.length) for step in steps)
    for step, (_, own) in zip(
        steps, frame.sort("step").group_by("step", maintain_order=True), strict=True
    ):
        lengths = np.maximum(own["generated_tokens"].to_numpy(), 1)
        assert sorted(lengths) == sorted(step.length)
        assert own["truncated"].sum() == step.truncated.sum()
        assert (~own["censored"]).sum() == step.scored.sum()
        assert set(own["prompt_key"]) == set(step.prompt_key.tolist())
        rewards = own["reward"].drop_nulls().to_list()
        assert sorted(rewards) == sorted(step.reward[np.isfinite(step.reward)].tolist())


def test_times_replicas_and_versions_are_those_of_the_records(tmp_path: Path) -> None:
    frame, _ = imported("steersman", written(tmp_path / "a.jsonl", RUN), tmp_path)
    first = min(r.t_s for r in RUN if isinstance(r, rec.AttemptStarted))
    ended = [r for r in RUN if isinstance(r, rec.TrajectoryEnded)]
    assert frame["started_s"].min() == 0.0
    assert sorted(frame["ended_s"]) == pytest.approx(sorted(r.t_s - first for r in ended))
    assert sorted(frame["weight_version"]) == sorted(min(s[0] for s in r.segments) for r in ended)
    assert set(frame["replica"]) <= {"replica-0", "replica-1"}


def test_what_a_torn_trace_leaves_open_is_censored(tmp_path: Path) -> None:
    at = max(i for i, r in enumerate(RUN) if isinstance(r, rec.AttemptEnded))
    last = RUN[at]
    assert isinstance(last, rec.AttemptEnded)
    cut = [r for r in RUN[: at + 1] if not isinstance(r, rec.Progress)]
    frame, info = imported("steersman", written(tmp_path / "a.jsonl", cut), tmp_path)
    queued = sum(isinstance(r, rec.TrajectoryQueued) for r in cut)
    assert len(frame) == queued
    open_ = frame.filter(frame["ended_s"].is_null())
    assert len(open_) == queued - sum(isinstance(r, rec.TrajectoryEnded) for r in cut)
    assert open_["censored"].all()
    assert open_["generated_tokens"].max() >= last.tokens
    assert any("without an end" in sentence for sentence in info.assumed)


def test_the_groups_of_several_traces_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for name in ("a", "b"):
        written(tmp_path / "traces" / f"{name}.jsonl", RUN)
    one, _ = imported("steersman", tmp_path / "traces" / "a.jsonl", tmp_path)
    both, info = imported("steersman", tmp_path / "traces", tmp_path)
    assert info.files == 2
    assert len(both) == 2 * len(one)
    assert both["group_id"].n_unique() == 2 * one["group_id"].n_unique()


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", RUN)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:40], b"{}\n", *lines[40:]]))
    with pytest.raises(BadRecordError, match="line 41:"):
        imported("steersman", path, tmp_path)
    _, info = imported("steersman", path, tmp_path, skip_bad=True)
    assert info.skipped == 1
