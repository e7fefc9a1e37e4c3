"""The session a trainer holds: prompts in, whole groups out.

`rollout` is one synchronous step: it returns when each group of the step is answered or, if the
controller deferred some of its trajectories, parked.  Parked groups are not lost: the next call
resumes them, on the weights of then, and returns them with its own.  `stream` is the asynchronous
mode: it keeps a number of groups in flight and yields them as they become complete.  `drain`
finishes whatever is parked.

Each prompt given comes back exactly once, with exactly `group_size` trajectories.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from steersman.controller.core import Controller
from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.loop import ControlLoop
from steersman.controller.request import check_request
from steersman.controller.results import Counts, Group, Prompt
from steersman.controller.trace import records
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass, Disposition, Phase
from steersman.estimators.observation import Objective, TrainerSignal
from steersman.mechanisms.execution import ToEnd
from steersman.mechanisms.fleet import Fleet, LogprobProbe, NamedTensors, Sampling

CLOSE_TIMEOUT_S = 10.0
"""How long a closing session waits for aborts to come back; a fleet that is gone answers never."""

log = logging.getLogger(__name__)


class RolloutSession:
    """Rollouts on one fleet under one controller.  Use as an async context manager."""

    def __init__(
        self,
        fleet: Fleet,
        controller: Controller,
        *,
        trace: TraceWriter | None = None,
        weight_version: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet, self.controller = fleet, controller
        self.weight_version = (
            max(fleet.stats(info.name).weight_version for info in fleet.replicas)
            if weight_version is None
            else weight_version
        )
        """The trainer's version; what the fleet holds, unless told otherwise."""
        self.step = -1
        """Number of the present step; `rollout` begins the next one."""
        self.trace = trace if trace is not None else _configured_trace(controller)
        self._ledger = Ledger(
            fleet,
            self.trace,
            clock,
            run_id=uuid.uuid4().hex[:8],
            trace_token_ids=controller.config.trace.token_ids,
        )
        self._ledger.on_change, self._ledger.on_complete = self._on_change, self._wake
        self._changed = asyncio.Event()
        self._objective = Objective.BARRIER
        self._step_started_s = 0.0
        self._groups_wanted = 0
        self._batches = 0
        """Weight pushes since the present stream began: each begins a batch, as steps do."""
        self._policy_kl: float | None = None
        self._may_defer = True
        self._tasks: list[asyncio.Task[None]] = []
        self._open = self._rolling_out = False

    async def __aenter__(self) -> Self:
        config = self.controller.config
        self.trace.write(
            records.RunStarted(
                t_s=0.0,
                started_unix_s=time.time(),
                config=msgspec.to_builtins(config),
                replicas=list(self.fleet.replicas),
                seed=config.seed,
            )
        )
        self._loop = ControlLoop(self.controller, self._ledger, self.trace, self._signal)
        steering = asyncio.create_task(self._loop.run(), name="steersman-loop")
        steering.add_done_callback(self._loop_ended)
        watching = asyncio.create_task(self._watch_fleet(), name="steersman-fleet-watch")
        self._tasks = [steering, watching]
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        await self._abandon(list(self._ledger.groups.values()), "the session was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.close()
        self.trace.write(records.RunEnded(t_s=self._ledger.now_s(), clean=kind is None))
        self.trace.close()

    async def rollout(
        self,
        prompts: Sequence[Prompt],
        group_size: int = 8,
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        groups_wanted: int = 0,
    ) -> list[Group]:
        """One synchronous step.

        Parameters
        ----------
        prompts
            Admitted as one group each.
        group_size
            Samples per prompt, >= 1.
        max_new_tokens
            Token cap of each sample, over all its segments.
        sampling
            Defaults to temperature 1.  A seed is mixed with the group's number and the sample's, so
            one seed for the whole run gives different samples everywhere, the same in each run.
        groups_wanted
            Complete groups that the batch needs, those carried over counted; 0: all.  A policy that
            carries groups over (`april` and its like) puts the others off once it has so many.

        Returns
        -------
        list of Group
            The complete groups: this step's, and earlier ones that were parked, oldest first.

        Raises
        ------
        InvalidInputError
            Before anything is started.
        FleetError
            No replica is alive any more.
        """
        sampling = sampling if sampling is not None else Sampling()
        check_request(self.fleet, prompts, group_size, max_new_tokens)
        if groups_wanted < 0:
            raise InvalidInputError(f"groups_wanted is {groups_wanted}; valid: 0 (all) or more")
        self._groups_wanted = groups_wanted
        try:
            return await self._barrier(prompts, group_size, max_new_tokens, sampling)
        finally:
            self._groups_wanted = 0

    async def drain(self) -> list[Group]:
        """Resume what is parked and let it end, without deferring again."""
        self._may_defer = False
        try:
            return await self._barrier([], 1, 1, Sampling())
        finally:
            self._may_defer = True

    async def stream(
        self,
        prompts: Iterable[Prompt],
        group_size: int = 8,
        *,
        max_new_tokens: int,
        inflight_groups: int,
        batch_groups: int = 0,
        sampling: Sampling | None = None,
    ) -> AsyncIterator[Group]:
        """Groups as they become complete, with at most `inflight_groups` begun and not yielded.

        `batch_groups` tells policies how many the trainer takes at a time (0: they are not told).

        Weights may be pushed in between; each trajectory's segments tell which version wrote what.
        Parameters and errors as in `rollout`; a bad prompt raises when its turn comes.  Closing the
        iterator early abandons what is in flight.
        """
        sampling = sampling if sampling is not None else Sampling()
        if inflight_groups < 1:
            raise InvalidInputError(f"inflight_groups is {inflight_groups}; valid: 1 or more")
        if batch_groups < 0:
            raise InvalidInputError(f"batch_groups is {batch_groups}; valid: 0 or more")
        source, mine = iter(prompts), dict[int, GroupState]()
        started_s = self._begin(Objective.STREAM, groups=0)
        self._groups_wanted = batch_groups
        tokens = delivered = 0
        try:
            while True:
                while len(mine) < inflight_groups and (prompt := next(source, None)) is not None:
                    check_request(self.fleet, [prompt], group_size, max_new_tokens)
                    group = self._ledger.admit(
                        prompt, group_size, max_new_tokens, sampling, self.step + self._batches
                    )
                    mine[group.group_id] = group
                if not mine:
                    return
                await self._until(lambda: any(group.complete for group in mine.values()))
                done = next(group for group in mine.values() if group.complete)
                del mine[done.group_id]
                answer = self._ledger.deliver(done, self.step, self.weight_version)
                tokens += sum(len(t.token_ids) for t in answer.trajectories)
                delivered += 1
                yield answer
        finally:
            self._groups_wanted = 0
            await self._abandon(list(mine.values()), "the stream was closed")
            self._finish(started_s, tokens, delivered)

    async def push_weights(
        self,
        tensors: NamedTensors,
        weight_version: int,
        probes: Iterable[LogprobProbe] = (),
        policy_kl: float | None = None,
    ) -> None:
        """Put new weights on every replica; what is in flight goes on under them.

        `probes` are scored by each replica after the push and compared with the trainer's
        log-probabilities; `WeightMismatchError` says that a replica does not hold what was sent.
        `policy_kl` is the KL divergence between these weights and the ones before, if the trainer
        knows it: a leap makes the estimators doubt what they learned.
        Trajectories that would exceed the lag bound are replaced by fresh ones.
        """
        if weight_version <= self.weight_version:
            raise InvalidInputError(
                f"weight_version {weight_version} is not newer than {self.weight_version}"
            )
        started_s = self._ledger.now_s()
        difference = await self.fleet.update_weights(tensors, weight_version, probes)
        self.weight_version, self._policy_kl = weight_version, policy_kl
        if self._objective is Objective.STREAM and self._rolling_out:
            self._batches += 1
            self._step_started_s = self._ledger.now_s()
        now_s = self._ledger.now_s()
        self.trace.write(
            records.WeightsPushed(
                t_s=now_s,
                weight_version=weight_version,
                seconds=now_s - started_s,
                probe_max_difference=difference,
                policy_kl=policy_kl,
            )
        )
        for execution in list(self._ledger.executions.values()):
            if execution.phase is not Phase.PARKED and self._expired(
                execution.oldest_weight_version
            ):
                execution.leave(_EXPIRE, f"beyond the lag bound at version {weight_version}")

    def reward(self, trajectory_id: int, reward: float) -> None:
        """Tell what a finished trajectory earned: the controller learns which prompts teach.

        Once per trajectory, before or after its group was delivered.  Raises `InvalidInputError`
        for an id that this session never gave, or a reward that is not finite.
        """
        self._ledger.reward(trajectory_id, reward)

    def kill_switch(self, why: str = "switched off by the caller") -> None:
        """From now on the trainer's default rule decides."""
        self._loop.switch_off(why)

    def counts(self) -> Counts:
        """The books: what was queued, what ended and how."""
        return self._ledger.counts()

    @property
    def controller_state(self) -> str:
        """Who decides, and why: "enforcing: ...", "fail_open: ..." and so on."""
        return f"{self._loop.state}: {self._loop.why}"

    async def _barrier(
        self, prompts: Sequence[Prompt], group_size: int, max_new_tokens: int, sampling: Sampling
    ) -> list[Group]:
        ledger = self._ledger
        started_s = self._begin(Objective.BARRIER, groups=len(ledger.groups) + len(prompts))
        self._resume_parked()
        for prompt in prompts:
            ledger.admit(prompt, group_size, max_new_tokens, sampling, self.step)
        mine = list(ledger.groups.values())
        groups: list[Group] = []
        try:
            await self._until(lambda: all(group.settled for group in mine))
            groups = [
                ledger.deliver(group, self.step, self.weight_version)
                for group in mine
                if group.complete
            ]
        except BaseException:
            await self._abandon(mine, "the step was given up")
            raise
        finally:
            tokens = sum(len(t.token_ids) for g in groups for t in g.trajectories)
            self._finish(started_s, tokens, len(groups))
        return groups

    def _begin(self, objective: Objective, groups: int) -> float:
        """Open the next step; returns its time."""
        if not self._open:
            raise InvalidInputError("the session is not open; use it as `async with`")
        if self._rolling_out:
            raise InvalidInputError("a rollout of this session is under way; await it first")
        self._rolling_out, self._objective = True, objective
        self.step += 1 + self._batches
        self._batches = 0
        started_s = self._step_started_s = self._ledger.now_s()
        self.trace.write(
            records.StepStarted(
                t_s=started_s,
                step=self.step,
                weight_version=self.weight_version,
                objective=objective.value,
                groups=groups,
                max_lag=self.controller.config.max_lag,
            )
        )
        return started_s

    def _finish(self, started_s: float, tokens: int, groups: int) -> None:
        self._rolling_out = False
        now_s = self._ledger.now_s()
        self.trace.write(
            records.StepEnded(
                t_s=now_s,
                step=self.step,
                seconds=now_s - started_s,
                tokens=tokens,
                groups=groups,
            )
        )

    def _resume_parked(self) -> None:
        for execution in list(self._ledger.executions.values()):
            if execution.phase is not Phase.PARKED:
                continue
            if self._expired(execution.oldest_weight_version):
                execution.leave(_EXPIRE, f"beyond the lag bound at step {self.step}")
            else:
                execution.resume(f"step {self.step} began")

    def _expired(self, oldest: int | None) -> bool:
        if oldest is None:
            return False
        return self.weight_version - oldest > self.controller.config.max_lag

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`; it is asked after each change."""
        while not done():
            if not any(self.fleet.is_alive(info.name) for info in self.fleet.replicas):
                raise FleetError("no replica is alive; the step cannot be completed")
            self._changed.clear()
            await self._changed.wait()

    async def _abandon(self, groups: list[GroupState], why: str) -> None:
        for group in groups:
            for execution in group.slots:
                if execution.phase is not Phase.ENDED:
                    execution.leave(ToEnd(Disposition.ABANDONED), why)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while any(e.phase is not Phase.ENDED for g in groups for e in g.slots):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.error("%s: some replicas did not confirm their aborts in time", why)
            return
        for group in groups:
            if group.group_id in self._ledger.groups:  # closing may have been first
                self._ledger.abandon(group)

    def _signal(self) -> TrainerSignal:
        config = self.controller.config
        return TrainerSignal(
            step=max(self.step, 0) + self._batches,
            weight_version=self.weight_version,
            max_lag=config.max_lag if self._may_defer else 0,
            objective=self._objective,
            groups_wanted=self._groups_wanted,
            step_started_s=self._step_started_s,
            normaliser=config.normaliser,
            policy_kl=self._policy_kl,
        )

    def _on_change(self) -> None:
        self._changed.set()
        if self._ledger.waiting:  # else the next regular tick is soon enough
            self._wake()

    def _wake(self) -> None:
        """Have it decided now: something waits, or with a complete group the batch may be full."""
        if self._tasks:
            self._loop.wake()

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        if not self._open:
            return
        why = "the control loop was cancelled" if loop.cancelled() else repr(loop.exception())
        task = asyncio.create_task(self._loop.run_default(why), name="steersman-default")
        task.add_done_callback(self._loop_ended)
        self._tasks.append(task)

    async def _watch_fleet(self) -> None:
        """A replica that died or joined changes what can be decided."""
        while True:
            await self.fleet.changed.wait()
            self.fleet.changed.clear()
            self._on_change()


def _configured_trace(controller: Controller) -> TraceWriter:
    path = controller.config.trace.path
    return TraceWriter(path) if path else NoTrace()


_EXPIRE = ToEnd(Disposition.EXPIRED, CorrectnessClass.EMPIRICAL)
