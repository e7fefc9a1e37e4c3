"""The desk of clients that carry their trajectories out themselves: events in, orders out.

Each call of a client becomes a trajectory of the ledger; samples of one prompt join one group while
it is open.  The control loop decides, the lease fleet hands out where to go, and what clients tell
drives the rest.  Nothing here waits: orders lie in the client's outbox until it fetches them.

A client that has not fetched for `term_s` is gone: its trajectories are abandoned and its requests
aborted.  A call that goes wrong in here is set free: its client goes on by itself.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from steersman.controller.core import Controller
from steersman.controller.gateway.arrivals import Arrivals
from steersman.controller.gateway.families import Families
from steersman.controller.gateway.identity import Told
from steersman.controller.gateway.info import sample_info
from steersman.controller.gateway.pace import Pace
from steersman.controller.ledger import Ledger
from steersman.controller.loop import ControlLoop
from steersman.controller.sidecar.leases.errand import Errand
from steersman.controller.sidecar.leases.outbox import Outbox
from steersman.controller.sidecar.leases.wire import Begin, Done, Event, Free, Gone, Order, Report
from steersman.controller.steering import Steering, begin_run
from steersman.controller.trace import records
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import Objective, TrainerSignal
from steersman.mechanisms.execution import Execution, ToEnd
from steersman.mechanisms.fleet import EndReason
from steersman.mechanisms.leases.fleet import LeaseFleet
from steersman.mechanisms.leases.lease import LeaseEnd

_ABANDON = ToEnd(Disposition.ABANDONED)
_FAIL = ToEnd(Disposition.FAILED)
_CUT = ToEnd(Disposition.STOPPED, CorrectnessClass.EMPIRICAL)
SWEEP_S = 1.0
"""Between looks for clients that are gone."""

log = logging.getLogger(__name__)


class Desk:
    """All open calls on one fleet under one controller.  Use as an async context manager."""

    def __init__(
        self,
        fleet: LeaseFleet,
        controller: Controller,
        *,
        trace: TraceWriter | None = None,
        objective: Objective = Objective.BARRIER,
        may_defer: bool = False,
        term_s: float = 120.0,
    ) -> None:
        """`term_s`: seconds without a fetch after which a client is taken for gone."""
        self.fleet, self.controller = fleet, controller
        self.trace = trace if trace is not None else NoTrace()
        self.ledger = Ledger(fleet, self.trace, time.monotonic, run_id=uuid.uuid4().hex[:8])
        self.ledger.on_change, self.ledger.on_end = self._on_change, self._on_end
        config = controller.config
        self.pace = Pace(objective, max_lag=config.max_lag if may_defer else 0)
        begin_run(self.trace, config, fleet)
        self.loop = ControlLoop(controller, self.ledger, self.trace, self._signal)
        self.set_free = 0
        """Calls that went wrong in here, and whose clients go on by themselves."""
        self._arrivals = Arrivals(fleet, self.ledger)
        self._families = Families(self.ledger)
        self._turns: dict[str, tuple[str, int]] = {}
        """By session, the first turn's prompt and how many turns there were: the k-th turns of a
        prompt's conversations are compared with each other."""
        self._errands: dict[tuple[str, int], Errand] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._term_s = term_s
        self._steering: Steering | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._taking_in = False

    async def __aenter__(self) -> Self:
        self._steering = Steering(self.loop, self.fleet, self._on_change)
        self._sweeping = asyncio.create_task(self._sweep(), name="steersman-sweep")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for key in list(self._errands):
            self._free(key, "the controller ends")
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._steering is not None:
            await self._steering.stop()
        await self.fleet.close()
        self.trace.write(records.RunEnded(t_s=self.ledger.now_s(), clean=kind is None))
        self.trace.close()

    @property
    def open_calls(self) -> int:
        """Calls whose end was not told yet."""
        return len(self._errands)

    # What clients tell

    def tell(self, client: str, events: Sequence[Event]) -> None:
        """Take events in, in their order.  Never raises."""
        self._taking_in = True
        for event in events:
            try:
                self._take(client, event)
            except Exception as error:
                log.exception("a client's %s went wrong", type(event).__name__)
                self._free((client, event.call), f"the controller failed: {error!r}")
        self._taking_in = False
        if self.ledger.waiting:
            self.loop.wake()

    async def fetch(self, client: str, wait_s: float) -> list[Order]:
        """The client's next orders, as soon as there are some, or none after `wait_s`."""
        return await self._outbox(client).fetch(wait_s)

    # What the trainer tells

    def weights_changed(self, weight_version: int) -> None:
        """An engine has these weights; the newest that any has are the trainer's."""
        if weight_version <= self.pace.weight_version:
            return
        self.pace.weights_changed(weight_version)
        self.trace.write(
            records.WeightsPushed(
                t_s=self.ledger.now_s(), weight_version=weight_version, seconds=0.0
            )
        )
        self.loop.wake()

    # Inside

    def _take(self, client: str, event: Event) -> None:
        if isinstance(event, Begin):
            self._begin(client, event)
            return
        errand = self._errands.get((client, event.call))
        if errand is None:  # it was abandoned, or set free, in the meantime
            if isinstance(event, Report):
                self._outbox(client).put(Free(event.call, "it is not known here (any more)"))
        elif isinstance(event, Gone):
            self._leave(errand, "its caller went away")
        else:
            self._report(errand, event)

    def _begin(self, client: str, begin: Begin) -> None:
        now_s = self.ledger.now_s()
        if self.pace.arrives(now_s, not self._errands, begin.step):
            self._step_begins()
        self._families.sweep(now_s)
        errand = Errand(client, begin, self._budget(begin), self._send)
        self._errands[errand.key] = errand
        first, turn = self._turns.get(begin.session, (begin.prompt, 0))
        self._turns[begin.session] = first, turn + 1
        name = f"{first}/turn-{turn}" if turn else first
        told = Told(session=begin.session)
        (errand.execution,) = self._families.join(told, name, [errand], self.pace.step)
        if not self.loop.held:
            mine = [errand.execution]
            for decision in self._arrivals.decide(mine, begin.session, time.monotonic()):
                self.loop.carry_out(decision)

    def _budget(self, begin: Begin) -> int:
        """An engine ends a sequence at its own limit, whatever was asked for."""
        limits = [info.max_model_len - begin.prompt_tokens for info in self.fleet.replicas]
        return max(min([begin.max_tokens, *limits]), 1)

    def _report(self, errand: Errand, report: Report) -> None:
        execution = self._running(errand)
        version = report.weight_version
        if version is not None:
            self.weights_changed(version)
        if report.replica_lost and execution.replica is not None:
            self.fleet.lose(execution.replica, report.detail)
        if (
            report.reason is EndReason.ABORT
            and not errand.begin.resumes
            and execution.phase is Phase.RUNNING
        ):
            execution.leave(_CUT, "the trainer aborted it, and it does not resume")
        self.fleet.end(
            report.attempt_id,
            LeaseEnd(
                report.reason,
                report.tokens,
                self.pace.weight_version if version is None else version,
                report.detail,
            ),
        )
        # If that lease was not open (its replica was given up), the client follows its next order.

    def _running(self, errand: Errand) -> Execution:
        """The execution that has the errand's slot now: a restart may have replaced the first."""
        execution = errand.execution
        assert execution is not None
        if execution.phase is Phase.ENDED:
            for other in self.ledger.executions.values():
                if other.spec.payload is errand:
                    errand.execution = execution = other
                    break
        return execution

    def _leave(self, errand: Errand, why: str) -> None:
        execution = self._running(errand)
        attempt = execution.attempt
        execution.leave(_ABANDON, why)
        if attempt is not None:
            self.fleet.lose_lease(attempt.request.attempt_id, why)

    def _send(self, client: str, order: Order) -> None:
        self._outbox(client).put(order)

    def _outbox(self, client: str) -> Outbox:
        return self._outboxes.setdefault(client, Outbox())

    def _on_end(self, execution: Execution) -> None:
        """A trajectory has ended, and nothing takes its slot."""
        payload = execution.spec.payload
        assert isinstance(payload, Errand)
        if payload.restarts:
            execution.correctness = max(execution.correctness, CorrectnessClass.EMPIRICAL)
        if self._errands.pop(payload.key, None) is not None:
            assert execution.disposition is not None
            done = Done(
                payload.begin.call,
                execution.disposition.value,
                len(execution.tokens),
                execution.detail,
                sample_info(execution, self.pace.weight_version),
            )
            if execution.disposition is not Disposition.ABANDONED:
                self._send(payload.client, done)
        if execution.segments:
            self._arrivals.settle(payload.begin.session, execution.segments[-1].replica)
        execution.tokens = []
        self._families.ended(execution.spec.group_id, self.ledger.now_s())

    def _free(self, key: tuple[str, int], why: str) -> None:
        """Its client goes on alone, with whatever request of it is under way."""
        errand = self._errands.pop(key, None)
        self.set_free += 1
        self._send(key[0], Free(key[1], why))
        if errand is None or errand.execution is None:
            return
        execution = self._running(errand)
        if execution.attempt is None:
            execution.leave(_ABANDON, why)
        else:  # no abort: the engine goes on with it, for the client
            execution.intent = _ABANDON
            lost = LeaseEnd(EndReason.LOST, detail=why)
            self.fleet.end(execution.attempt.request.attempt_id, lost)

    async def _sweep(self) -> None:
        """Find clients that are gone."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self.fleet.all_lost:
                self._fail_all("no engine is left")
            for client, outbox in list(self._outboxes.items()):
                if outbox.silent_s() > self._term_s:
                    self._give_up(client)

    def _fail_all(self, why: str) -> None:
        """Nothing can be generated any more."""
        for errand in list(self._errands.values()):
            execution = self._running(errand)
            execution.detail = execution.detail or why
            execution.leave(_FAIL, why)

    def _give_up(self, client: str) -> None:
        del self._outboxes[client]
        mine = [errand for key, errand in self._errands.items() if key[0] == client]
        if mine:
            log.warning("a client with %d calls is silent and taken for gone", len(mine))
        for errand in mine:
            self._leave(errand, "its client is silent")

    def _step_begins(self) -> None:
        self._turns.clear()
        self.trace.write(self.pace.begun())
        self.ledger.resume_parked(f"step {self.pace.step} began")

    def _signal(self) -> TrainerSignal:
        """Asked right before each observation."""
        self.fleet.estimate_progress()
        return self.pace.signal(self.controller.config.normaliser)

    def _on_change(self) -> None:
        if self._taking_in:
            return
        if self.ledger.waiting:
            self.loop.wake()
        elif self._errands and not any(self.ledger.inflight.values()):
            # nothing runs, so nothing will ever begin a step for what is parked
            asyncio.get_running_loop().call_soon(
                self.ledger.resume_parked, "nothing else is in flight"
            )
