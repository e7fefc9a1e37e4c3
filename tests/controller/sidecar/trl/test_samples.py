"""The rows that TRL trains on."""

from typing import Any

import numpy as np
import pytest
from support.trl_scene import FakeTokenizer, floats, rows

from steersman.controller.sidecar.prompts.supply import Plan, Verdict
from steersman.controller.sidecar.trl import samples
from steersman.controller.sidecar.trl.dataset import PromptData
from steersman.controller.sidecar.trl.samples import Answer, advantages, answers_of
from steersman.controller.sidecar.trl.scoring import Rewards
from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.estimators.observation import Normaliser

PLAN = Plan(3, "p", 3, 8, inclusion_probability=0.25, weight=1.5)


def steered(version: int = 5, weight: float = 1.0, correctness: str = "exact") -> dict[str, Any]:
    segments = [{"weight_version": version}, {"weight_version": version + 1}]
    return {
        "trajectory_id": 1,
        "segments": segments,
        "weight": weight,
        "correctness": correctness,
        "moves": 2,
    }


def answer(told: dict[str, Any] | None = None, asked_version: int = 5) -> Answer:
    return Answer([8, 9], [-0.5, -0.25], False, asked_version, told)


def rows_of(
    answers: list[Answer], rewards: list[float], verdict: Verdict | None = None, **options: Any
) -> list[samples.RolloutSample]:
    return samples.rows(
        PLAN,
        answers,
        {"r": floats(*rewards)},
        floats(*rewards),
        verdict or Verdict(accepted=True, train=(True,) * len(answers), weight=1.5),
        **{
            "prompt": "2 3",
            "prompt_tokens": [1, 2, 3],
            "completions": ["8 9"] * len(answers),
            "normaliser": Normaliser.STD,
            "weight_version": 6,
            "weigh_groups": False,
            **options,
        },
    )


def test_advantages_are_those_of_trl() -> None:
    rewards = floats(1.0, 0.0, 0.0, np.nan)
    known = rewards[:3]
    expected = (known - known.mean()) / (known.std() + 1e-8)
    assert advantages(rewards, Normaliser.STD) == pytest.approx([*expected, 0.0])
    assert advantages(rewards, Normaliser.NONE) == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])
    assert advantages(floats(np.nan, np.nan), Normaliser.STD).tolist() == [0.0, 0.0]


def test_a_row_has_the_tokens_the_mask_and_the_behaviour_of_the_answer_alone() -> None:
    first, second = rows_of([answer(), answer()], [1.0, 0.0])
    assert first.input_ids.tolist() == [1, 2, 3, 8, 9]
    assert first.completion_mask.tolist() == [0, 0, 0, 1, 1]
    assert first.old_log_probs.tolist() == [0.0, 0.0, 0.0, -0.5, -0.25]
    assert first.old_log_probs.dtype == np.float32
    assert (first.group_id, first.metrics["reward"]) == (3, 1.0)
    assert first.advantage == pytest.approx(-second.advantage)


def test_a_group_has_the_oldest_version_that_wrote_any_of_it() -> None:
    made = rows_of([answer(steered(5), 4), answer(steered(6), 4)], [1.0, 0.0])
    assert {row.model_version for row in made} == {5}
    assert [row.metrics["steersman/lag"] for row in made] == [1.0, 0.0]
    assert made[0].metrics["steersman/segments"] == 2.0


def test_a_gateway_that_was_restarted_does_not_make_samples_older_than_their_request() -> None:
    (row, _) = rows_of([answer(steered(0), 5), answer(steered(5), 5)], [1.0, 0.0])
    assert row.model_version == 5


def test_a_weight_multiplies_its_advantage_and_a_weight_of_0_makes_no_row() -> None:
    plain = rows_of([answer(), answer(), answer()], [1.0, 0.0, 0.0])
    weighted = rows_of(
        [answer(steered(weight=2.0, correctness="corrected")), answer(), answer(steered(weight=0))],
        [1.0, 0.0, 0.0],
    )
    assert len(weighted) == 2
    assert weighted[0].advantage == pytest.approx(2 * plain[0].advantage)
    assert weighted[0].metrics["steersman/exact"] == 0.0
    assert weighted[0].metrics["steersman/sample_weight"] == 2.0


def test_a_groups_weight_is_told_and_multiplied_only_if_asked_for() -> None:
    (plain, _) = rows_of([answer(), answer()], [1.0, 0.0])
    (weighed, _) = rows_of([answer(), answer()], [1.0, 0.0], weigh_groups=True)
    assert plain.metrics["steersman/group_weight"] == 1.5
    assert plain.metrics["steersman/inclusion_probability"] == 0.25
    assert weighed.advantage == pytest.approx(1.5 * plain.advantage)


def test_samples_that_the_policy_leaves_out_make_no_row() -> None:
    verdict = Verdict(accepted=True, train=(True, False, True))
    made = rows_of([answer(), answer(), answer()], [1.0, 0.0, 0.5], verdict)
    assert [row.metrics["reward"] for row in made] == [1.0, 0.5]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": [{"token_ids": None, "logprobs": None, "finish_reason": "stop"}]},
        {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": []},
                      "finish_reason": "stop"}]},
        "no object",
    ],
)  # fmt: skip
def test_an_answer_without_what_training_needs_is_an_error(body: Any) -> None:
    with pytest.raises(FleetError, match="http://e:1 answered"):
        answers_of(body, 0, "http://e:1")


def test_prompts_are_named_by_their_row_whatever_its_place() -> None:
    data = PromptData(rows(3), FakeTokenizer())
    assert data.prompt_ids[::-1] == PromptData(rows(3)[::-1], FakeTokenizer()).prompt_ids
    assert data.tokens(data.prompt_ids[0]) == [1, 2, 30]
    assert data.answer(data.prompt_ids[0], [8, 9]) == [{"role": "assistant", "content": "8 9"}]
    named = PromptData([{"prompt": "2 3", "prompt_id": "mine"}], FakeTokenizer())
    assert named.prompt_ids == ["mine"]
    assert named.tokens("mine") == [2, 3]
    assert named.answer("mine", [8, 9]) == "8 9"


def test_data_that_cannot_be_a_pool_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="IterableDataset"):
        PromptData(iter(rows(2)), FakeTokenizer())
    with pytest.raises(InvalidInputError, match='row 0 of the data set has no column "prompt"'):
        PromptData([{"text": "2"}], FakeTokenizer())
    with pytest.raises(InvalidInputError, match="the data set has no rows"):
        PromptData([], FakeTokenizer())
    with pytest.raises(InvalidInputError, match="'a' is in the data set twice"):
        PromptData([{"prompt": "2", "prompt_id": "a"}] * 2, FakeTokenizer())


async def test_rewards_are_called_as_trl_calls_them() -> None:
    seen: dict[str, Any] = {}

    def one(**told: Any) -> list[float | None]:
        seen.update(told)
        return [1.0, None]

    async def two(**_: Any) -> list[float | None]:
        return [0.5, None]

    scores, total = await Rewards([one, two], 5.0).score(rows(1)[0], ["a", "b"], [[8], [9]])
    assert seen["completion_ids"] == [[8], [9]]
    assert seen["answer"] == [7, 7]
    assert seen["prompts"] == [rows(1)[0]["prompt"]] * 2
    assert list(scores) == ["one", "two"]
    assert total[0] == 1.5
    assert np.isnan(total[1])
    with pytest.raises(InvalidInputError, match="one told 2 rewards for 1 samples"):
        await Rewards(one, 5.0).score(rows(1)[0], ["a"], [[8]])
    with pytest.raises(InvalidInputError, match="no reward function"):
        Rewards([], 5.0)
