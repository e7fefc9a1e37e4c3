"""Prompts and groups for a trainer that rolls out elsewhere."""

import pytest

from steersman.controller.config import load_config
from steersman.controller.sidecar.prompts.supply import Answers, Plan, PromptSupply, Verdict
from steersman.estimators.errors import InvalidInputError

POOL = [f"p{i}" for i in range(6)]
MIXED, ALIKE = [1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]


def supply(*overrides: str, drop_degenerate: bool = True, pool: list[str] = POOL) -> PromptSupply:
    made = PromptSupply(load_config(None, overrides, {}), 4, 64, drop_degenerate=drop_degenerate)
    made.set_pool(pool)
    return made


def begin(source: PromptSupply, wanted: int = 2, step: int = 0) -> Plan:
    plan = source.next(wanted, step, step, 0.0)
    assert plan is not None
    return plan


def judged(source: PromptSupply, plan: Plan, rewards: list[float], step: int = 0) -> Verdict:
    n = len(rewards)
    answers = Answers(plan.number, rewards, [5] * n, [False] * n, [-0.5] * n, step)
    return source.complete(answers, step, step)


def test_every_prompt_comes_once_before_any_comes_again() -> None:
    source = supply()
    plans = [begin(source, step=i // 2) for i in range(6)]
    assert sorted(plan.prompt_id for plan in plans) == POOL
    assert [plan.number for plan in plans] == list(range(6))
    assert all(plan.size == 4 and plan.max_new_tokens == 64 for plan in plans)
    assert source.next(2, 3, 3, 0.0) is None


def test_a_group_that_teaches_something_is_accepted_whole() -> None:
    source = supply()
    verdict = judged(source, begin(source), MIXED)
    assert verdict == Verdict(accepted=True, train=(True,) * 4)
    assert source.counts["accepted"] == 1


def test_a_group_that_teaches_nothing_is_filtered_if_asked_for() -> None:
    source = supply()
    assert not judged(source, begin(source), ALIKE).accepted
    assert source.counts["filtered"] == 1
    keeps = supply(drop_degenerate=False)
    assert judged(keeps, begin(keeps), ALIKE).accepted


def test_a_prompt_that_taught_nothing_gets_a_second_chance() -> None:
    source = supply(pool=["only"])
    for step, rewards in enumerate((ALIKE, MIXED, MIXED)):
        plan = begin(source, step=step)
        judged(source, plan, rewards, step)
        source.settle(plan.number)
    assert source.counts["revisits"] == 2
    assert source.counts["second_chances"] == 1


def test_a_policy_may_want_more_samples_of_a_group() -> None:
    source = supply("prompts.name=prompt_value", "prompts.options.commit_from=1.0")
    plan = begin(source, wanted=1)
    assert plan.size == 4  # its probe is as large as the whole group
    source = PromptSupply(
        load_config(None, ["prompts.name=prompt_value", "prompts.options.commit_from=1"], {}), 8, 64
    )
    source.set_pool(POOL)
    plan = begin(source, wanted=1)
    assert plan.size == 4
    assert judged(source, plan, MIXED).more == 4
    assert judged(source, plan, MIXED * 2).accepted
    assert source.counts["extended"] == 1


def test_what_was_given_up_begins_again_before_anything_else() -> None:
    source = supply()
    plans = [begin(source) for _ in range(2)]
    source.give_up([plan.number for plan in plans])
    again = [begin(source) for _ in range(2)]
    assert [plan.prompt_id for plan in again] == [plan.prompt_id for plan in plans]
    assert again[0].number > plans[-1].number


def test_a_state_goes_on_with_what_was_owed() -> None:
    source = supply()
    first, second = begin(source), begin(source)
    judged(source, first, MIXED)
    source.settle(first.number)
    other = supply()
    other.load_state_dict(source.state_dict())
    assert begin(other).prompt_id == second.prompt_id
    assert other.counts["accepted"] == 1
    rest = {begin(other, step=i).prompt_id for i in range(1, 5)}
    assert first.prompt_id not in rest


def test_a_group_that_is_not_under_way_is_an_error() -> None:
    source = supply()
    plan = begin(source)
    source.settle(plan.number)
    with pytest.raises(InvalidInputError, match="group 0 is not under way"):
        source.settle(plan.number)
    with pytest.raises(InvalidInputError, match="in the pool twice"):
        source.set_pool(["a", "a"])
