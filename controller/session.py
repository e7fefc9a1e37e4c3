"""The session a trainer holds: prompts in, whole groups out.

`rollout` is one synchronous step: it returns when each group of the step is answered or, if the
controller deferred some of its trajectories, parked.  Parked groups are not lost: the next call
resumes them, on the weights of then, and returns them with its own.  `stream` is the asynchronous
mode: it keeps a number of groups in flight and yields them as they become complete.  `drain`
finishes whatever is parked.  Each prompt given comes back exactly once, with exactly `group_size`
trajectories.

With `set_pool`, the prompt policy of the configuration chooses which prompts, how many samples of
each and how long they may be: `choose` is then the synchronous step, `admit` the stream.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from steersman.controller.core import Controller
from steersman.controller.groups import GroupState
from steersman.controller.ledger import Ledger
from steersman.controller.loop import ControlLoop, LoopState
from steersman.controller.prompts.admission import PromptAdmission
from steersman.controller.prompts.building import chooser_of
from steersman.controller.prompts.fail_open import FailOpen
from steersman.controller.prompts.rollouts import PromptRollouts
from steersman.controller.prompts.scoring import Scorer
from steersman.controller.request import check_count, check_quality, check_request
from steersman.controller.results import Counts, Group, Prompt
from steersman.controller.rolling import Rolling
from steersman.controller.steering import Steering, begin_run
from steersman.controller.trace import records
from steersman.controller.trace.writer import NoTrace, TraceWriter
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Objective, TrainerSignal
from steersman.mechanisms.fleet import Fleet, LogprobProbe, NamedTensors, Sampling


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
        self.trace = trace if trace is not None else _configured_trace(controller)
        self._ledger = Ledger(
            fleet,
            self.trace,
            clock,
            run_id=uuid.uuid4().hex[:8],
            trace_token_ids=controller.config.trace.token_ids,
        )
        self._ledger.on_change, self._ledger.on_complete = self._on_change, self._wake
        if weight_version is None:
            weight_version = max(fleet.stats(info.name).weight_version for info in fleet.replicas)
        max_lag = controller.config.max_lag
        self._rolling = Rolling(fleet, self._ledger, self.trace, max_lag, weight_version)
        self._chosen: PromptRollouts | None = None
        self._steering: Steering | None = None

    @property
    def weight_version(self) -> int:
        """The trainer's version; what the fleet holds, unless told otherwise."""
        return self._rolling.weight_version

    @property
    def step(self) -> int:
        """Number of the present step; `rollout` begins the next one."""
        return self._rolling.step

    async def __aenter__(self) -> Self:
        config = self.controller.config
        begin_run(self.trace, config, self.fleet)
        self._loop = ControlLoop(self.controller, self._ledger, self.trace, self._signal)
        self._steering = Steering(self._loop, self.fleet, self._on_change)
        self._rolling.open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._rolling.open = False
        if self._chosen is not None:
            await self._chosen.give_up("the session was closed")
        await self._rolling.abandon(self._ledger.groups.values(), "the session was closed")
        if self._steering is not None:
            await self._steering.stop()
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
        check_count("groups_wanted", groups_wanted, least=0)
        return await self._barrier(prompts, group_size, max_new_tokens, sampling, groups_wanted)

    async def drain(self) -> list[Group]:
        """Resume what is parked and let it end, without deferring again."""
        self._rolling.may_defer = False
        try:
            return await self._barrier([], 1, 1, Sampling())
        finally:
            self._rolling.may_defer = True

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
        check_count("inflight_groups", inflight_groups)
        check_count("batch_groups", batch_groups, least=0)
        source, mine, rolling = iter(prompts), dict[int, GroupState](), self._rolling
        rolling.begin(Objective.STREAM, groups=0, groups_wanted=batch_groups)
        try:
            while True:
                while len(mine) < inflight_groups and (prompt := next(source, None)) is not None:
                    check_request(self.fleet, [prompt], group_size, max_new_tokens)
                    group = self._ledger.admit(
                        prompt, group_size, max_new_tokens, sampling, rolling.present_step
                    )
                    mine[group.group_id] = group
                if not mine:
                    return
                await rolling.until(lambda: any(group.complete for group in mine.values()))
                done = next(group for group in mine.values() if group.complete)
                del mine[done.group_id]
                yield rolling.deliver(done)
        finally:
            await rolling.abandon(mine.values(), "the stream was closed")
            rolling.finish()

    def set_pool(
        self, prompts: Sequence[Prompt], group_size: int = 8, *, max_new_tokens: int
    ) -> None:
        """Let the prompt policy choose from these; again, at any time, for another data set.

        `group_size` samples of up to `max_new_tokens` tokens are what the trainer wants of a
        prompt; a policy may decide otherwise.  What is known of prompts that remain is kept.
        """
        check_request(self.fleet, prompts, group_size, max_new_tokens)
        config = self.controller.config
        if self._chosen is None:
            chooser = chooser_of(config, group_size, max_new_tokens)
            asked = FailOpen(chooser, group_size, max_new_tokens, config.seed, self._why_off)
            admission = PromptAdmission(asked, config.prompts.name)
            self._chosen = PromptRollouts(self._rolling, admission)
        self._admission.set_pool(prompts)

    async def choose(
        self, groups_wanted: int, *, scorer: Scorer | None = None, sampling: Sampling | None = None
    ) -> list[Group]:
        """One synchronous step on prompts that the policy chooses.

        `scorer` tells the rewards of answers as they become complete.  With it, groups may get more
        samples before they are delivered, and those that the policy filters are not delivered:
        others are chosen in their place, until `groups_wanted` are accepted or the policy has no
        more.  Without it, rewards may be told later (`reward`).

        Returns accepted groups: those of this step, and earlier ones that were parked.
        """
        check_count("groups_wanted", groups_wanted)
        sampling = sampling if sampling is not None else Sampling()
        return await self._pool.step(groups_wanted, scorer=scorer, sampling=sampling)

    async def admit(
        self,
        *,
        inflight_groups: int,
        batch_groups: int,
        scorer: Scorer | None = None,
        sampling: Sampling | None = None,
    ) -> AsyncIterator[Group]:
        """Groups of prompts that the policy chooses, as they become complete, without end.

        At most `inflight_groups` are begun and not yielded.  `batch_groups` is what the trainer
        takes at a time; so many prompts are chosen at once.  `scorer` as in `choose`.  It ends if
        the policy has no more prompts with nothing in flight; what a caller who leaves early did
        not get is begun again by the next call.
        """
        check_count("inflight_groups", inflight_groups)
        check_count("batch_groups", batch_groups)
        stream = self._pool.stream(
            inflight_groups=inflight_groups,
            batch_groups=batch_groups,
            scorer=scorer,
            sampling=sampling if sampling is not None else Sampling(),
        )
        try:
            async for group in stream:
                yield group
        finally:
            await stream.aclose()

    def observe(self, prompt_id: str, rewards: Sequence[float], weight_version: int) -> None:
        """Let the prompt policy learn from a whole group that was rolled out elsewhere.

        Fractions count as fractional passes; NaN: that reward is not known.
        """
        self._admission.observe(prompt_id, rewards, weight_version)

    def prompt_state_dict(self) -> dict[str, Any]:
        """What is known of the pool, and which of its prompts were chosen and not delivered yet."""
        return self._admission.state_dict()

    def load_prompt_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, after `set_pool`: those prompts are begun first."""
        self._admission.load_state_dict(state)

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
        self._rolling.pushed(weight_version, policy_kl)

    def reward(self, trajectory_id: int, reward: float) -> None:
        """Tell what a finished trajectory earned: the controller learns which prompts teach.

        Once per trajectory, before or after its group was delivered.  Raises `InvalidInputError`
        for an id that this session never gave, or a reward that is not finite.
        """
        self._ledger.reward(trajectory_id, reward)
        if self._chosen is not None:
            self._chosen.admission.reward(trajectory_id, reward)

    def quality(
        self, quality: float, *, evaluated: int = 0, metric: str = "quality", seconds: float = 0.0
    ) -> None:
        """Tell how good the present weights are, for `steersman evaluate`: it goes to the trace.

        `quality` is the mean over `evaluated` independent samples (0: not known); `seconds` that
        measuring took are no cost of the run.  Raises `InvalidInputError` for what is no figure.
        """
        check_quality(quality, evaluated, seconds)
        self.trace.write(
            records.QualityMeasured(
                t_s=self._ledger.now_s(),
                weight_version=self.weight_version,
                quality=quality,
                evaluated=evaluated,
                metric=metric,
                seconds=seconds,
            )
        )

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
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        max_new_tokens: int,
        sampling: Sampling,
        groups_wanted: int = 0,
    ) -> list[Group]:
        ledger, rolling = self._ledger, self._rolling
        groups = len(ledger.groups) + len(prompts)
        rolling.begin(Objective.BARRIER, groups=groups, groups_wanted=groups_wanted)
        rolling.resume_parked()
        for prompt in prompts:
            ledger.admit(prompt, group_size, max_new_tokens, sampling, self.step)
        mine = list(ledger.groups.values())
        try:
            await rolling.until(lambda: all(group.settled for group in mine))
            return [self._delivered(group) for group in mine if group.complete]
        except BaseException:
            await rolling.abandon(mine, "the step was given up")
            raise
        finally:
            rolling.finish()

    def _delivered(self, group: GroupState) -> Group:
        answer = self._rolling.deliver(group)
        if self._chosen is not None:
            self._chosen.elsewhere(group, answer)
        return answer

    @property
    def _pool(self) -> PromptRollouts:
        if self._chosen is None:
            raise InvalidInputError("there is no pool to choose prompts from; call set_pool first")
        return self._chosen

    @property
    def _admission(self) -> PromptAdmission:
        return self._pool.admission

    def _why_off(self) -> str:
        """Why the trainer's default decides; empty: the controller does."""
        off = self._loop.state in (LoopState.OFF, LoopState.SHADOW)
        return self._loop.why if off else ""

    def _signal(self) -> TrainerSignal:
        return self._rolling.signal(self.controller.config.normaliser)

    def _on_change(self) -> None:
        self._rolling.changed.set()
        if self._ledger.waiting:  # else the next regular tick is soon enough
            self._wake()

    def _wake(self) -> None:
        """Have it decided now: something waits, or with a complete group the batch may be full."""
        if self._steering is not None:
            self._loop.wake()


def _configured_trace(controller: Controller) -> TraceWriter:
    path = controller.config.trace.path
    return TraceWriter(path) if path else NoTrace()
