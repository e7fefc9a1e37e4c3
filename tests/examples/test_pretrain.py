"""The start is trained once, kept whole, and never mistaken for another recipe's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from steersman.examples.signs.model import Shape, load_hf, named_tensors
from steersman.examples.signs.pretrain import Recipe, checkpoint_folder, pretrained

SMALL = Shape(hidden=32, intermediate=48, layers=2, heads=2, max_positions=1024)
TINY = Recipe(steps=4, batch_tokens=512, warmup_steps=2, shape=SMALL)


def test_the_second_call_reads_what_the_first_one_trained(tmp_path: Path) -> None:
    told: list[tuple[int, int, float]] = []
    folder = pretrained(tmp_path, recipe=TINY, progress=lambda *step: told.append(step))
    assert [(step, steps) for step, steps, _ in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert pretrained(tmp_path, recipe=TINY, progress=lambda *step: told.append(step)) == folder
    assert len(told) == 4


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses: list[float] = []
    recipe = Recipe(steps=40, batch_tokens=512, warmup_steps=5, shape=SMALL)
    pretrained(tmp_path, recipe=recipe, progress=lambda _, __, loss: losses.append(loss))
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def test_another_recipe_or_seed_has_another_folder(tmp_path: Path) -> None:
    folders = {
        checkpoint_folder(tmp_path, recipe=TINY),
        checkpoint_folder(tmp_path, recipe=TINY, seed=1),
        checkpoint_folder(tmp_path, recipe=Recipe(steps=5, shape=SMALL)),
        checkpoint_folder(tmp_path),
    }
    assert len(folders) == 4


def test_two_that_train_at_once_share_one_whole_checkpoint(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: pretrained(tmp_path, recipe=TINY), range(2))
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == [first.name]  # no scratch is left
    assert {path.name for path in first.iterdir()} == {
        "config.json",
        "model.safetensors",
        "recipe.json",
    }


def test_an_interrupted_training_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrained(tmp_path, recipe=TINY, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_trains_the_same_start(tmp_path: Path) -> None:
    one, other = (
        named_tensors(load_hf(pretrained(tmp_path / name, recipe=TINY, seed=3))) for name in "ab"
    )
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def test_the_cache_follows_its_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERSMAN_CACHE", str(tmp_path))
    assert checkpoint_folder().parent == tmp_path
    monkeypatch.delenv("STEERSMAN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checkpoint_folder().parent == tmp_path / ".cache" / "steersman"
