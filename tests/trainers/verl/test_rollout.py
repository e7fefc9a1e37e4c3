"""verl 0.9.1's own classes and servers, on real engines, under the router and the client."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from load import Outcome, play, requests
from servers import trainer_config
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.router import get_router_handle

from steersman.estimators.errors import FleetError

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's own
]

ROUTER_CLASS = "steersman.controller.sidecar.verl.router.SteersmanRouter"
ROUTER = f"""
router_class: {ROUTER_CLASS}
look_every_s: 0.1
steersman:
  placement: {{{{{{placement}}}}}}
  tick_s: 0.1
  guard: {{{{max_moves_per_tick: 64, move_cooldown_s: 0}}}}
"""
MOVED_ONCE = 'name: "support.moving_policy:Moving", options: {every: 16, most: 1}'
LOAD = requests(200)


WARM_UP = requests(24, seed=99)
ROUNDS = 3
"""In turn, since the machine may be busier in one than in the next."""


def router_file(folder: Path, placement: str = MOVED_ONCE, more: str = "") -> str:
    path = folder / "router.yaml"
    path.write_text(more + ROUTER.format(placement=placement))
    return str(path)


def our_client(model: Path, router: Any, stock: type = FullyAsyncLLMServerClient) -> Any:
    from steersman.controller.sidecar.verl.client import SteersmanLLMServerClient

    return SteersmanLLMServerClient.wrapping(stock(trainer_config(model), router))


@pytest.fixture(scope="session")
def baseline(engines: dict[str, Any], model: Path) -> Outcome:
    """The same load through verl's default router and its client that resumes."""
    router = get_router_handle(engines)
    client = FullyAsyncLLMServerClient(trainer_config(model), router)
    asyncio.run(play(client, WARM_UP))  # the engines' first requests are slow
    outcome = asyncio.run(play(client, LOAD))
    ray.kill(router)
    return outcome


def told(name: str, outcome: Outcome, baseline: Outcome) -> None:
    """For a person: both times come with the work done."""
    moves = sum(outcome.moves)
    sys.stdout.write(f"\ndefault router: {baseline}\n{name}: {outcome}, {moves} moves\n")


def assert_same(outcome: Outcome, baseline: Outcome) -> None:
    """Token for token, and each exactly as long as asked."""
    for ours, theirs, request in zip(outcome.outputs, baseline.outputs, LOAD, strict=True):
        assert len(ours.token_ids) == request.max_tokens
        assert ours.token_ids == theirs.token_ids
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-3)


def assert_all_ended_once(status: dict[str, Any], count: int) -> None:
    """By the router's books."""
    books = status["steersman"]
    assert (books["queued"], books["ended"], books["answered"]) == (count, count, count)
    assert books["open_calls"] == 0
    assert books["set_free"] == 0
    assert status["total_inflight"] == 0


def test_moved_trajectories_are_those_of_the_default_router(
    engines: dict[str, Any],
    model: Path,
    tmp_path: Path,
    baseline: Outcome,
    capsys: pytest.CaptureFixture[str],
) -> None:
    router = get_router_handle(engines, router_file(tmp_path))
    client = our_client(model, router)
    asyncio.run(play(client, WARM_UP))
    outcome = asyncio.run(play(client, LOAD))
    status = ray.get(router.get_status.remote())
    ray.kill(router)

    with capsys.disabled():
        told("moved once each", outcome, baseline)
    assert sum(moves > 0 for moves in outcome.moves) >= 50
    assert_same(outcome, baseline)
    for ours, theirs in zip(outcome.outputs, baseline.outputs, strict=True):
        assert ours.stop_reason == theirs.stop_reason
        assert ours.extra_fields.keys() >= theirs.extra_fields.keys()
    assert_all_ended_once(status, len(WARM_UP) + len(LOAD))


def test_the_default_policy_under_the_plain_client_in_turn_with_the_default_router(
    engines: dict[str, Any],
    model: Path,
    tmp_path: Path,
    baseline: Outcome,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stock_router = get_router_handle(engines)
    stock = FullyAsyncLLMServerClient(trainer_config(model), stock_router)
    path = tmp_path / "router.yaml"
    path.write_text(f"router_class: {ROUTER_CLASS}\n")
    router = get_router_handle(engines, str(path))
    ours = our_client(model, router, LLMServerClient)
    asyncio.run(play(ours, WARM_UP))
    for _ in range(ROUNDS):
        theirs = asyncio.run(play(stock, LOAD))
        before_s = ray.get(router.__ray_call__.remote(lambda _: time.process_time()))
        outcome = asyncio.run(play(ours, LOAD))
        cpu_s = ray.get(router.__ray_call__.remote(lambda _: time.process_time())) - before_s
        with capsys.disabled():
            told(f"adaptive ({cpu_s:.1f} s of CPU in the router)", outcome, theirs)
        assert_same(outcome, baseline)
    status = ray.get(router.get_status.remote())
    ray.kill(router)
    ray.kill(stock_router)

    assert_all_ended_once(status, len(WARM_UP) + ROUNDS * len(LOAD))


def test_requests_are_aborted_by_the_ids_they_were_given(
    engines: dict[str, Any], model: Path
) -> None:
    """verl's own method finds no request under a vLLM that adds a suffix to ids."""
    from steersman.controller.sidecar.verl.server import abort_requests, look

    engine = next(iter(engines.values()))
    sampling = {"max_tokens": 900, "temperature": 0.0, "ignore_eos": True}
    running = engine.generate.remote(
        request_id="mine-0", prompt_ids=[5, 6, 7], sampling_params=sampling
    )

    async def aborted() -> Any:
        while not (await engine.__ray_call__.remote(look)).tokens.get("mine-0"):
            await asyncio.sleep(0.01)
        by_verl = await engine.abort_request.remote("mine-0", reset_prefix_cache=False)
        assert by_verl["aborted"] is False
        await abort_requests(engine, ["mine-0", "not there"])
        return await running

    output = asyncio.run(aborted())
    assert output.stop_reason == "aborted"
    assert 0 < len(output.token_ids) < 900


def test_stock_clients_work_through_the_router(
    engines: dict[str, Any], model: Path, tmp_path: Path, baseline: Outcome
) -> None:
    router = get_router_handle(engines, router_file(tmp_path, "name: adaptive"))
    outcome = asyncio.run(play(LLMServerClient(trainer_config(model), router), LOAD))
    status = ray.get(router.get_status.remote())
    ray.kill(router)

    assert_same(outcome, baseline)
    assert status["total_inflight"] == 0
    assert set(status["servers"]) == set(engines)


def test_a_weight_sync_in_the_run_aborts_everything_and_all_go_on(
    engines: dict[str, Any], model: Path, tmp_path: Path, baseline: Outcome
) -> None:
    """As verl's trainers do it: abort all, new weights (here: the same ones), resume."""
    router = get_router_handle(engines, router_file(tmp_path))
    client = our_client(model, router)

    async def synchronised() -> Outcome:
        await play(client, WARM_UP)
        playing = asyncio.create_task(play(client, LOAD))
        for step in (1, 2):
            await asyncio.sleep(1.0)
            aborted = await asyncio.gather(
                *(e.abort_all_requests.remote() for e in engines.values())
            )
            assert sum(one["aborted_count"] for one in aborted) > 0
            for engine in engines.values():
                await engine.set_global_steps.remote(step)
            await asyncio.sleep(0.5)
            assert not playing.done()
            await asyncio.gather(
                *(engine.resume_generation.remote() for engine in engines.values())
            )
        return await playing

    outcome = asyncio.run(synchronised())
    status = ray.get(router.get_status.remote())
    ray.kill(router)

    assert_same(outcome, baseline)
    assert_all_ended_once(status, len(WARM_UP) + len(LOAD))
    assert status["steersman"]["weight_version"] == 2
    spans = [
        o.extra_fields for o in outcome.outputs if len(o.extra_fields["steersman"]["segments"]) > 1
    ]
    mixed = [f for f in spans if f["min_global_steps"] != f["max_global_steps"]]
    assert mixed
    assert {fields["steersman"]["correctness"] for fields in mixed} == {"corrected"}


def test_the_router_dies_in_the_run_and_all_requests_are_answered(
    engines: dict[str, Any], model: Path, tmp_path: Path, baseline: Outcome
) -> None:
    router = get_router_handle(engines, router_file(tmp_path))
    client = our_client(model, router)

    async def orphaned() -> Outcome:
        await play(client, WARM_UP)
        playing = asyncio.create_task(play(client, LOAD))
        await asyncio.sleep(1.0)
        assert not playing.done()
        ray.kill(router)
        return await playing

    outcome = asyncio.run(orphaned())

    assert_same(outcome, baseline)
    steered = [output.extra_fields["steersman"]["steered"] for output in outcome.outputs]
    assert not all(steered)


def test_a_router_with_bad_yaml_says_what_is_wrong_at_the_first_request(
    engines: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    router = get_router_handle(engines, router_file(tmp_path, more="router_lots: raise\n"))
    with pytest.raises(FleetError, match=r"unknown key in the router's YAML: 'router_lots'"):
        asyncio.run(play(our_client(model, router), WARM_UP[:2]))


def test_without_a_router_requests_fail_where_that_is_wanted(
    engines: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    from steersman.controller.sidecar.leases.line import RouterLostError

    router = get_router_handle(engines, router_file(tmp_path, more="router_lost: raise\n"))
    client = our_client(model, router)

    async def orphaned() -> None:
        await play(client, WARM_UP)
        playing = asyncio.create_task(play(client, WARM_UP))
        await asyncio.sleep(0.05)
        ray.kill(router)
        await playing

    with pytest.raises(RouterLostError, match="the router is lost"):
        asyncio.run(orphaned())


def test_an_engine_dies_in_the_run_and_its_trajectories_go_on_elsewhere(
    engines: dict[str, Any], model: Path, tmp_path: Path, baseline: Outcome
) -> None:
    """Last: the engine stays dead."""
    router = get_router_handle(engines, router_file(tmp_path))
    client = our_client(model, router)
    victim = list(engines.values())[-1]

    async def wounded() -> Outcome:
        await play(client, WARM_UP)
        playing = asyncio.create_task(play(client, LOAD))
        await asyncio.sleep(1.0)
        assert not playing.done()
        ray.kill(victim)
        return await playing

    outcome = asyncio.run(wounded())
    status = ray.get(router.get_status.remote())
    ray.kill(router)

    assert_same(outcome, baseline)
    assert_all_ended_once(status, len(WARM_UP) + len(LOAD))
    assert status["steersman"]["attempt_ends"]["lost"] > 0
