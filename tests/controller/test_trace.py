"""The trace: nothing written is lost, nothing impossible passes, nothing unreadable is guessed."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from support.synthetic_trace import SyntheticRun

from steersman.controller.trace import records as rec
from steersman.controller.trace.export import to_parquet
from steersman.controller.trace.observed import ADDED, TWO_DIMENSIONAL
from steersman.controller.trace.reader import TraceError, check, read
from steersman.controller.trace.writer import FLUSH_S, TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import (
    AS_REPLICA,
    EndedTable,
    GroupTable,
    Objective,
    Observation,
    ReplicaTable,
    RewardTable,
    TrainerSignal,
    TrajectoryTable,
)
from steersman.mechanisms.fleet import ReplicaStats
from steersman.policies.decision import Action, Decision

RUN = list(SyntheticRun(steps=2, groups=3, size=4).records())


def written(path: Path, records: list[rec.Record]) -> Path:
    writer = TraceWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def changed(kind: type, change: Callable[[Any], Any]) -> list[rec.Record]:
    """`RUN`, its first record of a kind replaced (or left out, by None)."""
    at = next(i for i, record in enumerate(RUN) if isinstance(record, kind))
    new = change(RUN[at])
    return [*RUN[:at], *([] if new is None else [new]), *RUN[at + 1 :]]


# Writing and reading


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert list(read(written(tmp_path / "run.jsonl", RUN))) == RUN


def test_without_a_path_the_records_are_kept_in_memory() -> None:
    writer = TraceWriter(None)
    writer.write(RUN[0])
    writer.close()
    assert writer.records == RUN[:1]


def test_a_crash_loses_at_most_the_last_half_second(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.jsonl")
    for t_s in (0.0, 0.1, FLUSH_S, FLUSH_S + 0.1):
        writer.write(rec.Rewarded(t_s=t_s, trajectory_id=0, reward=1.0))
    on_disk = (tmp_path / "run.jsonl").read_bytes()
    writer.close()
    assert on_disk.count(b"\n") == 3


def test_a_torn_last_line_is_counted_and_not_fatal(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", RUN)
    path.write_bytes(path.read_bytes()[:-9])
    reader = read(path)
    assert list(reader) == RUN[:-1]
    assert reader.torn_lines == 1


def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", RUN)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], '{"kind": "rewarded"}\n', *lines[4:]]))
    with pytest.raises(TraceError, match=r"run\.jsonl:5: Object missing required field"):
        list(read(path))


def test_a_newer_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind": "run_started", "schema_version": 99, "new": 1}\n')
    with pytest.raises(TraceError, match="schema version 99; this steersman reads up to 1"):
        list(read(path))


@pytest.mark.parametrize("content", ["hello\n", '{"kind": "rewarded"}\n', "\x00\xff\n"])
def test_another_file_is_not_a_trace(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(TraceError, match="is not a trace"):
        list(read(tmp_path / "x"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: No such file"):
        list(read(tmp_path / "none.jsonl"))


def test_a_trace_is_never_written_over(tmp_path: Path) -> None:
    written(tmp_path / "run.jsonl", RUN)
    with pytest.raises(InvalidInputError, match="never written over"):
        TraceWriter(tmp_path / "run.jsonl")


def test_a_full_disk_ends_the_trace_and_not_the_run() -> None:
    writer = TraceWriter(None)
    writer.path, writer._file = Path("/dev/full"), open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with writer._file:
        writer.write(RUN[0])
        writer.flush()
        assert "No space left" in writer.failure
        writer.write(RUN[1])
        writer.close()


@pytest.mark.parametrize(
    ("number", "complaint"), [(object(), TypeError), ("\ud800", UnicodeEncodeError)]
)
def test_a_record_that_cannot_be_encoded_leaves_nothing_of_itself_in_the_trace(
    tmp_path: Path, number: Any, complaint: type[Exception]
) -> None:
    taken = rec.DecisionTaken(
        t_s=0.0,
        tick=1,
        decision=Decision(number, Action.STOP, "test", "because"),
        enforced=True,
        mode="enforcing",
    )
    writer = TraceWriter(tmp_path / "run.jsonl")
    writer.write(RUN[0])
    with pytest.raises(complaint):
        writer.write(taken)
    writer.write(RUN[1])
    writer.close()
    assert list(read(tmp_path / "run.jsonl")) == RUN[:2]


def test_a_numpy_scalar_in_a_decision_is_written_as_a_number(tmp_path: Path) -> None:
    said: Any = {"trajectory_id": np.int64(7), "gain_s": np.float64(1.5)}
    decision = Decision(action=Action.STOP, policy="test", reason="because", **said)
    taken = rec.DecisionTaken(t_s=0.0, tick=1, decision=decision, enforced=True, mode="enforcing")
    writer = TraceWriter(tmp_path / "run.jsonl")
    writer.write(RUN[0])
    writer.write(taken)
    writer.close()
    _, read_back = read(tmp_path / "run.jsonl")
    assert isinstance(read_back, rec.DecisionTaken)
    assert (read_back.decision.trajectory_id, read_back.decision.gain_s) == (7, 1.5)


def test_a_closed_trace_ignores_late_records(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.jsonl")
    writer.close()
    writer.write(RUN[0])
    writer.close()
    assert (tmp_path / "run.jsonl").read_bytes() == b""


def test_every_kind_of_record_is_in_the_union_and_has_a_docstring() -> None:
    kinds = [x for x in vars(rec).values() if isinstance(x, type) and issubclass(x, rec.Base)]
    assert {*kinds} - {rec.Base} == {*get_args(rec.Record)}
    assert all(kind.__doc__ for kind in kinds)


def test_a_replica_that_never_reported_can_be_written(tmp_path: Path) -> None:
    report = rec.ReplicaReport(t_s=0.0, replica="r", alive=True, stats=ReplicaStats())
    assert list(read(written(tmp_path / "run.jsonl", [RUN[0], report])))[1] == report


def test_a_decision_dropped_for_a_figure_that_is_none_can_be_written(tmp_path: Path) -> None:
    wrong = Decision(0, Action.STOP, "p", "", propensity=math.nan, gain_s=math.inf, cost_s=2.0)
    dropped = rec.DecisionDropped(t_s=0.0, tick=1, decision=wrong, why="no number")
    assert list(read(written(tmp_path / "run.jsonl", [RUN[0], dropped])))[1] == dropped
    plain = (dropped.decision.propensity, dropped.decision.gain_s, dropped.decision.cost_s)
    assert plain == (0.0, 0.0, 2.0)


@pytest.mark.benchmark
def test_a_record_costs_less_than_5_microseconds(tmp_path: Path) -> None:
    writer, count = TraceWriter(tmp_path / "run.jsonl"), 50_000
    started_s = time.perf_counter()
    for i in range(count):
        writer.write(
            rec.PhaseChanged(
                t_s=i * 1e-4,
                trajectory_id=i,
                old="QUEUED",
                new="RUNNING",
                why="placed",
                generated_tokens=0,
            )
        )
    writer.close()
    cost_us = (time.perf_counter() - started_s) / count * 1e6
    print(f"{cost_us:.2f} us per record")  # noqa: T201
    assert cost_us < 5


# Observations


def columns(table: type, rows: int) -> st.SearchStrategy[Any]:
    """Tables of any content, the three unwritable floats included."""
    kinds = {"Ints": np.int64, "Floats": np.float64, "Bools": np.bool_}
    made: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(table):
        name = next((n for n, alias in ALIASES.items() if field.type is alias), None)
        if name is None:
            made[field.name] = st.tuples(*[st.text(max_size=3)] * rows)
        else:
            width = st.integers(0, 2 if rows else 0) if field.name in TWO_DIMENSIONAL else None
            shape = width.map(lambda k: (rows, k)) if width is not None else rows
            made[field.name] = hnp.arrays(kinds[name], shape)
    return st.builds(table, **made)


ALIASES = {
    "Ints": TrajectoryTable.__annotations__["group_row"],
    "Floats": TrajectoryTable.__annotations__["queued_s"],
    "Bools": ReplicaTable.__annotations__["alive"],
}
observations = st.builds(
    Observation,
    now_s=st.floats(allow_nan=False, allow_infinity=False),
    tick=st.integers(0, 2**40),
    trainer=st.builds(TrainerSignal, objective=st.sampled_from(Objective)),
    trajectories=st.integers(0, 3).flatmap(lambda n: columns(TrajectoryTable, n)),
    groups=st.integers(0, 2).flatmap(lambda n: columns(GroupTable, n)),
    replicas=st.integers(0, 2).flatmap(lambda n: columns(ReplicaTable, n)),
    ended=st.integers(0, 2).flatmap(lambda n: columns(EndedTable, n)),
    rewarded=st.integers(0, 2).flatmap(lambda n: columns(RewardTable, n)),
)


def assert_same_bits(a: Any, b: Any) -> None:
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
            np.testing.assert_array_equal(np.signbit(left), np.signbit(right)) if (
                left.dtype.kind == "f" and not np.isnan(left).any()
            ) else None
        else:
            assert left == right


@settings(max_examples=60, deadline=None)
@given(observations)
def test_an_observation_survives_the_trace_to_the_bit(observation: Observation) -> None:
    line = msgspec.json.encode(rec.observation_to_record(observation))
    record = msgspec.json.decode(line, type=rec.Record)
    assert isinstance(record, rec.ObservationRecorded)
    back = rec.record_to_observation(record)
    assert (back.now_s, back.tick, back.trainer) == (
        observation.now_s,
        observation.tick,
        observation.trainer,
    )
    for name in ("trajectories", "groups", "replicas", "ended", "rewarded"):
        assert_same_bits(getattr(observation, name), getattr(back, name))


@settings(max_examples=10, deadline=None)
@given(observations)
def test_a_trace_from_before_a_column_was_added_is_still_read(observation: Observation) -> None:
    record = rec.observation_to_record(observation)
    for table, columns in (
        (TrajectoryTable, record.trajectories),
        (ReplicaTable, record.replicas),
    ):
        for name in ADDED[table]:
            del columns[name]
    back = rec.record_to_observation(record)
    assert np.isnan(back.trajectories.regret).all()
    assert (back.trajectories.draft_tokens == AS_REPLICA).all()
    assert len(back.trajectories.repeated_share) == len(observation.trajectories)
    assert back.replicas.max_draft_tokens.tolist() == [0] * len(observation.replicas)


# Invariants


def test_a_sound_run_has_no_problems() -> None:
    assert check(RUN) == []


def replaced(**values: Any) -> Callable[[Any], Any]:
    return lambda record: msgspec.structs.replace(record, **values)


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        (rec.RunEnded, lambda r: None, "the run has no end"),
        (rec.TrajectoryEnded, lambda r: None, "never ended"),
        (rec.TrajectoryEnded, replaced(generated_tokens=1), "has 1 tokens; its attempts"),
        (rec.TrajectoryEnded, replaced(segments=[]), "has segments up to 0"),
        (rec.TrajectoryEnded, replaced(disposition="restarted"), "never replaced"),
        (rec.TrajectoryEnded, replaced(weight=2.0), "weighs 2; its coins make it 1"),
        (rec.PhaseChanged, replaced(new="PARKED"), "left RUNNING while it was PARKED"),
        (rec.PhaseChanged, replaced(new="LEAVING"), "cannot go from QUEUED to LEAVING"),
        (rec.AttemptStarted, replaced(prefix_tokens=99), "submitted with 99 tokens, but 6 are"),
        (rec.AttemptStarted, lambda r: None, "which did not run"),
        (rec.AttemptEnded, replaced(tokens=1000), "tokens; its attempts"),
        (rec.AttemptEnded, lambda r: None, "runs"),
        (rec.DecisionTaken, lambda r: None, "happened without a decision"),
        (rec.DecisionTaken, replaced(enforced=False), "happened without a decision"),
        (rec.GroupAdmitted, lambda r: None, "belongs to no admitted group"),
        (rec.GroupAdmitted, replaced(size=5), "has 4 of 5 answers"),
        (rec.TrajectoryQueued, lambda r: None, "was never queued"),
        (rec.TrajectoryQueued, replaced(replaces=11), "replaces 11, which was not taken away"),
    ],
)
def test_what_cannot_be_is_found(kind: type, change: Callable[[Any], Any], problem: str) -> None:
    problems = check(changed(kind, change))
    assert any(problem in text for text in problems), problems


def with_before_its_end(*records: rec.Record) -> list[rec.Record]:
    """The run with these before the first group's end."""
    at = next(i for i, record in enumerate(RUN) if isinstance(record, rec.GroupEnded))
    return [*RUN[:at], *records, *RUN[at:]]


@pytest.mark.parametrize(
    ("accepted", "trained", "times", "problem"),
    [
        (True, 4, 1, None),
        (False, 0, 1, None),
        (True, 5, 1, "has 5 of 4 samples to train on"),
        (False, 1, 1, "is filtered, and 1 samples of it are to be trained on"),
        (True, 4, 2, "was selected twice"),
    ],
)
def test_a_selection_that_cannot_be_is_found(
    accepted: bool, trained: int, times: int, problem: str | None
) -> None:
    group = next(r.group_id for r in RUN if isinstance(r, rec.GroupEnded))
    one = rec.GroupSelected(t_s=0.0, group_id=group, accepted=accepted, trained=trained, weight=1.0)
    problems = check(with_before_its_end(*[one] * times))
    if problem is None:
        assert problems == []
    else:
        assert any(problem in text for text in problems)


def test_an_extension_that_cannot_be_is_found() -> None:
    group = next(r.group_id for r in RUN if isinstance(r, rec.GroupEnded))
    more = rec.GroupExtended(t_s=0.0, group_id=group, size=5)
    assert any("has 4 of 5 answers" in text for text in check(with_before_its_end(more)))
    same = rec.GroupExtended(t_s=0.0, group_id=group, size=4)
    assert any("from 4 to 4" in text for text in check(with_before_its_end(same)))
    at = next(i for i, record in enumerate(RUN) if isinstance(record, rec.GroupAdmitted)) + 1
    early = rec.GroupExtended(t_s=0.0, group_id=RUN[at - 1].group_id, size=5)
    assert any("with 0 of 4 answers" in text for text in check([*RUN[:at], early, *RUN[at:]]))


@pytest.mark.parametrize("action", [Action.STOP, Action.CONTINUE])
def test_a_coin_that_was_carried_out_and_left_no_weight_is_found(action: Action) -> None:
    at = next(i for i, record in enumerate(RUN) if isinstance(record, rec.PhaseChanged))
    of = {"t_s": RUN[at].t_s, "tick": 7}
    coin = Decision(0, action, "p", "", propensity=0.5)
    told = rec.DecisionTaken(**of, decision=coin, enforced=True, mode="enforcing")
    outcomes = ("superseded", "applied")
    for outcome, found in zip(outcomes, (False, True), strict=True):
        done = rec.Outcome(**of, trajectory_id=0, action=action, outcome=outcome)
        problems = check([*RUN[:at], told, done, *RUN[at:]])
        assert any("its coins make it" in text for text in problems) == found


@pytest.mark.parametrize("kind", [rec.TrajectoryEnded, rec.TrajectoryQueued, rec.GroupEnded])
def test_what_happens_twice_is_found(kind: type) -> None:
    again = next(record for record in RUN if isinstance(record, kind))
    assert check([*RUN, again])


# Parquet


def test_the_tables_hold_every_record(tmp_path: Path) -> None:
    files = to_parquet(written(tmp_path / "run.jsonl", RUN), tmp_path / "tables")
    assert sum(len(pl.read_parquet(file)) for file in files) == len(RUN)
    decisions = pl.read_parquet(tmp_path / "tables" / "decision_taken.parquet")
    assert {"t_s", "tick", "action", "reason", "gain_s", "enforced"} <= {*decisions.columns}
