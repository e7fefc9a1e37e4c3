"""A gateway without HTTP and without engines: real books, a real controller, time by hand.

`Scene` stands where viewers expect the gateway's desk.  Four engines write at the speed of an
affine model; samples have heavy-tailed lengths that depend on their number alone, so that the same
scene looks the same on every machine.  Nothing happens unless `play` is called.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.controllers import steered_by
from support.fake_fleet import FakeFleet, _Running

from steersman.controller.config import load_config
from steersman.controller.core import Controller
from steersman.controller.gateway.pace import Pace
from steersman.controller.gateway.tally import Tally
from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.loop import ControlLoop, LoopState
from steersman.controller.results import Prompt
from steersman.controller.trace.records import Record
from steersman.controller.trace.writer import TraceWriter
from steersman.controller.watching.record_counts import RecordCounts
from steersman.controller.watching.tap import TappedTrace
from steersman.estimators.lifecycle import Disposition
from steersman.estimators.observation import Normaliser, Objective, TrainerSignal
from steersman.mechanisms.execution import Execution, ToEnd
from steersman.mechanisms.fleet import Attempt, AttemptRequest, EndReason, ReplicaStats, Sampling

TICK_S = 0.25
FIXED_S, PER_SEQUENCE_S = 0.012, 0.0003
CAP, SLOTS, KV_TOKENS, PROMPT_TOKENS = 8192, 48, 80_000, 120


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class SceneEngine:
    """As `HttpFleet.engine` gives it."""

    url: str
    paused: bool = False
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass
class ScenePayload:
    """Implements `Payload`."""

    prompt_tokens: int = PROMPT_TOKENS
    bound: bool = False
    movable: bool = True
    restartable: bool = True

    def renew(self) -> None:
        """Nothing was kept."""


def length_of(trajectory_id: int) -> int:
    """Tokens that the model writes: half of them up to 600, one in thirty above 3,000."""
    return max(8, min(CAP, int(random.Random(trajectory_id * 7919).lognormvariate(6.4, 0.9))))


class SceneFleet(FakeFleet):
    """Engines that write at their own speed, with the reports that engines give."""

    def __init__(self, replicas: int, clock: Clock) -> None:
        super().__init__(replicas, max_model_len=CAP + 512, max_num_seqs=SLOTS, clock=clock)
        self._infos = [
            type(info)(
                name=f"engine-{i}",
                max_model_len=CAP + 512,
                max_num_seqs=SLOTS,
                kv_capacity_tokens=KV_TOKENS,
            )
            for i, info in enumerate(self._infos)
        ]
        self._running = {info.name: [] for info in self._infos}
        self._engines = {
            info.name: SceneEngine(f"http://10.0.0.{4 + i}:8000")
            for i, info in enumerate(self._infos)
        }
        self._counters: dict[str, Counter[str]] = {info.name: Counter() for info in self._infos}
        self._ahead_s: Counter[str] = Counter()

    def engine(self, name: str) -> SceneEngine:
        """As `HttpFleet` has it."""
        return self._engines[name]

    def play(self, seconds: float) -> None:
        """Let every living engine write for so long."""
        for info in self._infos:
            if self.is_alive(info.name) and not self._engines[info.name].paused:
                self._play(info.name, seconds)

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        attempt = super().start(replica, request)
        self._counters[replica]["prefill_tokens"] += PROMPT_TOKENS + len(request.token_ids)
        return attempt

    def stats(self, replica: str) -> ReplicaStats:
        counters, there = self._counters[replica], self._running[replica]
        return ReplicaStats(
            running=min(len(there), SLOTS),
            waiting=max(len(there) - SLOTS, 0),
            kv_cache_usage=min(self._held(replica) / KV_TOKENS, 1.0),
            iterations=counters["iterations"],
            busy_s=counters["busy_ns"] / 1e9,
            sequences_run=counters["sequences"],
            prefill_tokens=counters["prefill_tokens"],
            weight_version=self.weight_version,
            reported_s=self._clock() if self.is_alive(replica) else self._clock() - 30.0,
        )

    def _held(self, replica: str) -> int:
        return sum(
            PROMPT_TOKENS + len(r.attempt.request.token_ids) + len(r.tokens)
            for r in self._running[replica]
        )

    def _play(self, replica: str, seconds: float) -> None:
        self._ahead_s[replica] += seconds  # type: ignore[assignment]
        while self._running[replica]:
            there = self._running[replica]
            took_s = FIXED_S + PER_SEQUENCE_S * min(len(there), SLOTS)
            count = max(1, min(16, int(self._ahead_s[replica] / took_s)))
            if self._ahead_s[replica] < count * took_s:
                break
            self._ahead_s[replica] -= count * took_s  # type: ignore[assignment]
            counters = self._counters[replica]
            counters["iterations"] += count
            counters["busy_ns"] += int(count * took_s * 1e9)
            counters["sequences"] += count * min(len(there), SLOTS)
            for running in there[:SLOTS]:
                self._write_some(running, count)
            self.confirm(replica)
        if not self._running[replica]:
            self._ahead_s[replica] = 0
        self.confirm(replica)

    def _write_some(self, running: _Running, count: int) -> None:
        request = running.attempt.request
        trajectory_id = int(request.attempt_id.split("-")[1])
        before = len(request.token_ids)
        left = length_of(trajectory_id) - before - len(running.tokens)
        written = max(min(count, left), 0)
        running.tokens += [7] * written
        running.versions += [self.weight_version] * written
        running.attempt.generated_tokens = len(running.tokens)
        if left <= count:
            running.end = EndReason.LENGTH if length_of(trajectory_id) == CAP else EndReason.STOP


class SceneLoop(ControlLoop):
    """Decides when it is told to."""

    def tick(self) -> None:
        """One tick of the real loop, without its tasks and threads."""
        self._pulse_s = self._ledger.now_s()
        if self.held:
            return
        observation = self._observe(learning=True)
        if self.state in (LoopState.OFF, LoopState.FAIL_OPEN):
            self._act_by_default(observation)
            return
        verdict = self._controller.decide(observation)
        self.latest = observation, verdict
        enforced = self.state is LoopState.ENFORCING
        self._record(verdict, observation, enforced)
        if enforced:
            self._apply(verdict.decisions, observation.tick)
            self._keep_alive()
        else:
            self._act_by_default(observation)

    def fail_open(self, why: str) -> None:
        """As after a decision that took too long."""
        self._enter(LoopState.FAIL_OPEN, why)


@dataclass(eq=False)
class SceneQuestion:
    """A client request."""

    public_id: str
    executions: list[Execution]


class Scene:
    """The gateway's desk, as far as viewers look at it."""

    def __init__(
        self,
        *overrides: str,
        replicas: int = 4,
        policy: Any = None,
        viewers: Iterable[Callable[[Record], None]] = (),
    ) -> None:
        self.clock = Clock()
        self.fleet = SceneFleet(replicas, self.clock)
        self.counts, self.tally = RecordCounts(), Tally()
        self.trace = TappedTrace(TraceWriter(None), self.counts.take, *viewers)
        self.ledger = Ledger(self.fleet, self.trace, self.clock, run_id="scene")
        self.ledger.on_end = self._ended
        config = load_config(None, overrides, environ={})
        self.controller = (
            Controller.from_config(config) if policy is None else steered_by(policy, *overrides)
        )
        self.pace = Pace(Objective.BARRIER, max_lag=1)
        self.loop = SceneLoop(self.controller, self.ledger, self.trace, self._signal)
        self.questions: dict[int, SceneQuestion] = {}
        self.paused = self.draining = False
        self.queue_limit = 16_384
        self.looks = 0
        """Times that somebody who serves it asked for its time."""
        self._groups: list[GroupState] = []
        self._numbers = 0

    @property
    def records(self) -> list[Record]:
        """What was traced."""
        return self.trace.inner.records

    def now_s(self) -> float:
        """As the ledger has it."""
        self.looks += 1
        return self.ledger.now_s()

    def close(self) -> None:
        """Stop its threads."""
        self.loop.close()

    def step(self, prompts: int, size: int, first: int = 0) -> None:
        """The trainer asks for so many prompts, one request with n = `size` for each."""
        self.pace.arrives(self.now_s(), True, None)
        for i in range(first, first + prompts):
            self.ask(f"math/{i:05d}", size)

    def ask(self, prompt_id: str, size: int) -> SceneQuestion:
        """One request for `size` samples of a prompt."""
        group = self.ledger.admit(
            Prompt(prompt_id, ()), 0, CAP, Sampling(), self.pace.step, prompt_tokens=PROMPT_TOKENS
        )
        self._groups.append(group)
        executions = self.ledger.join(group, CAP, [ScenePayload() for _ in range(size)])
        self._numbers += 1
        question = SceneQuestion(f"cmpl-{0x9E3779B1 * self._numbers % 2**32:08x}", executions)
        self.questions[self._numbers] = question
        self.tally.requests += 1
        return question

    def play(self, seconds: float) -> None:
        """Tick by tick."""
        for _ in range(round(seconds / TICK_S)):
            self.loop.tick()
            self.clock.now_s += TICK_S
            self.fleet.play(TICK_S)

    def push_weights(self) -> None:
        """The next version is on the fleet."""
        self.fleet.weight_version = self.pace.weights_changed(None)

    def cut(self, question: SceneQuestion) -> None:
        """Its client went away."""
        for execution in question.executions:
            execution.leave(ToEnd(Disposition.ABANDONED), "its client went away")

    def settle_groups(self) -> None:
        """Forget complete groups, as the desk does after a while."""
        for group in [g for g in self._groups if g.complete]:
            self._groups.remove(group)
            self.ledger.close(group)

    def reward_complete(self) -> None:
        """The trainer scores what is complete: easy and hard prompts, all-right and all-wrong."""
        for group in [g for g in self._groups if g.complete]:
            easy = random.Random(group.group_id).random() ** 0.5
            for execution in group.slots:
                trajectory_id = execution.spec.trajectory_id
                right = random.Random(trajectory_id).random() < easy
                self.ledger.reward(trajectory_id, float(right))
        self.settle_groups()

    def _ended(self, execution: Execution) -> None:
        for number, question in list(self.questions.items()):
            if all(e.disposition is not None for e in question.executions):
                del self.questions[number]

    def _signal(self) -> TrainerSignal:
        return self.pace.signal(Normaliser.STD)


def busy_scene(seconds: float, *, overrides: Sequence[str] = (), **options: Any) -> Scene:
    """A scene late in its second step, when a few long trajectories are left."""
    scene = Scene(*overrides, **options)
    scene.step(prompts=8, size=8)
    scene.play(12.0)
    scene.push_weights()
    scene.step(prompts=20, size=8, first=8)
    scene.play(seconds)
    scene.loop.tick()
    return scene
