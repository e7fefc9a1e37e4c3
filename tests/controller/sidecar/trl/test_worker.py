"""The rollout worker: what it puts into the trainer's queue, how far ahead, and how it ends."""

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_sampler import FakeSampler
from support.trl_scene import FakeArguments, FakeTokenizer, rows, share_of_answer

from steersman.controller.sidecar.trl import client as client_module
from steersman.controller.sidecar.trl import worker as worker_module
from steersman.controller.sidecar.trl.attach import attach_async
from steersman.controller.sidecar.trl.checkpoints import load_worker, save_worker
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.samples import RolloutSample
from steersman.controller.sidecar.trl.worker import SteersmanRolloutWorker
from steersman.estimators.errors import InvalidInputError

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a real run are too long here."""
    for name, value in (("HEALTH_S", 0.2), ("WATCH_S", 0.1), ("PAUSE_S", 0.02)):
        monkeypatch.setattr(client_module, name, value)
    monkeypatch.setattr(worker_module, "BEAT_S", 0.01)
    monkeypatch.setattr(worker_module, "TELL_EVERY_S", 0.05)


@asynccontextmanager
async def scene(
    arguments: FakeArguments | None = None,
    reward: Callable[..., Any] = share_of_answer,
    *,
    prompts: int = 12,
    on_loss: str = "plain",
    start: bool = True,
    config: tuple[str, ...] = (),
    **knobs: Any,
) -> AsyncIterator[tuple[SteersmanRolloutWorker, FakeSampler, list[FakeSampler]]]:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(FakeSampler(steers=True, **knobs))
        engines = [await stack.enter_async_context(FakeSampler()) for _ in range(2)]
        told: Any = on_loss
        endpoints = Endpoints(
            gateway.url, [e.url for e in engines], on_loss=told, patience_s=0.3, retry_s=0.05
        )
        worker = SteersmanRolloutWorker(
            endpoints,
            rows(prompts),
            reward,
            FakeTokenizer(),
            arguments or FakeArguments(),
            config=config,
        )
        if start:
            worker.update_model_version(1)
            worker.start()
        try:
            yield worker, gateway, engines
        finally:
            await asyncio.to_thread(worker.stop)


async def take(worker: SteersmanRolloutWorker, count: int) -> list[RolloutSample]:
    """As the trainer takes them."""

    def work() -> list[RolloutSample]:
        samples, until_s = [], time.monotonic() + PATIENCE_S
        while len(samples) < count:
            try:
                samples.append(worker.rollout_buffer.get(timeout=0.05))
            except queue.Empty:
                worker.check_health(PATIENCE_S)
                assert time.monotonic() < until_s
        return samples

    return await asyncio.to_thread(work)


async def until(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


async def ended(worker: SteersmanRolloutWorker) -> RuntimeError:
    """What `check_health` raises in the end."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            worker.check_health(PATIENCE_S)
        except RuntimeError as error:
            return error
        await asyncio.sleep(0.01)
    raise AssertionError("it goes on")


async def test_whole_groups_that_teach_something_reach_the_trainer() -> None:
    async with scene() as (worker, gateway, _):
        samples = await take(worker, 24)
        groups = [samples[i : i + 4] for i in range(0, 24, 4)]
        for group in groups:
            assert len({sample.group_id for sample in group}) == 1
            assert len({sample.metrics["reward"] for sample in group}) > 1
            assert sum(sample.advantage for sample in group) == pytest.approx(0.0, abs=1e-6)
            assert {sample.model_version for sample in group} == {1}
        counts = worker.counts()
        assert counts["filtered"] > 0
        assert counts["accepted"] >= 6
        assert len({body["seed"] for body in gateway.asked}) == len(gateway.asked)


async def test_the_gateway_is_told_what_samples_earned() -> None:
    async with scene() as (worker, gateway, _):
        await take(worker, 4)
        await until(lambda: len(gateway.rewards) >= 4)
        assert gateway.rewards[0].keys() == {"trajectory_id", "reward"}


async def test_samples_in_flight_and_waiting_are_bounded_together() -> None:
    async with scene(FakeArguments(max_inflight_tasks=8), prompts=400) as (worker, gateway, _):
        most = 0
        for _ in range(6):
            await until(lambda: worker.rollout_buffer.qsize() >= 8)
            asked = len(gateway.asked)
            await asyncio.sleep(0.05)
            assert len(gateway.asked) == asked
            most = max(most, worker.rollout_buffer.qsize())
            await take(worker, 8)
        assert most == 8


async def test_a_group_that_is_too_stale_is_abandoned_and_its_prompt_begins_again() -> None:
    async with scene(answer_s=30.0) as (worker, gateway, _):
        await until(lambda: len(gateway.asked) == 2)
        first = {body["steersman"]["prompt"] for body in gateway.asked}
        worker.update_model_version(4)
        await until(lambda: len(gateway.asked) == 4)
        assert {body["steersman"]["prompt"] for body in gateway.asked[2:]} == first
        assert worker.counts()["expired"] == 2
        assert gateway.asked[-1]["steersman"]["weight_version"] == 4


async def test_samples_that_a_pause_cut_are_asked_for_again() -> None:
    async with scene(aborts=3) as (worker, gateway, _):
        await take(worker, 4)
        assert gateway.aborts == 0
        assert len(gateway.asked) > len({body["steersman"]["group"] for body in gateway.asked})


async def test_with_plain_a_lost_gateway_does_not_stop_the_samples() -> None:
    async with scene(on_loss="plain") as (worker, gateway, engines):
        await take(worker, 8)
        await gateway.down()
        samples = await take(worker, 32)
        assert samples[-1].metrics["steersman/steered"] == 0.0
        assert all(engine.asked for engine in engines)
        assert worker.endpoints.losses == 1


async def test_with_stop_a_lost_gateway_ends_the_worker_with_its_reason() -> None:
    async with scene(on_loss="stop") as (worker, gateway, _):
        await take(worker, 8)
        began_s = time.monotonic()
        await gateway.down()
        error = await ended(worker)
        assert 'on_loss="stop" ends the run' in str(error)
        assert time.monotonic() - began_s < 10.0


@pytest.mark.parametrize(
    ("knobs", "reward", "says"),
    [
        ({"refuses": 404}, share_of_answer, "answered 404: it will not"),
        ({}, lambda **_: 1 / 0, "division by zero"),
        ({}, lambda **_: [1.0], "told 1 rewards for 4 samples"),
    ],
)
async def test_what_cannot_work_ends_the_worker_with_its_reason(
    knobs: dict[str, Any], reward: Callable[..., Any], says: str
) -> None:
    async with scene(reward=reward, **knobs) as (worker, _, _):
        assert says in str(await ended(worker))


async def test_a_worker_that_does_not_move_is_found_out() -> None:
    async with scene(start=False) as (worker, _, _):
        worker.check_health(0.0)  # it has not begun
        worker.start()
        worker._beat_s = time.monotonic() - 100.0
        with pytest.raises(RuntimeError, match="has not moved for 1"):
            worker.check_health(50.0)


async def test_it_can_be_started_again_and_owes_what_was_in_flight() -> None:
    async with scene(answer_s=30.0) as (worker, gateway, _):
        await until(lambda: len(gateway.asked) == 2)
        await asyncio.to_thread(worker.stop)
        gateway.answer_s = 0.0
        worker.start()
        await until(lambda: len(gateway.asked) >= 4)
        prompts = [body["steersman"]["prompt"] for body in gateway.asked]
        assert set(prompts[2:4]) == set(prompts[:2])


async def test_a_checkpoint_owes_what_the_trainer_did_not_take(tmp_path: Path) -> None:
    async with scene(FakeArguments(max_inflight_tasks=12)) as (worker, gateway, _):
        await until(lambda: worker.rollout_buffer.qsize() == 12)
        (sample,) = await take(worker, 1)
        await asyncio.to_thread(worker.stop)
        save_worker(worker, tmp_path)
        names = {f"trl-3-{s.group_id}" for s in list(worker.rollout_buffer.queue)}
        names.discard(f"trl-3-{sample.group_id}")
        told = [body["steersman"] for body in gateway.asked]
        owed = [each["prompt"] for each in told if each["group"] in names]
        assert len(owed) == 2
        async with scene(start=False) as (other, new_gateway, _):
            load_worker(other, tmp_path)
            other.start()
            await until(lambda: len(new_gateway.asked) >= 2)
            begun = [body["steersman"]["prompt"] for body in new_gateway.asked[:2]]
            assert set(begun) == set(owed)
            assert other.counts()["accepted"] >= 3
            with pytest.raises(InvalidInputError, match="before it is started"):
                load_worker(other, tmp_path)
    with pytest.raises(InvalidInputError, match="no state of a rollout worker"):
        load_worker(worker, tmp_path / "nowhere")


async def test_versions_go_on_for_beliefs_when_the_trainer_counts_from_1_again() -> None:
    async with scene() as (worker, _, _):
        await take(worker, 8)
        worker.update_model_version(9)
        await take(worker, 8)
        state = worker.state_dict()
        assert state["weight_version"] == 9
        async with scene(start=False) as (other, _, _):
            other.load_state_dict(state)
            other.update_model_version(1)
            assert other.state_dict()["weight_version"] == 9
            other.start()
            (sample, *_) = await take(other, 8)
            assert sample.model_version == 1
            other.update_model_version(2)
            assert other.state_dict()["weight_version"] == 10


async def test_the_trainer_is_told_counts_that_add_up() -> None:
    async with scene() as (worker, _, _):
        await take(worker, 16)
        await until(lambda: worker.metrics_queue.qsize() > 2)
        await asyncio.to_thread(worker.stop)
        reports = list(worker.metrics_queue.queue)
        begun = sum(report["steersman/groups_begun_total"] for report in reports)
        assert 4 <= begun <= worker.counts()["begun"]
        rewarded = [report["steersman/reward_of_all"] for report in reports]
        assert 0 < sum(n for n, _ in rewarded) < sum(d for _, d in rewarded)


async def test_a_prompt_policy_chooses_and_comes_back() -> None:
    config = ("prompts.name=prompt_value",)
    async with scene(prompts=4, config=config) as (worker, _, _):
        await take(worker, 40)
        assert worker.counts()["revisits"] > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_generations": 1}, "num_generations is 1; valid: 2 or more"),
        ({"max_inflight_tasks": 3}, r"valid: one group \(4\) or more"),
    ],
)
async def test_settings_that_cannot_work_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        async with scene(FakeArguments(**change), start=False):
            pass


def test_attaching_gives_the_trainers_arguments(tmp_path: Path) -> None:
    arguments = FakeArguments()
    parts = attach_async(
        "http://gateway:1", arguments, rows(2), share_of_answer, FakeTokenizer(), weights="file"
    )
    assert parts.keys() == {"rollout_worker", "weight_transfer"}
    assert parts["rollout_worker"].endpoints is parts["weight_transfer"].endpoints
    assert arguments.vllm_server_base_url == "http://gateway:1"
    assert "weight_transfer" not in attach_async(
        "http://gateway:1", arguments, rows(2), share_of_answer, FakeTokenizer(), weights="nccl"
    )
    with pytest.raises(InvalidInputError, match='valid: "auto", "file", "nccl"'):
        attach_async(
            "http://gateway:1",
            arguments,
            rows(2),
            share_of_answer,
            FakeTokenizer(),
            weights="carrier pigeon",  # type: ignore[arg-type]
        )


def test_the_example_changes_five_lines_at_most() -> None:
    source = Path(__file__).parents[4] / "examples" / "attach_trl.py"
    marked = [line for line in source.read_text().splitlines() if line.endswith("# steersman")]
    assert 1 <= len(marked) <= 5
