"""The asyncio shell around `decide`: observe, decide, record, apply; and what if that fails.

A tick comes every `tick_s`, and at once when something waits for a placement or a group is complete
(not at each end, of which a large step has more than there is time to decide after).  In mode
`enforce` the controller's decisions are carried out; in `shadow` they are only recorded and the
fallback policy (the trainer's default rule) acts; in `off`, the fallback acts alone.

It fails open: when `decide` raises or takes too long, or the steering task dies or hangs, the
fallback places what waits, and nothing in flight is touched.  A slow decision is forgiven once it
returns; a task that died is not restarted (whatever killed it is still there).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import numpy as np

from steersman.controller.config import Config
from steersman.controller.core import Controller, Verdict
from steersman.controller.deciding import DecidingThread
from steersman.controller.horizon.runner import HorizonThread
from steersman.controller.ledger import Ledger
from steersman.controller.plugins import build, names
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Observation, TrainerSignal
from steersman.mechanisms.contract import Mechanism, OutcomeKind
from steersman.policies.contract import PlacementPolicy
from steersman.policies.decision import Action, Decision

COALESCE_S = 0.003
"""Wait after a wake-up before looking: trajectories are admitted, and end, in bursts."""
WATCH_S = 0.1
"""How often the steering task's pulse is felt; with `decide_timeout_s` below 0.9 s the fleet is
back on the default within a second."""
MAX_ERRORS = 3
"""Failed decisions in a row after which the controller is switched off: a bug stays a bug."""

log = logging.getLogger(__name__)


class LoopState(StrEnum):
    """Who decides."""

    ENFORCING = "enforcing"
    SHADOW = "shadow"
    FAIL_OPEN = "fail_open"
    """The fallback, until the controller answers again."""
    OFF = "off"
    """The fallback, for good."""


class ControlLoop:
    """Steers the trajectories of one ledger."""

    def __init__(
        self,
        controller: Controller,
        ledger: Ledger,
        trace: TraceWriter,
        signal: Callable[[], TrainerSignal],
    ) -> None:
        self.config: Config = controller.config
        self.state = LoopState.OFF
        self.why = ""
        self._controller = controller
        self._ledger, self._trace, self._signal = ledger, trace, signal
        self._thread = DecidingThread(controller)
        self._horizon = HorizonThread(controller.placement, self.config.horizon)
        self._fallback: PlacementPolicy = build(
            "policies.placement", self.config.fallback.name, self.config.fallback.options
        )
        self._mechanisms = load_mechanisms()
        self._wake = asyncio.Event()
        self._pulse_s = 0.0
        self._tick = self._errors = 0
        self.held = False
        """Nothing is decided while it is set: the trainer has paused the fleet."""
        self.latest: tuple[Observation, Verdict] | None = None
        """What was last decided, and on what; for viewers."""
        self._health_step = -1
        """Step whose beginning the estimators' health was last recorded at."""
        self._progress_s = float("-inf")
        starting = {"enforce": LoopState.ENFORCING, "shadow": LoopState.SHADOW}
        self._normal = starting.get(self.config.mode, LoopState.OFF)
        self._enter(self._normal, f"mode = {self.config.mode}")

    def wake(self) -> None:
        """Something waits for a decision."""
        self._wake.set()

    def switch_off(self, why: str) -> None:
        """The kill switch: from now on the fallback decides."""
        self._enter(LoopState.OFF, why)
        self.wake()

    def carry_out(self, decision: Decision) -> None:
        """Apply a decision that was taken between two ticks, as one of the last tick's."""
        self._write_decision(decision, self._tick, enforced=True)
        self._apply([decision], self._tick)

    async def run(self) -> None:
        """Steer until cancelled; whatever becomes of the steering task, the fallback goes on."""
        steering = asyncio.create_task(self._steer(), name="steersman-steering")
        try:
            why = await self._watch(steering)
        finally:
            steering.cancel()
            await asyncio.gather(steering, return_exceptions=True)
        await self.run_default(why)

    async def run_default(self, why: str) -> None:
        """Let the fallback act until cancelled."""
        self._enter(LoopState.OFF, why)
        while True:
            await self._next_tick()
            if self.held:
                continue
            self._act_by_default(self._observe(learning=True))

    def close(self) -> None:
        """No decision will be asked for any more."""
        self._thread.close()
        self._horizon.close()

    async def _watch(self, steering: asyncio.Task[None]) -> str:
        """Why the steering task cannot be relied on any more."""
        self._pulse_s = felt_s = seen_s = self._ledger.now_s()
        allowed_s, silent_s = self.config.decide_timeout_s + self.config.tick_s, 0.0
        while not steering.done():
            await asyncio.wait({steering}, timeout=WATCH_S)
            before_s, seen_s = seen_s, self._ledger.now_s()
            # a trainer that blocks the event loop silences us both: that is nobody's fault
            silent_s += min(seen_s - before_s, 2 * WATCH_S)
            if self._pulse_s != felt_s:
                felt_s, silent_s = self._pulse_s, 0.0
            if not steering.done() and silent_s > allowed_s:
                return f"the steering task has been silent for {silent_s:.2f} s"
        if steering.cancelled():
            return "the steering task was cancelled"
        error = steering.exception()
        log.error("steering failed, the fallback takes over", exc_info=error)
        return f"the steering task failed: {error!r}"

    async def _steer(self) -> None:
        while True:
            await self._next_tick()
            if self.held:
                continue
            off, busy = self.state is LoopState.OFF, self._thread.busy
            observation = self._observe(learning=off or not busy)
            if off or busy:
                self._act_by_default(observation)
                continue
            verdict = await self._decide(observation)
            if verdict is None:
                self._act_by_default(observation)
                continue
            self.latest = observation, verdict
            self._horizon.look(observation, verdict.forecast)
            enforced = self.state is LoopState.ENFORCING
            self._record(verdict, observation, enforced)
            self._record_health(verdict, observation.trainer.step)
            if enforced:
                for draft in verdict.drafts:
                    self._ledger.fleet.draft(draft.replica, draft.draft_tokens)
                self._apply(verdict.decisions, observation.tick)
                self._keep_alive()
            else:
                self._act_by_default(observation)

    async def _next_tick(self) -> None:
        # asyncio.timeout, not wait_for: the latter can swallow a cancellation in Python 3.11
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.tick_s):
                await self._wake.wait()
            await asyncio.sleep(COALESCE_S)
        self._wake.clear()
        self._pulse_s = self._ledger.now_s()
        switch = self.config.kill_switch_file
        if switch and self.state is not LoopState.OFF and Path(switch).exists():
            self._enter(LoopState.OFF, f"kill switch {switch} exists")

    def _observe(self, learning: bool) -> Observation:
        self._tick += 1
        observation = self._ledger.observation(self._tick, self._signal(), learning)
        if learning and self.state is not LoopState.OFF:
            observation = self._horizon.advised(observation)
        settings = self.config.trace
        if settings.observations:
            self._trace.write(records.observation_to_record(observation))
        if observation.now_s - self._progress_s >= settings.progress_every_s:
            self._progress_s = observation.now_s
            self._write_progress(observation)
        return observation

    async def _decide(self, observation: Observation) -> Verdict | None:
        """The controller's verdict, or None when it has none in time.  Not while it is busy."""
        try:
            verdict = await self._thread.decide(observation, self.config.decide_timeout_s)
        except TimeoutError:
            limit = self.config.decide_timeout_s
            self._enter(LoopState.FAIL_OPEN, f"a decision took more than {limit} s")
            return None
        except Exception as error:
            self._failed(error)
            return None
        self._errors = 0
        if self.state is LoopState.FAIL_OPEN:
            self._enter(self._normal, "the controller answers again")
        return verdict if self.state is not LoopState.OFF else None

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        log.error("a decision failed, the fallback acts", exc_info=error)
        if self._errors >= MAX_ERRORS:
            why = f"{self._errors} decisions in a row failed, the last with {error!r}"
            self._enter(LoopState.OFF, why)
        else:
            self._enter(LoopState.FAIL_OPEN, f"a decision failed: {error!r}")

    def _act_by_default(self, observation: Observation) -> None:
        rng = np.random.default_rng((self.config.seed, observation.tick))
        decisions = self._fallback.decide(observation, Forecast.unknown(observation), rng)
        for decision in decisions:
            self._write_decision(decision, observation.tick, enforced=True)
        self._apply(decisions, observation.tick)

    def _keep_alive(self) -> None:
        """Nothing runs although something waits: the policy holds back too much."""
        if not self._ledger.waiting:
            return
        if any(e.attempt is not None for e in self._ledger.executions.values()):
            return
        self._act_by_default(self._observe(learning=False))

    def _apply(self, decisions: list[Decision], tick: int) -> None:
        for decision in decisions:
            execution = self._ledger.executions.get(decision.trajectory_id)
            if execution is None:
                outcome = OutcomeKind.SUPERSEDED
            else:
                outcome = self._mechanisms[decision.action].apply(execution, decision)
            self._trace.write(
                records.Outcome(
                    t_s=self._ledger.now_s(),
                    tick=tick,
                    trajectory_id=decision.trajectory_id,
                    action=decision.action.value,
                    outcome=outcome.value,
                )
            )

    def _record(self, verdict: Verdict, observation: Observation, enforced: bool) -> None:
        tick = observation.tick
        if verdict.stack is not None:
            self._trace.write(
                records.StackChosen(
                    t_s=self._ledger.now_s(), step=observation.trainer.step, choice=verdict.stack
                )
            )
        if verdict.alternatives and (verdict.decisions or verdict.dropped):
            self._trace.write(
                records.AlternativesWeighed(
                    t_s=self._ledger.now_s(), tick=tick, seconds=_finite(verdict.alternatives)
                )
            )
        for draft in verdict.drafts:
            self._trace.write(
                records.DraftTaken(
                    t_s=self._ledger.now_s(), tick=tick, decision=draft, enforced=enforced
                )
            )
        for decision in verdict.decisions:
            self._write_decision(decision, tick, enforced)
        for dropped in verdict.dropped:
            self._trace.write(
                records.DecisionDropped(
                    t_s=self._ledger.now_s(), tick=tick, decision=dropped.decision, why=dropped.why
                )
            )

    def _record_health(self, verdict: Verdict, step: int) -> None:
        t_s = self._ledger.now_s()
        for source, keep in verdict.forecast.drift.keep.items():
            if keep < 1:
                self._trace.write(records.DriftNoticed(t_s=t_s, source=source, keep=keep))
        if step == self._health_step:
            return
        self._health_step = step
        for name, metrics in self._controller.health().items():
            self._trace.write(
                records.EstimatorHealth(
                    t_s=t_s, estimator=name, step=step, metrics=_finite(metrics)
                )
            )

    def _write_decision(self, decision: Decision, tick: int, enforced: bool) -> None:
        self._trace.write(
            records.DecisionTaken(
                t_s=self._ledger.now_s(),
                tick=tick,
                decision=decision,
                enforced=enforced,
                mode=self.state.value,
            )
        )

    def _write_progress(self, observation: Observation) -> None:
        fleet, t_s = self._ledger.fleet, observation.now_s
        for info in fleet.replicas:
            self._trace.write(
                records.ReplicaReport(
                    t_s=t_s,
                    replica=info.name,
                    alive=fleet.is_alive(info.name),
                    stats=fleet.stats(info.name),
                )
            )
        ids, generated = self._ledger.generated()
        self._trace.write(records.Progress(t_s=t_s, trajectory_ids=ids, generated_tokens=generated))

    def _enter(self, state: LoopState, why: str) -> None:
        if state is self.state and why == self.why:
            return
        if self.state is LoopState.OFF and self.why:
            return  # off is for good
        self.state, self.why = state, why
        self._trace.write(
            records.ControllerState(t_s=self._ledger.now_s(), state=state.value, why=why)
        )


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """As JSON can hold them."""
    return {name: float(x) if math.isfinite(x) else None for name, x in values.items()}


def load_mechanisms() -> dict[Action, Mechanism]:
    """Every mechanism there is, by the action it carries out."""
    built: list[Mechanism] = [build("mechanisms", name, {}) for name in names("mechanisms")]
    return {mechanism.action: mechanism for mechanism in built}
