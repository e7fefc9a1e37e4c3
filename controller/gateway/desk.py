"""The desk: client requests in, answers out, with a ledger and a control loop between.

Each ask of a request becomes a trajectory.  Requests for the same prompt join one group while it is
open, so that siblings tell the estimators what to expect even where they come one by one.  A
trajectory that ends tells its request; a request whose client went away has its trajectories
aborted.  Whatever happens to the controller, the loop's fallback places what waits; whatever
happens to an engine, the trajectory goes on elsewhere with the tokens that are known.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from steersman.controller.core import Controller
from steersman.controller.gateway.arrivals import Arrivals
from steersman.controller.gateway.clock import PausableClock
from steersman.controller.gateway.families import Families
from steersman.controller.gateway.pace import Pace
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.room import OverloadedError, Room
from steersman.controller.gateway.settings import GatewayConfig
from steersman.controller.gateway.tally import Tally
from steersman.controller.gateway.tracing import RequestSpans
from steersman.controller.ledger import Ledger
from steersman.controller.loop import ControlLoop
from steersman.controller.steering import Steering, begin_run
from steersman.controller.trace import records
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.controller.watching.record_counts import RecordCounts
from steersman.controller.watching.tap import TappedTrace
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import TrainerSignal
from steersman.mechanisms.execution import Execution, ToEnd
from steersman.mechanisms.http_vllm.ask import Abilities, Answer, Ask, Delta
from steersman.mechanisms.http_vllm.contract import ServedFleet

_ABANDON = ToEnd(Disposition.ABANDONED)
_CUT = ToEnd(Disposition.STOPPED, CorrectnessClass.EMPIRICAL)

log = logging.getLogger(__name__)


class Desk:
    """All open requests on one fleet under one controller.  Use as an async context manager."""

    def __init__(
        self,
        fleet: ServedFleet,
        controller: Controller,
        settings: GatewayConfig,
        *,
        trace: TraceWriter | None = None,
        clock: PausableClock | None = None,
        spans: RequestSpans | None = None,
    ) -> None:
        self.fleet, self.controller, self.settings = fleet, controller, settings
        self.clock = clock if clock is not None else PausableClock()
        self.counts = RecordCounts()
        self.spans = spans
        viewers = [self.counts.take, *([spans.take] if spans is not None else [])]
        self.trace = TappedTrace(trace if trace is not None else NoTrace(), *viewers)
        self.run_id = uuid.uuid4().hex[:8]
        self.ledger = Ledger(fleet, self.trace, self.clock, run_id=self.run_id)
        self.ledger.on_change, self.ledger.on_end = self._on_change, self._on_end
        config = controller.config
        self.pace = Pace(settings.objective, max_lag=config.max_lag if settings.may_defer else 0)
        begin_run(self.trace, config, self.fleet)
        self.loop = ControlLoop(controller, self.ledger, self.trace, self._signal)
        self.arrivals = Arrivals(fleet, self.ledger)
        self.tally = Tally()
        self.questions: dict[int, Question] = {}
        """Open ones, by number."""
        self.paused = self.draining = False
        self._open: dict[int, tuple[Question, Ask]] = {}
        """By unfinished trajectory."""
        self._room, self._families = Room(fleet, settings), Families(self.ledger)
        self._steering: Steering | None = None
        self._next_number = 0
        self._taking_in = False

    async def __aenter__(self) -> Self:
        self._steering = Steering(self.loop, self.fleet, self._on_change)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.draining = True
        self._cut(list(self.questions.values()), "the gateway ends")
        if self._steering is not None:
            await self._steering.stop()
        self.trace.write(records.RunEnded(t_s=self.now_s(), clean=kind is None))
        self.trace.close()

    def now_s(self) -> float:
        """Seconds since the desk was opened, without those it was paused."""
        return self.ledger.now_s()

    # Requests

    def begin(self, question: Question) -> None:
        """Take a request in; its answer comes through `question`.

        Raises `OverloadedError` if there is no room; then nothing was started.
        """
        try:
            self._room.check(len(self._open), len(question.asks), self.draining)
        except OverloadedError:
            self.tally.refused += 1
            raise
        now_s, told = self.now_s(), question.told
        if self.pace.arrives(now_s, not self._open, told.step):
            self._step_begins()
        self._families.sweep(now_s)
        question.number = self._next_number
        self._next_number += 1
        self.questions[question.number] = question
        question.unfinished = len(question.asks)
        self.tally.requests += 1
        self._taking_in = True
        try:
            self._enter(question)
            self._place_at_once(question)
        finally:
            self._taking_in = False
        if self.spans is not None:
            self.spans.begin(question)
        if self.ledger.waiting:
            self.loop.wake()

    def abandon(self, question: Question) -> None:
        """Its client went away: nobody is told of its end."""
        if not question.finished.is_set():
            question.abandoned, question.on_finished = True, None
            self.tally.abandoned += 1
            self._leave(question, _ABANDON, "its client went away")

    def abort(self, ids: Iterable[str] | None, why: str = "aborted by the trainer") -> int:
        """End requests, by the ids their clients know, with what they have; None: all of them.

        Returns how many were open.
        """
        wanted = None if ids is None else set(ids)
        found = [q for q in self.questions.values() if wanted is None or _is_among(q, wanted)]
        self._cut(found, why)
        return len(found)

    # The trainer's control plane

    def pause(self, mode: str) -> None:
        """The trainer pauses the fleet: clocks stand still, nothing is placed."""
        self.paused = self.loop.held = True
        if mode == "abort" and self.settings.on_abort == "return":
            self._cut(list(self.questions.values()), "the trainer paused the fleet and aborts")
        self.clock.pause()

    def resume(self) -> None:
        """The fleet goes on."""
        self.clock.resume()
        self.paused = self.loop.held = False
        self.loop.wake()

    def weights_changed(self, weight_version: int | None) -> None:
        """New weights are on every living engine; None: the trainer gave them no number."""
        version = self.pace.weights_changed(weight_version)
        self.fleet.expect_weights(version)
        self.trace.write(
            records.WeightsPushed(t_s=self.now_s(), weight_version=version, seconds=0.0)
        )
        self.loop.wake()

    async def drain(self, timeout_s: float) -> int:
        """Take nothing in any more and wait for what is open; returns how many had to be cut."""
        self.draining = True
        open_ones = list(self.questions.values())
        waits = [asyncio.create_task(q.finished.wait()) for q in open_ones]
        if waits:
            _, late = await asyncio.wait(waits, timeout=timeout_s)
            for wait in late:
                wait.cancel()
        left = list(self.questions.values())
        self._cut(left, "the gateway ends")
        return len(left)

    # Inside

    @property
    def abilities(self) -> Abilities:
        """What a living engine offers; the fleet's engines are alike."""
        for info in self.fleet.replicas:
            if self.fleet.is_alive(info.name):
                return self.fleet.engine(info.name).abilities
        return Abilities()

    @property
    def queue_limit(self) -> int:
        """Most samples that may be open at once: those that run and those that wait."""
        return self._room.limit

    def _step_begins(self) -> None:
        self.trace.write(self.pace.begun())
        self.ledger.resume_parked(f"step {self.pace.step} began")

    def _enter(self, question: Question) -> None:
        """A trajectory for each of its asks."""
        for prompt, name in enumerate(question.prompts):
            pairs = zip(question.asks, question.group_of, strict=True)
            asks = [ask for ask, of in pairs if of == prompt]
            joined = self._families.join(question.told, name, asks, self.pace.step)
            question.executions += joined
            for execution, ask in zip(joined, asks, strict=True):
                self._open[execution.spec.trajectory_id] = question, ask

    def _place_at_once(self, question: Question) -> None:
        if self.loop.held:
            return
        decisions = self.arrivals.decide(
            question.executions, question.told.session, time.monotonic()
        )
        for decision in decisions:
            self.loop.carry_out(decision)
        self.tally.placed_at_once += len(decisions)

    def _leave(self, question: Question, intent: ToEnd, why: str) -> None:
        for execution in question.executions:
            if execution.phase is not Phase.ENDED:
                execution.leave(intent, why)

    def _cut(self, questions: Sequence[Question], why: str) -> None:
        for question in questions:
            self._leave(question, _CUT, why)

    def _on_end(self, execution: Execution) -> None:
        """A trajectory has ended for good."""
        trajectory_id = execution.spec.trajectory_id
        question, ask = self._open.pop(trajectory_id)
        now_s = self.now_s()
        self._room.ended(now_s)
        self.tally.generated_tokens += len(execution.tokens)
        self.tally.prompt_tokens += ask.prompt_tokens
        if ask.restarts:
            execution.correctness = max(execution.correctness, CorrectnessClass.EMPIRICAL)
        if execution.disposition is Disposition.FAILED and question.failure is None:
            question.failure = ask.answer or _failure(502, execution.detail)
        elif execution.disposition is Disposition.STOPPED:
            if ask.dialect is None and question.failure is None:
                question.failure = _failure(503, "it was aborted")
            else:
                ask.take(Delta([], finish_reason="abort"))
        execution.tokens, execution.logprobs = [], []
        question.unfinished -= 1
        if question.unfinished == 0:
            self._finished(question)
        elif question.failure is not None and not question.abandoned:
            # one sample of the request cannot be had, so nobody will get the others
            question.abandoned = True
            asyncio.get_running_loop().call_soon(
                self._leave, question, _ABANDON, "another sample of its request failed"
            )
        self._families.ended(execution.spec.group_id, now_s)

    def _finished(self, question: Question) -> None:
        del self.questions[question.number]
        if self.spans is not None:
            self.spans.end(question)
        self.tally.failed += question.failure is not None
        if question.told.session and (segments := question.executions[-1].segments):
            self.arrivals.settle(question.told.session, segments[-1].replica)
        question.finished.set()
        question.tell()
        if question.abandoned:
            question.release()
        if question.on_finished is not None:
            question.on_finished(question)

    def _signal(self) -> TrainerSignal:
        return self.pace.signal(self.controller.config.normaliser)

    def _on_change(self) -> None:
        """Something waits, but not while a request is being taken in: `begin` wakes the loop."""
        if self._taking_in:
            return
        if self.ledger.waiting:
            self.loop.wake()
        elif self._open and not any(self.ledger.inflight.values()):
            # nothing runs, so nothing will ever begin a step for what is parked
            asyncio.get_running_loop().call_soon(
                self.ledger.resume_parked, "nothing else is in flight"
            )


def _is_among(question: Question, ids: set[str]) -> bool:
    """Engines number the prompts of a request: `cmpl-X-0` is a part of `cmpl-X`."""
    name = question.public_id
    return name in ids or any(f"{name}-{i}" in ids for i in range(len(question.prompts)))


def _failure(status: int, detail: str) -> Answer:
    """In the engines' own form."""
    error: dict[str, Any] = {
        "message": f"no engine could answer: {detail}",
        "type": "BadGatewayError" if status == 502 else "ServiceUnavailableError",
        "param": None,
        "code": status,
    }
    return Answer(status, msgspec.json.encode({"error": error}))
