"""Length estimators replayed over steps, and asked in the middle of each.

A step's trajectories start in order, `concurrency` of them at once, and all write at one pace, a
token per second; the next starts where one has ended.  At `SNAPSHOTS` of the time until the last
one ends, every estimator forecasts all that are unfinished, waiting ones included, and is scored
against what they really wrote.  The first step is not scored: nobody knew anything.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from steersman.controller.calibration.scores import LengthScores
from steersman.controller.calibration.steps import Step
from steersman.estimators.contract import LengthEstimator
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import (
    AS_REPLICA,
    Bools,
    EndedTable,
    Floats,
    GroupTable,
    Ints,
    Observation,
    ReplicaTable,
    TrainerSignal,
    TrajectoryTable,
)

SNAPSHOTS = (0.25, 0.5, 0.75)
"""Shares of a step's time at which forecasts are scored."""
TICKS = 40
"""Observations per step, evenly spaced; `SNAPSHOTS` fall on some of them."""


def replay_lengths(
    steps: Iterable[Step],
    estimators: Mapping[str, LengthEstimator],
    after_step: Callable[[], object] = lambda: None,
) -> dict[str, LengthScores]:
    """Scores by estimator name; all see the same observations.  `after_step` tells of progress."""
    scores = {name: LengthScores() for name in estimators}
    first_id = 0
    for number, step in enumerate(steps):
        world = StepWorld(step, number, first_id)
        first_id += len(step.length)
        for tick in range(TICKS + 1):
            seen = world.observe(tick)
            for estimator in estimators.values():
                estimator.observe(seen)
            if number and tick / TICKS in SNAPSHOTS:
                truth = world.remaining_tokens(seen)
                for name, estimator in estimators.items():
                    scores[name].add(estimator.forecast(seen), truth)
        after_step()
    return scores


@dataclass
class StepWorld:
    """One step, observable at any tick; ticks must be asked in order."""

    step: Step
    number: int
    first_id: int

    def __post_init__(self) -> None:
        s = self.step
        self._tokens = np.minimum(s.length, s.cut_at).astype(np.int64)
        self._start = _starts(self._tokens, s.concurrency)
        self._end = self._start + self._tokens
        self._makespan = int(self._end.max(initial=1))
        self._told = np.zeros(len(s.length), dtype=np.bool_)

    def observe(self, tick: int) -> Observation:
        """The snapshot at this tick, `TICKS` being the end of the step."""
        s = self.step
        now = -(-self._makespan * tick // TICKS)  # rounded up, so that the last tick sees all ended
        ended = self._end <= now
        open_groups = np.bincount(s.group_row[~ended], minlength=len(s.prompt_key)) > 0
        rows = np.flatnonzero(open_groups[s.group_row])
        news = np.flatnonzero(ended & ~self._told)
        self._told |= ended
        return Observation(
            now_s=float(now),
            tick=self.number * (TICKS + 1) + tick,
            trainer=TrainerSignal(step=self.number, weight_version=self.number),
            trajectories=self._trajectories(rows, ended, open_groups, now),
            groups=self._groups(np.flatnonzero(open_groups), ended),
            replicas=ReplicaTable.empty(),
            ended=self._ended(news),
        )

    def remaining_tokens(self, seen: Observation) -> Floats:
        """(n,) what each row of `seen` will still write; NaN for ended rows and unknown truths."""
        t = seen.trajectories
        rows = t.trajectory_id - self.first_id
        left = self.step.length[rows] - t.generated_tokens
        return np.where((t.phase == Phase.ENDED) | ~self.step.scored[rows], np.nan, left)

    def _trajectories(
        self, rows: Ints, ended: Bools, open_groups: Bools, now: int
    ) -> TrajectoryTable:
        s, zeros = self.step, np.zeros(len(rows), dtype=np.int64)
        over, waits = ended[rows], self._start[rows] > now
        written = np.clip(now - self._start[rows], 0, self._tokens[rows])
        phase = np.where(over, Phase.ENDED, np.where(waits, Phase.QUEUED, Phase.RUNNING))
        return TrajectoryTable(
            trajectory_id=self.first_id + rows,
            group_row=(np.cumsum(open_groups) - 1)[s.group_row[rows]],
            phase=phase.astype(np.int64),
            replica_row=np.where(phase == Phase.RUNNING, 0, -1),
            target_row=zeros - 1,
            prompt_tokens=zeros + 100,
            generated_tokens=written,
            max_new_tokens=s.max_new_tokens[rows],
            queued_s=zeros.astype(np.float64),
            placed_s=zeros.astype(np.float64),
            moved_s=np.full(len(rows), -np.inf),
            moves=zeros,
            deferred=zeros,
            restarts=zeros,
            turns=s.turns[rows] * written // np.maximum(s.length[rows], 1),
            oldest_weight_version=zeros + self.number,
            regret=np.full(len(rows), np.nan),
            repeated_share=np.full(len(rows), np.nan),
            draft_tokens=zeros + AS_REPLICA,
        )

    def _groups(self, rows: Ints, ended: Bools) -> GroupTable:
        s = self.step
        size = np.bincount(s.group_row, minlength=len(s.prompt_key))
        over = np.bincount(s.group_row[ended], minlength=len(s.prompt_key))
        return GroupTable(
            group_id=self.number * 1_000_000 + rows,
            prompt_key=s.prompt_key[rows],
            size=size[rows],
            ended=over[rows],
            step=np.full(len(rows), self.number),
            rewarded=np.zeros(len(rows), dtype=np.int64),
            reward_sum=np.zeros(len(rows)),
            reward_low=np.full(len(rows), np.inf),
            reward_high=np.full(len(rows), -np.inf),
            features=s.features[rows],
        )

    def _ended(self, rows: Ints) -> EndedTable:
        s = self.step
        cut = s.cut_at[rows] < s.length[rows]
        return EndedTable(
            trajectory_id=self.first_id + rows,
            group_id=self.number * 1_000_000 + s.group_row[rows],
            prompt_key=s.prompt_key[s.group_row[rows]],
            prompt_tokens=np.full(len(rows), 100),
            generated_tokens=self._tokens[rows],
            censored=s.truncated[rows] | cut,
            turns=np.where(cut, 0, s.turns[rows]),
            weight_version=np.full(len(rows), self.number),
        )


def _starts(tokens: Ints, concurrency: int) -> Ints:
    """(n,) when each begins."""
    running: list[int] = []
    starts = np.zeros(len(tokens), dtype=np.int64)
    for row, own in enumerate(tokens.tolist()):
        starts[row] = heapq.heappop(running) if len(running) >= concurrency else 0
        heapq.heappush(running, int(starts[row]) + own)
    return starts
