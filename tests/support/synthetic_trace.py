"""A trace of a run that never was: two or more replicas, heavy-tailed lengths, a learning curve.

Time is simulated token by token: an iteration of a replica takes `fixed_s + per_sequence_s * b`.
With `steer`, long trajectories are moved off a crowded replica, and the last ones are deferred.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from steersman.controller.trace import records as rec
from steersman.mechanisms.fleet import ReplicaInfo, ReplicaStats, VersionSpan
from steersman.policies.decision import Action, Decision

CAP, PROMPT = 96, 6
FIXED_S, PER_SEQUENCE_S = 0.012, 0.0012


@dataclass
class _Sample:
    trajectory_id: int
    group_id: int
    slot: int
    length: int
    tokens: int = 0
    start: int = 0
    attempt: int = 0
    replica: str = ""
    moves: int = 0
    deferred: int = 0
    segments: list[rec.Segment] = field(default_factory=list)


@dataclass
class SyntheticRun:
    """`records()` yields the whole trace."""

    policy: str = "tail_planner"
    steer: bool = True
    steps: int = 8
    groups: int = 6
    size: int = 8
    replicas: int = 2
    seed: int = 0
    pools: dict[int, tuple[int, list[_Sample], int]] = field(default_factory=dict)
    t_s: float = 0.0
    tick: int = 0

    def records(self) -> Iterator[rec.Record]:
        """The run, from its start to its end."""
        names = [f"replica-{i}" for i in range(self.replicas)]
        self.random = random.Random(self.seed)
        self.parked: list[_Sample] = []
        yield rec.RunStarted(
            t_s=0.0,
            started_unix_s=1.79e9,
            config={"placement": {"name": self.policy}, "mode": "enforce"},
            replicas=[ReplicaInfo(name=name, max_num_seqs=32) for name in names],
            seed=self.seed,
        )
        yield rec.ControllerState(t_s=0.0, state="enforcing", why="mode = enforce")
        for step in range(self.steps):
            yield from self._step(step, names)
        yield from self._step(self.steps, names, drain=True)
        yield rec.RunEnded(t_s=self.t_s, clean=True)

    def _step(self, step: int, names: list[str], drain: bool = False) -> Iterator[rec.Record]:
        began = self.t_s
        resumed, self.parked = self.parked, []
        yield rec.StepStarted(
            t_s=began, step=step, weight_version=step, objective="barrier", max_lag=1,
            groups=0 if drain else self.groups,
        )  # fmt: skip
        for sample in resumed:
            yield self._phase(sample, "PARKED", "QUEUED", "step began")
        waiting = list(resumed)
        for _ in range(0 if drain else self.groups):
            fresh = yield from self._admit(step)
            waiting += fresh
        live: dict[str, list[_Sample]] = {name: [] for name in names}
        for sample in waiting:
            replica = names[self.random.randrange(len(names))]
            yield from self._decide(sample, Action.PLACE, replica, 0.0)
            yield from self._start(sample, replica, "QUEUED", live)
        while any(live.values()):
            yield from self._run(live, step, drain)
        yield from self._close(step, began)

    def _admit(self, step: int) -> Iterator[rec.Record]:
        group_id = len(self.pools)
        yield rec.GroupAdmitted(
            t_s=self.t_s, group_id=group_id, prompt_id=f"p{group_id}", prompt_key=group_id,
            prompt_tokens=PROMPT, size=self.size, max_new_tokens=CAP, step=step,
        )  # fmt: skip
        samples = []
        for slot in range(self.size):
            length = min(CAP, 3 + int(self.random.lognormvariate(2.4, 0.8)))
            sample = _Sample(group_id * self.size + slot, group_id, slot, length)
            samples.append(sample)
            yield rec.TrajectoryQueued(
                t_s=self.t_s, trajectory_id=sample.trajectory_id, group_id=group_id, slot=slot
            )
        self.pools[group_id] = (step, samples, self.size)
        return samples  # type: ignore[return-value]

    def _start(
        self, sample: _Sample, replica: str, old: str, live: dict[str, list[_Sample]]
    ) -> Iterator[rec.Record]:
        yield self._phase(sample, old, "RUNNING", "placed", replica)
        sample.start, sample.replica = sample.tokens, replica
        yield rec.AttemptStarted(
            t_s=self.t_s, attempt_id=f"x-{sample.trajectory_id}-{sample.attempt}",
            trajectory_id=sample.trajectory_id, replica=replica,
            prefix_tokens=PROMPT + sample.tokens, max_tokens=CAP - sample.tokens,
        )  # fmt: skip
        live[replica].append(sample)

    def _run(self, live: dict[str, list[_Sample]], step: int, drain: bool) -> Iterator[rec.Record]:
        busiest = max(live, key=lambda name: len(live[name]))
        self.t_s += FIXED_S + PER_SEQUENCE_S * len(live[busiest])
        self.tick += 1
        for name in live:
            for sample in list(live[name]):
                sample.tokens += 1
                if sample.tokens >= sample.length:
                    live[name].remove(sample)
                    yield from self._finish(sample, step)
        if self.tick % 20 == 0:
            for name, samples in live.items():
                stats = ReplicaStats(running=len(samples), iterations=self.tick)
                yield rec.ReplicaReport(t_s=self.t_s, replica=name, alive=True, stats=stats)
        if self.steer:
            yield from self._steer(live, step, drain)

    def _steer(
        self, live: dict[str, list[_Sample]], step: int, drain: bool
    ) -> Iterator[rec.Record]:
        low, high = sorted(live, key=lambda name: len(live[name]))[:: len(live) - 1]
        left = sum(len(samples) for samples in live.values())
        if len(live[high]) > len(live[low]) + 2:
            sample = max(live[high], key=lambda s: s.length)
            yield from self._decide(sample, Action.MIGRATE, low, 0.4)
            yield from self._leave(sample, live, "ABORT", step)
            sample.moves += 1
            yield from self._start(sample, low, "LEAVING", live)
        elif left <= 2 and not drain:
            for sample in [s for samples in live.values() for s in samples if not s.deferred]:
                yield from self._decide(sample, Action.DEFER, "", 0.9)
                yield from self._leave(sample, live, "ABORT", step)
                yield self._phase(sample, "LEAVING", "PARKED", "parked")
                sample.moves, sample.deferred = sample.moves + 1, sample.deferred + 1
                self.parked.append(sample)

    def _leave(
        self, sample: _Sample, live: dict[str, list[_Sample]], reason: str, step: int
    ) -> Iterator[rec.Record]:
        live[sample.replica].remove(sample)
        yield self._phase(sample, "RUNNING", "LEAVING", "steered", sample.replica)
        yield self._attempt_end(sample, reason.lower(), step)

    def _attempt_end(self, sample: _Sample, reason: str, step: int) -> rec.Record:
        written = sample.tokens - sample.start
        if written:
            sample.segments.append((step, sample.replica, sample.start, sample.tokens))
        sample.attempt += 1
        return rec.AttemptEnded(
            t_s=self.t_s, attempt_id=f"x-{sample.trajectory_id}-{sample.attempt - 1}",
            trajectory_id=sample.trajectory_id, replica=sample.replica, reason=reason,
            tokens=written, spans=[VersionSpan(step, 0, written)],
        )  # fmt: skip

    def _finish(self, sample: _Sample, step: int) -> Iterator[rec.Record]:
        cut = sample.length == CAP
        yield self._attempt_end(sample, "length" if cut else "stop", step)
        yield self._phase(sample, "RUNNING", "ENDED", "stop")
        versions = {version for version, _, _, _ in sample.segments}
        yield rec.TrajectoryEnded(
            t_s=self.t_s, trajectory_id=sample.trajectory_id, group_id=sample.group_id,
            slot=sample.slot, disposition="truncated" if cut else "finished",
            correctness="corrected" if len(versions) > 1 else "exact", weight=1.0,
            generated_tokens=sample.tokens, segments=sample.segments, moves=sample.moves,
            deferred=sample.deferred,
        )  # fmt: skip
        step_, samples, left = self.pools[sample.group_id]
        self.pools[sample.group_id] = (step_, samples, left - 1)

    def _decide(
        self, sample: _Sample, action: Action, replica: str, gain_s: float
    ) -> Iterator[rec.Record]:
        reason = {
            Action.PLACE: "its group has its prefix there",
            Action.MIGRATE: f"{replica} ends earlier and has room for its remaining tokens",
            Action.DEFER: "it alone holds the step; 1 of 48 answers waits for the next one",
        }[action]
        decision = Decision(
            trajectory_id=sample.trajectory_id, action=action, policy=self.policy, reason=reason,
            replica=replica, gain_s=gain_s * (1 + self.random.random()), cost_s=0.03,
        )  # fmt: skip
        yield rec.DecisionTaken(
            t_s=self.t_s, tick=self.tick, decision=decision, enforced=True, mode="enforcing"
        )
        yield rec.Outcome(
            t_s=self.t_s, tick=self.tick, trajectory_id=sample.trajectory_id,
            action=action.value, outcome="applied",
        )  # fmt: skip

    def _phase(
        self, sample: _Sample, old: str, new: str, why: str, replica: str = ""
    ) -> rec.Record:
        return rec.PhaseChanged(
            t_s=self.t_s, trajectory_id=sample.trajectory_id, old=old, new=new, why=why,
            replica=replica, generated_tokens=sample.tokens,
        )  # fmt: skip

    def _close(self, step: int, began: float) -> Iterator[rec.Record]:
        tokens = groups = 0
        for group_id, (_, samples, left) in sorted(self.pools.items()):
            if left:
                continue
            self.pools[group_id] = (0, [], 1)
            groups, tokens = groups + 1, tokens + sum(s.tokens for s in samples)
            ids = [s.trajectory_id for s in samples]
            yield rec.GroupEnded(t_s=self.t_s, group_id=group_id, trajectory_ids=ids, complete=True)
            for sample in samples:
                chance = 0.25 + 0.5 * step / self.steps
                reward = float(self.random.random() < chance)
                yield rec.Rewarded(t_s=self.t_s, trajectory_id=sample.trajectory_id, reward=reward)
        yield rec.StepEnded(
            t_s=self.t_s, step=step, seconds=self.t_s - began, tokens=tokens, groups=groups
        )
        self.t_s += 0.8
        yield rec.WeightsPushed(
            t_s=self.t_s, weight_version=step + 1, seconds=0.3, probe_max_difference=2.5e-6
        )
