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
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.workload import Workload
from steersman.controller.tournament._data_loader import DataLoader
from steersman.controller.tournament._prompt_groups import Group, as_round, finished
from steersman.controller.tournament._rollouts import Round, rolled_out
from steersman.controller.tournament.prompt_result import PromptRunResult, PromptStep, Tally
from steersman.controller.tournament.sample_banks import SampleBank
from steersman.estimators.errors import FleetError
from steersman.estimators.logistic import Logits
from steersman.estimators.observation import Floats, Ints
from steersman.estimators.success import DynamicLogistic
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import Candidates, FinishedGroups, PromptChoice, PromptRequest

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
        self._bank, self._policy, self._config = bank, policy, config
        self._candidates, self._seed = candidates, seed
        self._loader = DataLoader(bank.keys, seed)
        self._estimator = DynamicLogistic()
        self._lengths: dict[int, tuple[int, int]] = {}
        """Samples and tokens of each prompt so far."""
        self._groups = self._trajectories = 0
        self.visits: dict[int, int] = {}
        self.rounds: list[Round] = []
        self.effective_groups = self.decide_s = 0.0

    def step(self, number: int, groups_wanted: int) -> Tally:
        """One step of the trainer."""
        tally, taken = Tally(number), self._bank.keys[:0]
        rng = np.random.default_rng((self._seed, number))
        while tally.rounds < MOST_ROUNDS:
            lacking = groups_wanted - tally.groups_accepted - tally.replayed
            if lacking <= 0:
                break
            request = self._request(tally, lacking, taken)
            with self._timed():
                choice = self._policy.choose(request, rng)
            rows = choice.row
            if not len(choice) and not request.refill:
                rows = np.arange(len(request.candidates))  # new ones the next time
            self._loader.pass_over(rows)
            if not len(choice):
                break
            tally.rounds += 1
            keys = request.candidates.prompt_key[choice.row]
            taken = np.concatenate((taken, keys))
            groups = self._rolled_out(keys, choice, tally, rng)
            self._train(groups, choice.inclusion_probability, tally, rng)
        return tally

    def _request(self, tally: Tally, lacking: int, taken: Ints) -> PromptRequest:
        return PromptRequest(
            step=tally.step,
            weight_version=tally.step,
            groups_wanted=lacking,
            group_size=self._bank.group_size,
            max_new_tokens=self._bank.max_new_tokens,
            candidates=self._known_of(self._loader.offer(self._candidates, taken), tally.step),
            normaliser=self._config.normaliser,
            refill=tally.rounds,
        )

    def _known_of(self, keys: Ints, version: int) -> Candidates:
        logits = Logits.gaussian(*self._estimator.predict(keys, version))
        size = np.full(len(keys), float(self._bank.group_size))
        passing, variance = logits.pass_moments()
        known = [self._lengths.get(key, (0, 0)) for key in keys.tolist()]
        return Candidates(
            prompt_key=keys,
            pass_probability=passing,
            pass_deviation=np.sqrt(variance),
            degenerate_probability=np.minimum(logits.all_pass(size) + logits.all_fail(size), 1.0),
            mean_tokens=np.array([total / count if count else np.nan for count, total in known]),
        )

    def _rolled_out(
        self, keys: Ints, choice: PromptChoice, tally: Tally, rng: np.random.Generator
    ) -> list[Group]:
        """The chosen prompts' groups, complete."""
        groups = [
            self._begun(key, cap)
            for key, cap in zip(keys.tolist(), choice.max_new_tokens.tolist(), strict=True)
        ]
        some, added = groups, choice.size
        for stage in range(MOST_STAGES):
            for group, count in zip(some, added.tolist(), strict=True):
                ids = self._trajectories + np.arange(count)
                group.draw(ids, stage, self._bank, tally.step)
                self._trajectories += count
            tally.stages += 1
            table = finished(some, tally.step)
            with self._timed():
                added = self._policy.extend(table, rng)
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

    def _train(
        self, groups: Sequence[Group], probability: Floats, tally: Tally, rng: np.random.Generator
    ) -> None:
        """Learn from the round, and take what is selected of it into the batch."""
        table = finished(groups, tally.step)
        with self._timed():
            self._policy.learn(table)
            selection = self._policy.select(table, rng)
        self._learn(table, tally.step)
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
        weight = 1.0 / probability[selection.accepted]
        if len(weight):
            self.effective_groups += float(weight.sum() ** 2 / (weight**2).sum())

    def _learn(self, table: FinishedGroups, version: int) -> None:
        """What candidates are described by."""
        reward, row = np.clip(table.reward, 0.0, 1.0), table.group_row
        passes: Floats = np.bincount(row, weights=reward, minlength=len(table)).astype(np.float64)
        self._estimator.learn(table.prompt_key, passes, table.size, version)
        tokens = np.bincount(row, weights=table.tokens, minlength=len(table)).astype(np.int64)
        columns = (table.prompt_key.tolist(), table.size.tolist(), tokens.tolist())
        for key, count, total in zip(*columns, strict=True):
            samples, written = self._lengths.get(key, (0, 0))
            self._lengths[key] = samples + count, written + total

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.decide_s += time.perf_counter() - started
