"""Router, client and servers of verl's signatures, in one event loop: fast, and without verl."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.fake_fleet import reference
from support.fake_verl import ActorDiedError, FakeServer, Handle, TokenOutput

from steersman.controller.sidecar.leases.line import Line, RouterLostError
from steersman.controller.sidecar.verl.direct import Direct
from steersman.controller.sidecar.verl.generation import Asked, Generation
from steersman.controller.sidecar.verl.router import NO_SERVERS, SteersmanRouter
from steersman.estimators.errors import FleetError

MOVING = {
    "tick_s": 0.01,
    "placement": {"name": "support.moving_policy:Moving"},
    "guard": {"max_moves_per_tick": 64, "move_cooldown_s": 0.0},
}


class Scene:
    """Two servers, a router, and one worker."""

    def __init__(self, servers: int = 2, **yaml: Any) -> None:
        yaml = {"look_every_s": 0.01, "steersman": {"tick_s": 0.01}, **yaml}
        self.servers = {f"10.0.0.{n}:8000": FakeServer() for n in range(servers)}
        self.handles = {name: Handle(server) for name, server in self.servers.items()}
        self.core = SteersmanRouter(dict(self.handles), yaml)
        self.router = Handle(self.core)
        self.line, self.direct = Line(self.router), Direct()

    async def generate(
        self,
        prompt: list[int],
        max_tokens: int | None = 60,
        resumes: bool = True,
        session: str = "",
    ) -> Any:
        asked = Asked(
            session=session or str(prompt),
            prompt_ids=prompt,
            sampling={"temperature": 0.0},
            limit_key="max_tokens",
            budget=max_tokens,
            resumes=resumes,
        )
        partial, info = await Generation(asked, self.line, self.direct, TokenOutput).run()
        output = partial.output(TokenOutput, resumable=True)
        output.extra_fields["steersman"] = info
        return output

    async def books(self) -> dict[str, Any]:
        status: dict[str, Any] = await self.core.get_status()
        return {**status["steersman"], "inflight": status["total_inflight"]}


@asynccontextmanager
async def scene(**yaml: Any) -> AsyncIterator[Scene]:
    one = Scene(**yaml)
    try:
        yield one
    finally:
        await one.core.steersman_close()


def prompts(count: int) -> list[list[int]]:
    return [[3 + n % 40, 5, 7 + n // 40, 11] for n in range(count)]


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.002)


async def answers(one: Scene, count: int, **more: Any) -> list[Any]:
    return list(await asyncio.gather(*(one.generate(prompt, **more) for prompt in prompts(count))))


async def test_every_trajectory_is_answered_rightly_however_often_it_is_moved() -> None:
    async with scene(steersman=MOVING) as one:
        outputs = await answers(one, 40)
        for prompt, output in zip(prompts(40), outputs, strict=True):
            assert output.token_ids == reference(prompt, 60)
            assert len(output.log_probs) == len(output.token_ids)
        assert sum(output.extra_fields["steersman"]["moves"] for output in outputs) >= 10
        books = await one.books()
        assert (books["queued"], books["ended"], books["answered"]) == (40, 40, 40)
        assert (books["open_calls"], books["set_free"], books["inflight"]) == (0, 0, 0)
        ids = [r["request_id"] for server in one.servers.values() for r in server.requests]
        assert len(ids) == len(set(ids))


async def test_a_moved_trajectory_keeps_to_its_budget() -> None:
    async with scene(steersman=MOVING) as one:
        await answers(one, 20)
        for server in one.servers.values():
            for request in server.requests:
                assert request["max_tokens"] + len(request["prompt_ids"]) == 64


async def test_the_trainers_abort_is_gone_through_at_once_after_it_resumes() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 20, max_tokens=400))
        await until(lambda: any(server._states for server in one.servers.values()))
        for server in one.servers.values():
            await server.abort_all_requests()
            await server.set_global_steps(4)
        await until(lambda: one.core._fleet.stats("10.0.0.0:8000").weight_version == 4)
        assert not playing.done()
        for server in one.servers.values():
            await server.resume_generation()
        for prompt, output in zip(prompts(20), await playing, strict=True):
            assert output.token_ids == reference(prompt, 400)
        assert (await one.books())["weight_version"] == 4


async def test_a_client_that_does_not_resume_gets_what_there_was() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 4, max_tokens=400, resumes=False))
        await until(lambda: sum(len(server._states) for server in one.servers.values()) == 4)
        for server in one.servers.values():
            await server.abort_all_requests()
        for prompt, output in zip(prompts(4), await playing, strict=True):
            whole = reference(prompt, 400)
            assert output.token_ids == whole[: len(output.token_ids)]
            if output.stop_reason == "aborted":
                assert output.extra_fields["steersman"]["disposition"] == "stopped"


async def test_requests_go_on_when_the_router_dies() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 20))
        await until(lambda: any(server._states for server in one.servers.values()))
        one.router.kill()
        outputs = await playing
        for prompt, output in zip(prompts(20), outputs, strict=True):
            assert output.token_ids == reference(prompt, 60)
        assert not any(output.extra_fields["steersman"]["steered"] for output in outputs[-5:])


async def test_requests_fail_when_the_router_dies_where_that_is_wanted() -> None:
    async with scene(router_lost="raise") as one:
        playing = asyncio.create_task(answers(one, 4))
        await until(lambda: any(server._states for server in one.servers.values()))
        one.router.kill()
        with pytest.raises(RouterLostError, match="the router is lost: ActorDiedError"):
            await playing


async def test_trajectories_of_a_dead_engine_go_on_elsewhere() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 20, max_tokens=200))
        name, handle = next(iter(one.handles.items()))
        await until(lambda: one.servers[name]._states)
        handle.kill()
        for prompt, output in zip(prompts(20), await playing, strict=True):
            assert output.token_ids == reference(prompt, 200)
        assert (await one.books())["attempt_ends"]["lost"] > 0


async def test_without_any_engine_requests_fail_and_say_why() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 4, max_tokens=300))
        await until(lambda: all(server._states for server in one.servers.values()))
        for handle in one.handles.values():
            handle.kill()
        with pytest.raises((ActorDiedError, FleetError)):
            await playing


async def test_a_request_that_is_wrong_fails_as_the_engine_said() -> None:
    async with scene() as one:
        with pytest.raises(ValueError, match="leaves no room"):
            await one.generate([3] * 600)
        assert (await one.books())["dispositions"] == {"failed": 1}


async def test_an_error_of_one_engine_is_tried_elsewhere() -> None:
    async with scene() as one:
        for server in one.servers.values():
            server.failures.append(RuntimeError("out of memory"))
        prompt = prompts(1)[0]
        assert (await one.generate(prompt)).token_ids == reference(prompt, 60)


async def test_a_caller_that_goes_away_frees_the_engine() -> None:
    async with scene() as one:
        playing = asyncio.create_task(answers(one, 4, max_tokens=400))
        await until(lambda: sum(len(server._states) for server in one.servers.values()) == 4)
        playing.cancel()
        await until(lambda: not any(server._states for server in one.servers.values()))
        await until(lambda: not one.core._desk or not one.core._desk.open_calls)
        assert (await one.books())["dispositions"] == {"abandoned": 4}


async def test_a_worker_that_is_silent_is_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steersman.controller.sidecar.leases.desk.SWEEP_S", 0.01)
    monkeypatch.setattr("steersman.controller.sidecar.leases.line.FETCH_S", 0.05)
    async with scene(term_s=0.2) as one:
        for server in one.servers.values():
            server.seconds_per_token = 0.5
        playing = asyncio.create_task(answers(one, 4, max_tokens=500))
        await until(lambda: sum(len(server._states) for server in one.servers.values()) == 4)
        assert one.line._fetching is not None
        one.line._fetching.cancel()
        await until(lambda: one.core._desk is not None and not one.core._desk.open_calls)
        await until(lambda: not any(server._states for server in one.servers.values()))
        playing.cancel()
        assert (await one.books())["dispositions"] == {"abandoned": 4}


async def test_servers_join_and_leave() -> None:
    async with scene() as one:
        first = next(iter(one.handles))
        await one.core.remove_servers([first])
        await answers(one, 6)
        assert not one.servers[first].requests
        await one.core.add_servers({first: one.handles[first]})
        await answers(one, 20)
        assert one.servers[first].requests


async def test_stock_clients_are_kept_together_by_conversation_and_spread_otherwise() -> None:
    async with scene() as one:
        core = one.core
        assert await core.require_acquire_fields() == []
        assert await core.require_release_fields() == []
        places = [await core.acquire_server(f"t-{n}") for n in range(6)]
        assert sorted(name for name, _ in places) == sorted([*one.handles] * 3)
        assert places[0][1] is one.handles[places[0][0]]
        again, _ = await core.acquire_server("t-0")
        assert again == places[0][0]
        assert await core.get_total_inflight() == 7
        status = await core.get_status()
        assert status["active_servers"] == 2
        for name, _ in [*places, (again, None)]:
            await core.release_server(name, request_id="whatever")
        assert await core.get_total_inflight() == 0
        cleared = await core.clear_sticky_cache()
        assert cleared["cleared_entries"] == 6
        assert set(cleared["server_loads"]) == set(one.handles)


async def test_an_empty_pool_is_told_in_the_words_that_verl_waits_for() -> None:
    async with scene(servers=0) as one:
        with pytest.raises(RuntimeError, match=NO_SERVERS):
            await one.core.acquire_server("t")
        await one.core.add_servers({"a": Handle(FakeServer())})
        assert (await one.core.acquire_server("t"))[0] == "a"
        assert await one.core.get_all_servers() == ["a"]


async def test_trajectories_wait_for_the_first_server() -> None:
    async with scene(servers=0) as one:
        playing = asyncio.create_task(answers(one, 3))
        await until(lambda: one.core._desk is not None and one.core._desk.open_calls == 3)
        await one.core.add_servers({"a": Handle(FakeServer())})
        for prompt, output in zip(prompts(3), await playing, strict=True):
            assert output.token_ids == reference(prompt, 60)


async def test_a_controller_that_fails_leaves_the_fallback_and_loses_nothing() -> None:
    broken = {"tick_s": 0.01, "placement": {"name": "support.broken_policy:Raises"}}
    async with scene(steersman=broken) as one:
        outputs = await answers(one, 80)
        for prompt, output in zip(prompts(80), outputs, strict=True):
            assert output.token_ids == reference(prompt, 60)
        books = await one.books()
        assert books["answered"] == 80


async def test_rewards_reach_the_ledger_and_strangers_do_not_matter() -> None:
    async with scene() as one:
        (output,) = await answers(one, 1)
        number = output.extra_fields["steersman"]["trajectory_id"]
        assert await one.core.steersman_reward([(number, 1.0), (number + 7, 0.0)]) == 1


async def test_the_kill_switch_leaves_the_fallback() -> None:
    async with scene() as one:
        await one.core.steersman_switch_off("a person said so")
        assert len(await answers(one, 10)) == 10
        books = await one.books()
        assert (books["state"], books["why"]) == ("off", "a person said so")
