"""The sampler in a torch DataLoader: nothing is lost or repeated, whatever interrupts it."""

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sampled_training import Training, chooser

from steersman.estimators.errors import InvalidInputError

torch = pytest.importorskip("torch")

from steersman.controller.prompts.torch_sampler import PromptSampler, RewardedGroup  # noqa: E402

IDS = [f"p{i}" for i in range(23)]
WORKERS = [0, 2]


def sampler(ids: Any = IDS, **options: Any) -> PromptSampler:
    return PromptSampler(chooser(), ids, **{"prompts_per_draw": 4, **options})


@pytest.mark.parametrize("workers", WORKERS)
def test_each_prompt_comes_once_per_epoch_in_an_order_of_its_own(workers: int) -> None:
    training = Training(IDS, workers)
    epochs = [training.run() for _ in range(3)]
    assert all(sorted(epoch) == list(range(len(IDS))) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len(training.loader) == 6


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batches", [0, 1, 3, 5, 6])
def test_a_run_that_goes_on_is_the_run_that_was_never_interrupted(
    workers: int, batches: int
) -> None:
    whole = Training(IDS, workers)
    expected = [whole.run(), whole.run()]
    first = Training(IDS, workers)
    begun = first.run(batches)
    state = first.state()
    again = Training(IDS, workers)
    again.load(state)
    rest = again.run() if batches < 6 else []
    assert begun + rest == expected[0]
    assert again.run() == expected[1]
    assert again.state_bytes() == whole.state_bytes()


def test_a_state_in_which_what_was_prefetched_counts_as_consumed_loses_prompts() -> None:
    first = Training(IDS, workers=2)
    begun = first.run(2)
    again = Training(IDS, workers=2)
    again.load({**first.state(), "sampler": first.sampler.state_dict()})  # `consumed` is not told
    assert sorted(begun + again.run()) != list(range(len(IDS)))


def test_persistent_workers_keep_the_order_of_the_policy() -> None:
    plain, persistent = Training(IDS, 0), Training(IDS, 2, persistent_workers=True)
    for _ in range(2):
        assert sorted(persistent.run()) == sorted(plain.run()) == list(range(len(IDS)))


def test_prompts_are_drawn_by_what_was_learned_before() -> None:
    ids, learned = [f"p{i}" for i in range(40)], sampler([f"p{i}" for i in range(40)])
    for i in range(40):
        learned.observe(ids[i], [1.0, 0.0, 1.0, 0.0] if i % 4 == 0 else [1.0] * 4, 1)
    first = list(islice(learned, 8))
    assert np.mean([index % 4 == 0 for index in first]) > 0.5


def test_an_endless_sampler_has_no_length_and_comes_back_to_prompts() -> None:
    endless = sampler(endless=True)
    with pytest.raises(TypeError, match="no length"):
        len(endless)
    drawn = list(islice(endless, 200))
    assert set(drawn) == set(range(len(IDS)))


def test_an_endless_sampler_goes_on_where_it_was() -> None:
    whole, first, again = (sampler(endless=True) for _ in range(3))
    expected = list(islice(whole, 90))
    begun = list(islice(first, 42))
    again.load_state_dict(first.state_dict(consumed=40))
    rest = list(islice(again, 50))
    assert begun[:40] + rest == expected


def test_set_epoch_reshuffles_and_does_nothing_in_the_epoch_under_way() -> None:
    one = sampler()
    begun = list(islice(one, 5))
    one.set_epoch(0)
    assert sorted(begun + list(one)) == list(range(len(IDS)))
    one.set_epoch(7)
    assert one.epoch == 7
    assert sorted(one) == list(range(len(IDS)))


def test_a_data_set_that_shrank_and_grew_meanwhile_gives_each_of_its_prompts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = sampler()
    begun = list(islice((IDS[i] for i in before), 9))
    state = before.state_dict(consumed=7)
    prefetched = begun[7:]
    now = [*(i for i in IDS if i != prefetched[0]), "new1", "new2"]
    after = sampler(now)
    after.load_state_dict(state)
    rest = [now[index] for index in after]
    assert rest[0] == prefetched[1]
    assert sorted(begun[:7] + rest) == sorted(now)
    assert repr(prefetched[0]) in caplog.text


@pytest.mark.parametrize("then", [1, 2, 3])
def test_another_number_of_ranks_takes_up_where_the_former_left_off(then: int) -> None:
    before = [sampler(rank=r, world_size=2) for r in range(2)]
    begun = [list(islice(one, 5)) for one in before]
    states = [one.state_dict(consumed=4) for one in before]
    assert repr(states[0]) == repr(states[1])
    after = [sampler(rank=r, world_size=then) for r in range(then)]
    rest = []
    for one in after:
        one.load_state_dict(states[0])
        rest += list(one)
    seen = [i for part in begun for i in part[:4]] + rest
    assert len(seen) == len(set(seen)) > len(IDS) - then


def test_ranks_share_the_draws_and_each_takes_equally_many() -> None:
    shares = [list(sampler(rank=r, world_size=3)) for r in range(3)]
    assert {len(share) for share in shares} == {7} == {len(sampler(rank=0, world_size=3))}
    assert len({index for share in shares for index in share}) == 21


def test_ranks_that_went_different_ways_are_told_apart() -> None:
    payloads: list[Any] = []
    one = sampler(rank=0, world_size=2, gather=lambda mine: [mine, *payloads])
    other = sampler(rank=1, world_size=2, gather=lambda mine: payloads.append(mine) or [mine])
    next(iter(one)), next(iter(other))
    other.observe_ranks([], 1)
    one.observe_ranks([], 1)
    payloads.clear()
    next(iter(other))
    other.observe_ranks([], 1)
    with pytest.raises(InvalidInputError, match="rank 1 is at"):
        one.observe_ranks([], 1)


def test_samples_of_one_prompt_on_several_ranks_are_one_group() -> None:
    seen: list[Any] = []
    theirs = [RewardedGroup("p1", [0.0, 0.0], [5, 6])]
    one = sampler(rank=0, world_size=2, gather=lambda mine: [mine, (mine[0], mine[1], theirs)])
    one._order.chooser.observe = lambda *told: seen.append(told)  # type: ignore[method-assign]
    one.observe_ranks([RewardedGroup("p1", [1.0, 1.0], [3, 4])], 2)
    assert seen == [("p1", [1.0, 1.0, 0.0, 0.0], 2, [3, 4, 5, 6])]


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: sampler(["a", "b", "a"]), r"prompt 'a' is in the data set twice, at 0 and 2"),
        (lambda: sampler([]), "0 prompts are too few for 1 ranks"),
        (lambda: sampler(prompts_per_draw=0), "prompts_per_draw is 0; valid: 1 or more"),
        (lambda: sampler(rank=2, world_size=2), "rank is 2; valid: 0 to world_size - 1 = 1"),
        (lambda: sampler().observe("p99", [1.0], 0), "there is no prompt 'p99' in the data set"),
        (lambda: sampler().terms(3), "prompt 'p3' was not drawn"),
        (lambda: sampler().terms(99), "no prompt at index 99; the data set has 23"),
        (lambda: sampler().state_dict(consumed=1), "consumed is 1; valid: 0 to 0"),
        (
            lambda: sampler(endless=True).load_state_dict(sampler().state_dict()),
            "the state is of an order with epochs",
        ),
        (lambda: sampler().set_epoch(-1), "the epoch is -1; valid: 0 or more"),
    ],
)
def test_bad_input_is_named(build: Any, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        build()


def test_nan_rewards_are_left_out_and_fractions_count_as_they_are() -> None:
    one, other = sampler(), sampler()
    one.observe("p1", [1.0, float("nan"), 0.25, float("nan")], 1)
    other.observe("p1", [1.0, 0.25], 1)
    one.observe("p2", [float("nan")] * 3, 1)
    assert list(one) == list(other)


def test_the_terms_of_what_was_drawn_are_told() -> None:
    one = sampler()
    for index in islice(one, 6):
        terms = one.terms(index)
        assert terms.prompt_id == IDS[index]
        assert 0 < terms.inclusion_probability <= 1
        assert terms.weight > 0
        assert terms.size >= 1


def test_who_waits_the_longest_is_told() -> None:
    one = sampler(endless=True)
    seen = list(islice(one, 40))
    name, draws = one.longest_unvisited()
    last = {index: place for place, index in enumerate(seen)}
    assert last.get(IDS.index(str(name)), -1) <= min(last.get(i, -1) for i in range(23)) + 4
    assert draws >= 1


def test_without_torch_the_import_says_what_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from steersman.estimators.errors import InvalidInputError\n"
        "import steersman.controller.prompts.order\n"
        "try:\n    import steersman.controller.prompts.torch_sampler\n"
        "except InvalidInputError as error:\n    print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip().endswith("needs torch, which is not installed: pip install torch")


@pytest.mark.parametrize("workers", WORKERS)
def test_killed_in_mid_epoch_and_resumed_it_trains_on_the_same_as_if_it_had_lived(
    tmp_path: Path, workers: int
) -> None:
    whole = Training(IDS, workers)
    expected = [whole.run(), whole.run()]
    program = [
        sys.executable,
        "-m",
        "support.sampled_training",
        str(tmp_path / "state"),
        str(workers),
    ]
    tests = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    ends = [["taken", 2], ["saved", 7], None]  # batches, counted over all lives
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
    for end in ends:
        with subprocess.Popen(program, env=env, text=True, **pipes) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                if json.loads(line) == end:
                    process.send_signal(signal.SIGKILL)
                    break
                process.stdin.write("go on\n")
        assert process.returncode == (0 if end is None else -signal.SIGKILL)
    saved = torch.load(tmp_path / "state", weights_only=False)
    assert saved["consumed"] == expected
    assert saved["state_bytes"] == whole.state_bytes()


def test_two_processes_of_torch_distributed_agree_and_share_the_data_set(tmp_path: Path) -> None:
    tests = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "support.sampled_ranks", str(tmp_path / "meet"), "2"]
    ranks = [
        subprocess.Popen([*program, str(r)], env=env, stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    told = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    for epochs in zip(*(one["epochs"] for one in told), strict=True):
        seen = [index for share in epochs for index in share]
        assert len(seen) == len(set(seen)) == 22
    assert told[0]["state"] == told[1]["state"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdata_goes_on_exactly_where_the_trainer_was() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    for workers in WORKERS:
        whole = Training(IDS, workers, loader=stateful.StatefulDataLoader)
        expected = whole.run()
        first = Training(IDS, workers, loader=stateful.StatefulDataLoader)
        begun = first.run(3)
        state = first.loader.state_dict()
        again = Training(IDS, workers, loader=stateful.StatefulDataLoader)
        again.loader.load_state_dict(state)
        rest = again.run()
        assert sorted(begun + rest) == list(range(len(IDS)))
        if not workers:  # with workers the state lacks the rewards of what was prefetched
            assert begun + rest == expected


def test_without_workers_each_draw_knows_the_rewards_of_the_batch_before() -> None:
    training = Training(IDS, 0)
    training.run(2)
    assert training.sampler._order.draws == 2
