"""Groups of prompts that the policy chooses, rolled out on a session's fleet.

Each complete group goes through the same stations, side by side with the others: its new answers
are scored; the policy extends it, and then it runs again, or learns from it and accepts or filters
it.  An accepted one is delivered; a filtered one is not, and does not count in the staleness budget
(`TrainerSignal.groups_filtered`): else admission would wait for a batch that it can never fill.
Without a scorer no group is extended or filtered; each is delivered as soon as it is complete.

`stream` keeps a number of groups in flight.  It draws a batch at a time, whose groups begin as
places become free.  `step` waits: it draws what the batch lacks, again and again, until enough
groups are accepted or the policy offers no more.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan

import numpy as np

from steersman.controller.groups import GroupState
from steersman.controller.prompts.admission import PromptAdmission
from steersman.controller.prompts.scoring import Scorer, finished_groups, scored
from steersman.controller.results import Group
from steersman.controller.rolling import Rolling
from steersman.controller.trace import records
from steersman.estimators.observation import Objective
from steersman.mechanisms.fleet import Sampling
from steersman.policies.prompting import FinishedGroups


@dataclass
class _Flight:
    """A chosen group that is not delivered."""

    group: GroupState
    rewards: list[float] = field(default_factory=list)
    """Of the answers that were scored."""
    scoring: asyncio.Task[list[float]] | None = None

    @property
    def parked(self) -> bool:
        """Nothing of it will change in this step."""
        return self.group.parked > 0 and self.group.settled


@dataclass(frozen=True)
class _Accepted:
    """A group that the trainer shall get."""

    group: GroupState
    rewards: tuple[float, ...]
    train: tuple[bool, ...]
    weight: float


class PromptRollouts:
    """Rollouts of one session's chosen prompts."""

    def __init__(self, rolling: Rolling, admission: PromptAdmission) -> None:
        self.admission = admission
        self._rolling = rolling
        self._flights: dict[int, _Flight] = {}
        """By group, in the order in which they began; those parked in an earlier step included."""
        self._in_vain: tuple[int, int] | None = None
        """Step and groups in flight when a draw had no prompts."""

    async def stream(
        self, *, inflight_groups: int, batch_groups: int, scorer: Scorer | None, sampling: Sampling
    ) -> AsyncGenerator[Group, None]:
        """Accepted groups as they come, until the policy offers no prompts any more."""
        rolling = self._rolling
        self._begin(Objective.STREAM, scorer, groups=0, groups_wanted=batch_groups)
        ready: list[_Accepted] = []
        try:
            while True:
                while len(self._flights) + len(ready) < inflight_groups:
                    if not self.admission.waiting and not self._refilled(batch_groups):
                        break
                    self._admit(sampling)
                if ready:
                    yield self._delivered(ready.pop(0))
                elif self._flights:
                    await rolling.until(lambda: self._can_go_on)
                    ready += self._go_on(scorer)
                else:
                    return
        finally:
            await self.give_up("the stream was closed", [accepted.group for accepted in ready])
            rolling.finish()

    async def step(
        self, groups_wanted: int, *, scorer: Scorer | None, sampling: Sampling
    ) -> list[Group]:
        """The accepted groups of a batch, those of earlier steps that were parked included."""
        rolling = self._rolling
        self._begin(Objective.BARRIER, scorer, groups=groups_wanted)
        accepted: list[_Accepted] = []
        try:
            rolling.resume_parked()
            lacking = groups_wanted - len(self._flights)
            while lacking > 0 or self._flights:
                owed = self.admission.waiting
                if lacking > owed:
                    self._draw(lacking - owed)
                for _ in range(self.admission.waiting if lacking > owed else lacking):
                    self._admit(sampling)
                if self._all_parked:
                    break  # the policy has no more
                while not self._all_parked:
                    await rolling.until(lambda: self._can_go_on or self._all_parked)
                    accepted += self._go_on(scorer)
                lacking = groups_wanted - len(accepted)
                if scorer is None or lacking <= 0:
                    break
        except BaseException:
            await self.give_up("the step was given up", [each.group for each in accepted])
            rolling.finish()
            raise
        groups = [self._delivered(each) for each in accepted]
        rolling.finish()
        return sorted(groups, key=lambda group: group.group_id)

    async def give_up(self, why: str, accepted: Sequence[GroupState] = ()) -> None:
        """Abandon what was not delivered; it begins again when the session is next asked."""
        groups = [*accepted, *(flight.group for flight in self._flights.values())]
        scoring = [f.scoring for f in self._flights.values() if f.scoring is not None]
        self._flights.clear()
        for task in scoring:
            task.cancel()
        await asyncio.gather(*scoring, return_exceptions=True)
        await self._rolling.abandon(groups, why)
        self.admission.given_up([group.group_id for group in groups])

    def elsewhere(self, group: GroupState, answer: Group) -> None:
        """A group was delivered by another call of the session, as a parked one may be."""
        if self._flights.pop(group.group_id, None) is not None:
            self.admission.delivered(group, answer)

    @property
    def _can_go_on(self) -> bool:
        """Some group's answers are complete and not being scored, or their scores are there."""
        return any(
            flight.group.complete if flight.scoring is None else flight.scoring.done()
            for flight in self._flights.values()
        )

    @property
    def _all_parked(self) -> bool:
        return all(flight.parked for flight in self._flights.values())

    def _begin(
        self, objective: Objective, scorer: Scorer | None, groups: int, groups_wanted: int = 0
    ) -> None:
        self._rolling.begin(objective, groups=groups, groups_wanted=groups_wanted)
        self._rolling.groups_filtered = None if scorer is None else self.admission.filtered
        self._in_vain = None

    def _draw(self, groups_wanted: int) -> bool:
        """Whether the policy chose anything."""
        rolling = self._rolling
        drawn = self.admission.draw(
            groups_wanted, rolling.present_step, rolling.weight_version, rolling.ledger.now_s()
        )
        rolling.trace.write(drawn)
        return drawn.chosen > 0

    def _refilled(self, groups_wanted: int) -> bool:
        """Draw for a stream: asked in vain, it asks again once something has changed.  A policy
        that has refilled a batch often enough, with nothing in flight, begins a new one."""
        now = (self._rolling.present_step, len(self._flights))
        if now == self._in_vain:
            return False
        if self._draw(groups_wanted):
            return True
        if not self._flights:
            self.admission.begin_batch()
            if self._draw(groups_wanted):
                return True
        self._in_vain = now
        return False

    def _admit(self, sampling: Sampling) -> None:
        choice, rolling = self.admission.next_choice, self._rolling
        group = rolling.ledger.admit(
            choice.prompt,
            choice.size,
            choice.max_new_tokens,
            sampling,
            rolling.present_step,
            choice.terms,
        )
        self.admission.begun(group.group_id)
        self._flights[group.group_id] = _Flight(group)

    def _go_on(self, scorer: Scorer | None) -> list[_Accepted]:
        """Every group that can goes to its next station; those that arrive at the last."""
        if scorer is None:
            whole = [f.group for f in self._flights.values() if f.group.complete]
            for group in whole:
                del self._flights[group.group_id]
            return [_Accepted(group, (), (), group.terms.weight) for group in whole]
        for flight in self._flights.values():
            if flight.group.complete and flight.scoring is None:
                self._score(flight, scorer)
        done = [f for f in self._flights.values() if f.scoring is not None and f.scoring.done()]
        for flight in done:
            self._take_rewards(flight)
        return self._extend_or_select(done) if done else []

    def _score(self, flight: _Flight, scorer: Scorer) -> None:
        group, known = flight.group, len(flight.rewards)
        new = [group.trajectory(s, self._rolling.weight_version) for s in range(known, group.size)]
        flight.scoring = asyncio.create_task(scored(scorer, group.prompt, new))
        flight.scoring.add_done_callback(lambda _: self._rolling.changed.set())

    def _take_rewards(self, flight: _Flight) -> None:
        assert flight.scoring is not None
        rewards, flight.scoring = flight.scoring.result(), None
        new = flight.group.slots[len(flight.rewards) :]
        for execution, reward in zip(new, rewards, strict=True):
            if not isnan(reward):
                self._rolling.ledger.reward(execution.spec.trajectory_id, reward)
        flight.rewards += rewards

    def _extend_or_select(self, flights: list[_Flight]) -> list[_Accepted]:
        more = self.admission.extend(self._table(flights))
        whole = []
        for flight, count in zip(flights, more, strict=True):
            if count > 0:
                self._rolling.ledger.grow(flight.group, count)
            else:
                whole.append(flight)
        if not whole:
            return []
        table = self._table(whole)
        selection = self.admission.select(table)
        self._rolling.groups_filtered = self.admission.filtered
        trained = np.split(selection.train, np.cumsum(table.size)[:-1])
        kept = selection.weight if len(selection.weight) else np.ones(len(table))
        accepted = []
        for flight, good, train, factor in zip(
            whole, selection.accepted.tolist(), trained, kept.tolist(), strict=True
        ):
            group = flight.group
            weight = group.terms.weight * factor
            del self._flights[group.group_id]
            self._rolling.trace.write(
                records.GroupSelected(
                    t_s=self._rolling.ledger.now_s(),
                    group_id=group.group_id,
                    accepted=good,
                    trained=int(train.sum()),
                    weight=weight,
                )
            )
            if good:
                told = (tuple(flight.rewards), tuple(train.tolist()))
                accepted.append(_Accepted(group, *told, weight))
            else:
                self.admission.dropped(group.group_id)
                self._rolling.drop(group)
        return accepted

    def _table(self, flights: list[_Flight]) -> FinishedGroups:
        rolling = self._rolling
        rewarded = [(flight.group, flight.rewards) for flight in flights]
        return finished_groups(rewarded, rolling.present_step, rolling.weight_version)

    def _delivered(self, accepted: _Accepted) -> Group:
        group = accepted.group
        answer = replace(
            self._rolling.deliver(group),
            rewards=accepted.rewards,
            train=accepted.train,
            weight=accepted.weight,
        )
        self.admission.delivered(group, answer)
        return answer
