"""Requests to the gateway or to the engines, for one event loop.

    async with Client(endpoints) as client:
        answer = await client.complete(body, {"prompt": "p7", "group": "12"})
        await client.everyone("POST", "/pause", params={"mode": "keep"})

A request that fails for a reason that may pass is repeated, within its time: at the gateway while
that is alive, else as `Endpoints` says.  Its `Idempotency-Key` lets the gateway answer a repetition
with the answer it has.  A refusal (4xx) is final: asking again would be refused again.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from steersman.controller.sidecar.trl.endpoints import Endpoints, GatewayLostError
from steersman.controller.sidecar.trl.wire import (
    BusyError,
    RefusedError,
    Reply,
    UnreachableError,
    Wire,
)
from steersman.estimators.errors import FleetError, InvalidInputError

__all__ = ["Client", "RefusedError", "Reply", "run"]

COMPLETIONS = "/v1/completions"
HEALTH_S = 5.0
"""For an answer to `/health`: a process that lives gives one in milliseconds."""
WATCH_S = 5.0
"""Between two looks at the health of a gateway that has not answered yet."""
PAUSE_S = 0.5
"""Between two attempts."""
LOOKS = 2
"""That a gateway fails before it counts as lost: one may fall into a restart."""
MAX_FAILURES = 5
"""Attempts of one request at a gateway that lives: 502 says that no engine could answer it."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Client:
    """Use as an async context manager."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self._verifying = asyncio.Lock()
        self._gone = asyncio.Event()
        """Set whenever the gateway is found to answer nothing, to end what waits for it."""
        self._waiting = 0
        """Requests at the gateway."""
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._wire = Wire(self.endpoints)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._wire.close()

    # Samples

    async def complete(self, body: Mapping[str, Any], told: Mapping[str, Any]) -> Reply:
        """Samples for one prompt; `told` tells the gateway whose they are.

        Raises `RefusedError` (they will never be had), `GatewayLostError`, or `FleetError`.
        """
        key = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            async with asyncio.timeout(self.endpoints.request_timeout_s):
                return await self._complete(body, told, key)
        except TimeoutError:
            limit_s = self.endpoints.request_timeout_s
            raise FleetError(f"no samples within {limit_s:g} s (request_timeout_s)") from None

    async def _complete(
        self, body: Mapping[str, Any], told: Mapping[str, Any], key: Mapping[str, str]
    ) -> Reply:
        failures = 0
        while True:
            if not await self._is_direct():
                url, steered = self.endpoints.gateway, {**body, "steersman": {**told, "info": True}}
                try:
                    return await self._watched(
                        self._wire.ask("POST", url, COMPLETIONS, json=steered, headers=key)
                    )
                except BusyError as busy:
                    await asyncio.sleep(max(busy.wait_s, PAUSE_S))
                except UnreachableError as error:
                    failures += await self._answers(str(error))
                    if failures >= MAX_FAILURES:
                        raise FleetError(f"{url} failed {failures} times: {error}") from None
                    await asyncio.sleep(PAUSE_S)
            else:
                return await self._at_an_engine(body)

    async def _at_an_engine(self, body: Mapping[str, Any]) -> Reply:
        """At any of them; `FleetError` if none can be used for `patience_s`."""
        endpoints, loop = self.endpoints, asyncio.get_running_loop()
        give_up_s, why = loop.time() + endpoints.patience_s, "none holds the newest weights"
        while True:
            engine = endpoints.acquire()
            if engine is None:
                if loop.time() >= give_up_s:
                    raise FleetError(f"no engine can be used: {why}")
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                return await self._wire.ask("POST", engine, COMPLETIONS, json=body)
            except BusyError as busy:
                await asyncio.sleep(max(busy.wait_s, PAUSE_S))
            except UnreachableError as error:
                why = str(error)
                endpoints.failed(engine)
            finally:
                endpoints.release(engine)

    async def tell_rewards(self, rewards: Sequence[tuple[int, float]]) -> None:
        """Tell the gateway what trajectories earned; it steers better for it, and lives without."""
        if self.endpoints.direct or not rewards:
            return
        told = [{"trajectory_id": i, "reward": reward} for i, reward in rewards]
        try:
            async with asyncio.timeout(HEALTH_S):
                await self._wire.ask(
                    "POST", self.endpoints.gateway, "/steersman/rewards", json={"rewards": told}
                )
        except (UnreachableError, InvalidInputError, TimeoutError) as error:
            log.info("the gateway was not told rewards: %s", error)

    # Control

    async def everyone(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> list[Reply]:
        """A call to all engines: through the gateway one answer for all, else one of each that can
        be reached.

        Raises as `complete` does; `FleetError` also if no engine could be reached.
        """
        endpoints = self.endpoints
        for _ in range(MAX_FAILURES):
            if await self._is_direct():
                break
            try:
                async with asyncio.timeout(endpoints.control_timeout_s):
                    call = self._wire.ask(method, endpoints.gateway, path, json=body, params=params)
                    return [await self._watched(call)]
            except (UnreachableError, TimeoutError) as error:
                failure = str(error) or f"no answer within {endpoints.control_timeout_s:g} s"
                if await self._answers(failure):
                    await asyncio.sleep(PAUSE_S)
        else:
            raise FleetError(f"{endpoints.gateway}{path} failed {MAX_FAILURES} times: {failure}")
        return await self._each_engine(method, path, body, params)

    async def _each_engine(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
    ) -> list[Reply]:
        async def one(engine: str) -> Reply | str:
            try:
                async with asyncio.timeout(self.endpoints.control_timeout_s):
                    return await self._wire.ask(method, engine, path, json=body, params=params)
            except (UnreachableError, TimeoutError) as error:
                return str(error) or f"{engine} did not answer in time"

        answers = await asyncio.gather(*(one(engine) for engine in self.endpoints.engines))
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        for failure in answers:
            if isinstance(failure, str):
                log.warning("%s: %s", path, failure)
        if not replies:
            raise FleetError(f"no engine can be reached for {path}: {answers[0]}")
        return replies

    async def model_name(self) -> str:
        """The model's name, as the engines serve it."""
        (reply, *_) = await self.everyone("GET", "/v1/models")
        try:
            return str(reply.body["data"][0]["id"])
        except (LookupError, TypeError):
            raise FleetError(f"{reply.at} names no model at /v1/models") from None

    async def prompt_logprobs(self, model: str, tokens: Sequence[int]) -> dict[str, list[float]]:
        """What each engine that can be asked by itself says of the tokens after the first."""
        body = {"model": model, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0}

        async def one(engine: str) -> list[float] | None:
            try:
                async with asyncio.timeout(self.endpoints.control_timeout_s):
                    told = (await self._wire.ask("POST", engine, COMPLETIONS, json=body)).body
            except (UnreachableError, TimeoutError) as error:
                log.warning("%s does not show its weights: %s", engine, error)
                return None
            places = told["choices"][0]["prompt_logprobs"][1:]
            pairs = zip(places, tokens[1:], strict=True)
            return [float(place[str(token)]["logprob"]) for place, token in pairs]

        engines = self.endpoints.current_engines
        answers = await asyncio.gather(*(one(engine) for engine in engines))
        return {
            engine: answer
            for engine, answer in zip(engines, answers, strict=True)
            if answer is not None
        }

    # Whether the gateway is there

    async def _is_direct(self) -> bool:
        """Whether to ask the engines; looks for a lost gateway when that is due."""
        endpoints = self.endpoints
        if not endpoints.direct:
            return False
        if endpoints.looks_due() and await self._healthy():
            version = endpoints.weight_version
            if version is not None:  # one that was restarted does not know it
                told = {"new_version": str(version)}
                try:
                    async with asyncio.timeout(HEALTH_S):
                        await self._wire.ask(
                            "POST", endpoints.gateway, "/update_weight_version", json=told
                        )
                except (UnreachableError, InvalidInputError, TimeoutError):
                    return True
            self._gone.clear()
            endpoints.found()
        return endpoints.direct

    async def _answers(self, why: str) -> bool:
        """After a failure at the gateway: true if it lives all the same.

        False: it is lost, and the engines are to be asked.  Raises `GatewayLostError` where the run
        shall end then.
        """
        endpoints, loop = self.endpoints, asyncio.get_running_loop()
        async with self._verifying:  # the requests that fail together look once
            if endpoints.direct:
                return False
            give_up_s, looks = loop.time() + endpoints.patience_s, 0
            while not await self._healthy():
                looks += 1
                if endpoints.on_loss == "plain" and looks >= LOOKS:
                    endpoints.lose(why)
                    return False
                if endpoints.on_loss == "stop" and loop.time() >= give_up_s:
                    raise GatewayLostError(
                        f"the gateway at {endpoints.gateway} is lost for {endpoints.patience_s:g} "
                        f's ({why}), and on_loss="stop" ends the run; valid to go on without it: '
                        'on_loss="plain" with the engines\' URLs'
                    )
                await asyncio.sleep(PAUSE_S)
            self._gone.clear()
        return True

    async def _healthy(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_S):
                await self._wire.ask("GET", self.endpoints.gateway, "/health")
        except (UnreachableError, TimeoutError, RefusedError):
            return False
        return True

    async def _watched(self, call: Coroutine[Any, Any, Reply]) -> Reply:
        """A call to the gateway; given up once its health is gone."""
        self._waiting += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_looking())
        asking = asyncio.create_task(call)
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise UnreachableError("it answers nothing, not even /health")
        finally:
            self._waiting -= 1
            for task in (asking, gone):
                task.cancel()
            await asyncio.gather(asking, gone, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if self._waiting and not self._gone.is_set() and not await self._healthy():
                self._gone.set()


def run(endpoints: Endpoints, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do `work(client)` from code that is not asynchronous, even where a loop runs around it."""

    async def whole() -> T:
        async with Client(endpoints) as client:
            return await work(client)

    with ThreadPoolExecutor(1, "steersman-call") as thread:
        return thread.submit(asyncio.run, whole()).result()
