"""One rollout at a time: where the trainer stands, what it waits for, and giving up."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.results import Group
from steersman.controller.trace import records
from steersman.controller.trace.writer import TraceWriter
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import Normaliser, Objective, TrainerSignal
from steersman.mechanisms.execution import ToEnd
from steersman.mechanisms.fleet import Fleet

CLOSE_TIMEOUT_S = 10.0
"""How long a closing session waits for aborts to come back; a fleet that is gone answers never."""
_EXPIRE = ToEnd(Disposition.EXPIRED, CorrectnessClass.EMPIRICAL)

log = logging.getLogger(__name__)


class Rolling:
    """The steps of one session."""

    def __init__(
        self, fleet: Fleet, ledger: Ledger, trace: TraceWriter, max_lag: int, weight_version: int
    ) -> None:
        self.fleet, self.ledger, self.trace, self.max_lag = fleet, ledger, trace, max_lag
        self.weight_version = weight_version
        self.step = -1
        self.batches = 0
        """Weight pushes since the present stream began: each begins a batch, as steps do."""
        self.open = self.under_way = False
        self.may_defer = True
        self.groups_wanted = 0
        self.groups_filtered: int | None = None
        """Complete groups that never make up a batch; None: the session does not filter."""
        self.policy_kl: float | None = None
        self.changed = asyncio.Event()
        self._objective = Objective.BARRIER
        self._started_s = self._batch_started_s = 0.0
        self._tokens = self._delivered = 0

    @property
    def present_step(self) -> int:
        """Number of the batch that is being made up."""
        return self.step + self.batches

    def begin(self, objective: Objective, groups: int, groups_wanted: int = 0) -> None:
        """Open the next step."""
        if not self.open:
            raise InvalidInputError("the session is not open; use it as `async with`")
        if self.under_way:
            raise InvalidInputError("a rollout of this session is under way; await it first")
        self.under_way, self._objective, self.groups_wanted = True, objective, groups_wanted
        self.step += 1 + self.batches
        self.batches = self._tokens = self._delivered = 0
        self.groups_filtered = None
        self._started_s = self._batch_started_s = self.ledger.now_s()
        self.trace.write(
            records.StepStarted(
                t_s=self._started_s,
                step=self.step,
                weight_version=self.weight_version,
                objective=objective.value,
                groups=groups,
                max_lag=self.max_lag,
            )
        )

    def finish(self) -> None:
        """The step is over."""
        self.under_way, self.groups_wanted = False, 0
        now_s = self.ledger.now_s()
        self.trace.write(
            records.StepEnded(
                t_s=now_s,
                step=self.step,
                seconds=now_s - self._started_s,
                tokens=self._tokens,
                groups=self._delivered,
            )
        )

    def deliver(self, group: GroupState) -> Group:
        """Hand a complete group over."""
        answer = self.ledger.deliver(group, self.step, self.weight_version)
        self._tokens += sum(len(t.token_ids) for t in answer.trajectories)
        self._delivered += 1
        return answer

    def drop(self, group: GroupState) -> None:
        """Close a complete group that nobody gets."""
        self.ledger.deliver(group, self.step, self.weight_version)

    def pushed(self, weight_version: int, policy_kl: float | None) -> None:
        """New weights are on the fleet: what is too old now is replaced by fresh samples."""
        self.weight_version, self.policy_kl = weight_version, policy_kl
        if self._objective is Objective.STREAM and self.under_way:
            self.batches += 1
            self._batch_started_s = self.ledger.now_s()
        for execution in list(self.ledger.executions.values()):
            if execution.phase is not Phase.PARKED and self._expired(
                execution.oldest_weight_version
            ):
                execution.leave(_EXPIRE, f"beyond the lag bound at version {weight_version}")

    def resume_parked(self) -> None:
        """Let what was put off go on in this step."""
        for execution in list(self.ledger.executions.values()):
            if execution.phase is not Phase.PARKED:
                continue
            if self._expired(execution.oldest_weight_version):
                execution.leave(_EXPIRE, f"beyond the lag bound at step {self.step}")
            else:
                execution.resume(f"step {self.step} began")

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`; it is asked after each change."""
        while not done():
            if not any(self.fleet.is_alive(info.name) for info in self.fleet.replicas):
                raise FleetError("no replica is alive; the step cannot be completed")
            self.changed.clear()
            await self.changed.wait()

    async def abandon(self, groups: Iterable[GroupState], why: str) -> None:
        """Give the groups up: abort what runs of them, and forget them."""
        groups = list(groups)
        for group in groups:
            for execution in group.slots:
                if execution.phase is not Phase.ENDED:
                    execution.leave(ToEnd(Disposition.ABANDONED), why)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while any(e.phase is not Phase.ENDED for g in groups for e in g.slots):
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            log.error("%s: some replicas did not confirm their aborts in time", why)
            return
        for group in groups:
            if group.group_id in self.ledger.groups:  # closing may have been first
                self.ledger.abandon(group)

    def signal(self, normaliser: Normaliser) -> TrainerSignal:
        """What policies are told of the trainer."""
        return TrainerSignal(
            step=max(self.step, 0) + self.batches,
            weight_version=self.weight_version,
            max_lag=self.max_lag if self.may_defer else 0,
            objective=self._objective,
            groups_wanted=self.groups_wanted,
            step_started_s=self._batch_started_s,
            normaliser=normaliser,
            policy_kl=self.policy_kl,
            groups_filtered=self.groups_filtered,
        )

    def _expired(self, oldest: int | None) -> bool:
        return oldest is not None and self.weight_version - oldest > self.max_lag
