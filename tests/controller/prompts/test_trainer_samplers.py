"""The places where verl and TRL ask for prompts, called as they call them."""

import importlib
import sys
from abc import abstractmethod
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.sampled_training import chooser

from steersman.controller.prompts.torch_sampler import PromptSampler, RepeatedPrompts
from steersman.estimators.errors import InvalidInputError

torch = pytest.importorskip("torch")

SAMPLES, PASSES = 3, 2


def repeated(prompts: int = 7) -> RepeatedPrompts:
    inner = PromptSampler(
        chooser(), [f"p{i}" for i in range(prompts)], prompts_per_draw=2, rank=0, world_size=1
    )
    return RepeatedPrompts(inner, prompts_per_batch=2, samples=SAMPLES, passes=PASSES)


def test_prompts_are_laid_out_as_trl_lays_them_out() -> None:
    laid = np.array(list(repeated()))
    assert len(laid) == len(repeated()) == 3 * 2 * SAMPLES * PASSES
    blocks = laid.reshape(3, PASSES, 2, SAMPLES)
    assert (blocks == blocks[:, :1, :, :1]).all()  # passes and samples repeat one batch
    assert len(np.unique(blocks[:, 0, :, 0])) == 6  # each prompt once, an incomplete batch dropped


def test_what_an_incomplete_batch_left_comes_in_the_next_epoch() -> None:
    one = repeated()
    dropped = set(range(7)) - {*one}
    one.set_epoch(1)
    seen = {*one}
    one.set_epoch(2)
    assert dropped <= seen | {*one}


class Section(dict[str, Any]):
    """A section of verl's configuration."""

    __getattr__ = dict.__getitem__


class VerlData:
    """A data set as verl's: rows with an index of their own."""

    def __init__(self, count: int) -> None:
        self.dataframe = {"extra_info": [{"index": 100 + i} for i in range(count)]}

    def __len__(self) -> int:
        return len(self.dataframe["extra_info"])


def config(**sampler: Any) -> Section:
    return Section(sampler=Section(sampler), train_batch_size=4, max_response_length=64, seed=3)


def verl_batch(indices: list[int], samples: int = 4) -> Any:
    """What verl's trainer hands to `update`: samples of the prompts, in a shuffled order."""
    n = len(indices) * samples
    order = np.random.default_rng(sum(indices)).permutation(n)
    prompts = np.repeat(indices, samples)[order]
    scores, mask = torch.zeros(n, 6), torch.ones(n, 6)
    scores[:, -1] = torch.tensor((prompts % 2 == 0) & (order % 2 == 0)).float()
    return SimpleNamespace(
        batch={"token_level_scores": scores, "response_mask": mask},
        non_tensor_batch={
            "index": np.array([100 + p for p in prompts], dtype=object),
            "uid": np.array([f"u{p}" for p in prompts], dtype=object),
        },
    )


@pytest.fixture
def sampler_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our class, over the interface that verl has at this place."""

    class AbstractCurriculumSampler(torch.utils.data.Sampler):  # type: ignore[misc, name-defined]
        @abstractmethod
        def __init__(self, data_source: Any, data_config: Any) -> None: ...

        @abstractmethod
        def update(self, batch: Any) -> None: ...

    for name in ("verl", "verl.experimental", "verl.experimental.dataset"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("verl.experimental.dataset.sampler")
    module.AbstractCurriculumSampler = AbstractCurriculumSampler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ours = "steersman.controller.prompts.verl_sampler"
    monkeypatch.delitem(sys.modules, ours, raising=False)
    yield importlib.import_module(ours).VerlPromptSampler
    sys.modules.pop(ours, None)


def steps(sampler: Any, indices: Any, count: int) -> list[int]:
    taken = []
    for _ in range(count):
        batch = list(islice(indices, 4))
        taken += batch
        sampler.update(batch=verl_batch(batch))
    return taken


def test_verl_gets_each_prompt_once_per_epoch_and_a_resumed_run_goes_on(sampler_class: Any) -> None:
    def build() -> Any:
        return sampler_class(data_source=VerlData(24), data_config=config(policy="prompt_value"))

    whole, first, again = build(), build(), build()
    expected = steps(whole, iter(whole), 6)
    assert sorted(expected) == list(range(24))
    begun = steps(first, iter(first), 2)
    again.load_state_dict(first.state_dict())
    assert begun + steps(again, iter(again), 4) == expected


def test_verl_batches_are_learned_by_prompt(sampler_class: Any) -> None:
    one = sampler_class(data_source=VerlData(24), data_config=config(policy="prompt_value"))
    learned: list[Any] = []
    inner = one._sampler._order.chooser
    inner.observe = lambda *told: learned.append(told)
    one.update(verl_batch([3, 8]))
    assert {name: sorted(rewards) for name, rewards, *_ in learned} == {
        103: [0.0] * 4,
        108: [0.0, 0.0, 1.0, 1.0],
    }
    assert [tokens for *_, tokens in learned] == [[6] * 4, [6] * 4]


def test_rows_that_verl_cannot_tell_apart_are_named(sampler_class: Any) -> None:
    data = VerlData(4)
    data.dataframe["extra_info"][3]["index"] = 101
    with pytest.raises(InvalidInputError, match="prompt 101 is in the data set twice, at 1 and 3"):
        sampler_class(data_source=data, data_config=config())
    with pytest.raises(InvalidInputError, match=r"no extra_info\.index in each row"):
        sampler_class(data_source=[1, 2], data_config=config())


def test_without_verl_the_import_says_what_is_needed() -> None:
    with pytest.raises(InvalidInputError, match=r"needs verl 0\.5 to 0\.9\.0"):
        importlib.import_module("steersman.controller.prompts.verl_sampler")
