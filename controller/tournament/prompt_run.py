"""Prompt policies in virtual time: whole steps of choosing, rolling out, learning and selecting.

What a sample becomes depends on (seed, prompt, visit, number of the sample) and the weight version
alone, not on when it is written.  So the steps are gone through first, and the rollouts that they
asked for are then timed on a simulated fleet (`_rollouts`), with the placement policy and the
estimators of a configuration.

A round (`choose`) begins when the one before has ended, as the rounds of trainers do.  A group is
extended as soon as its own samples have ended; which groups are is decided once per stage of a
round, with all of its rewards known, and so a little too well where a policy extends only some.

Figures are per *informative group*: one that was trained on with rewards that differ, replayed ones
counted.  A policy that rolls out less and has less to train on gains nothing by that.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import numpy as np

from steersman.controller.config import Config
from steersman.controller.prompts.chooser import Chosen, PromptChooser
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament._prompt_groups import Group, as_round, finished
from steersman.controller.tournament._rollouts import Round, rolled_out
from steersman.controller.tournament.prompt_result import PromptRunResult, PromptStep, Tally
from steersman.controller.tournament.sample_banks import SampleBank
from steersman.estimators.errors import FleetError
from steersman.estimators.observation import Floats
from steersman.policies.contract import PromptPolicy

__all__ = ["PromptRunResult", "PromptStep", "run_prompts"]

MOST_ROUNDS = 20
"""Of one step; the batch then stays short."""
MOST_STAGES = 200
"""Of one round; a policy that extends groups more often never stops."""


def run_prompts(
    bank: SampleBank,
    policy: PromptPolicy,
    plan: FleetPlan,
    config: Config,
    steps: int,
    groups_wanted: int,
    candidates_per_step: int,
    seed: int = 0,
) -> PromptRunResult:
    """`steps` steps of a trainer that wants so many groups; each has a new weight version."""
    run = _Run(bank, policy, config, candidates_per_step, seed)
    tallies = [run.step(number, groups_wanted) for number in range(steps)]
    timed = rolled_out(run.rounds, plan, config)
    spans = iter([each.makespan_s for each in timed.steps])
    return PromptRunResult(
        steps=[tally.result(sum(islice(spans, tally.rounds))) for tally in tallies],
        distinct_prompts=len(run.visits),
        effective_groups=run.effective_groups,
        decide_s=run.decide_s,
        workload=Workload([each.asked for each in run.rounds]),
        replay=timed,
    )


class _Run:
    def __init__(
        self, bank: SampleBank, policy: PromptPolicy, config: Config, candidates: int, seed: int
    ) -> None:
        self._bank, self._seed = bank, seed
        self._chooser = PromptChooser(
            policy,
            group_size=bank.group_size,
            max_new_tokens=bank.max_new_tokens,
            normaliser=config.normaliser,
            seed=seed,
            offered=candidates,
        )
        self._chooser.set_pool(bank.keys.tolist())
        self._groups = self._trajectories = 0
        self.visits: dict[int, int] = {}
        self.rounds: list[Round] = []
        self.effective_groups = self.decide_s = 0.0

    def step(self, number: int, groups_wanted: int) -> Tally:
        """One step of the trainer."""
        tally = Tally(number)
        while tally.rounds < MOST_ROUNDS:
            lacking = groups_wanted - tally.groups_accepted - tally.replayed
            if lacking <= 0:
                break
            with self._timed():
                chosen = self._chooser.choose(lacking, number, number, tally.rounds)
            if not len(chosen):
                break
            tally.rounds += 1
            self._train(self._rolled_out(chosen, tally), chosen.inclusion_probability, tally)
        return tally

    def _rolled_out(self, chosen: Chosen, tally: Tally) -> list[Group]:
        """The chosen prompts' groups, complete."""
        caps = chosen.max_new_tokens.tolist()
        groups = [
            self._begun(key, cap) for key, cap in zip(chosen.prompt_key.tolist(), caps, strict=True)
        ]
        some, added = groups, chosen.size
        for stage in range(MOST_STAGES):
            for group, count in zip(some, added.tolist(), strict=True):
                ids = self._trajectories + np.arange(count)
                group.draw(ids, stage, self._bank, tally.step)
                self._trajectories += count
            tally.stages += 1
            table = finished(some, tally.step)
            with self._timed():
                added = self._chooser.extend(table)
            some = [group for group, more in zip(some, added.tolist(), strict=True) if more > 0]
            added = added[added > 0]
            if not some:
                self.rounds.append(as_round(groups, len(self.rounds), tally.step))
                return groups
        raise FleetError(f"a group was extended {MOST_STAGES} times and still is not complete")

    def _begun(self, key: int, cap: int) -> Group:
        visit = self.visits[key] = self.visits.get(key, -1) + 1
        self._groups += 1
        return Group(self._groups - 1, key, cap, (self._seed, key, visit))

    def _train(self, groups: Sequence[Group], probability: Floats, tally: Tally) -> None:
        """Learn from the round, and take what is selected of it into the batch."""
        table = finished(groups, tally.step)
        with self._timed():
            selection = self._chooser.finished(table)
        train = selection.train
        tally.samples += len(train)
        tally.tokens += int(table.tokens.sum())
        kept = replace(
            table,
            group_row=table.group_row[train],
            trajectory_id=table.trajectory_id[train],
            reward=table.reward[train],
            tokens=table.tokens[train],
            truncated=table.truncated[train],
        )
        tally.groups_accepted += int(selection.accepted.sum())
        tally.informative += int((selection.accepted & kept.informative).sum())
        tally.replayed += len(selection.replayed)
        tally.samples_trained += int(train.sum())
        tally.tokens_trained += int(kept.tokens.sum())
        weight = (selection.weights / probability)[selection.accepted]
        if len(weight):
            self.effective_groups += float(weight.sum() ** 2 / (weight**2).sum())

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.decide_s += time.perf_counter() - started
