"""One `generate` call of an agent loop, from its first attempt to its answer.

The router says where (`Grant`); the worker asks that engine itself, under the attempt's id, and
tells how it went; and so on until the router says that it is over.  An aborted request goes on at
once where the next order says, with the prompt and the kept tokens and what is left of the budget.
An order that comes while an engine still owes its answer overrides it: that engine was given up.

Without a router, or where it sets a call free, the worker goes on alone.
"""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from steersman.controller.sidecar.leases.line import Call, Line, RouterLostError
from steersman.controller.sidecar.leases.wire import Begin, Done, Free, Gone, Grant, Order, Report
from steersman.controller.sidecar.verl.direct import Direct
from steersman.controller.sidecar.verl.partial import Partial
from steersman.estimators.errors import FleetError
from steersman.estimators.lifecycle import Disposition
from steersman.mechanisms.fleet import EndReason

ABORTED = frozenset({"aborted", "abort"})
"""verl's words for a request that was cut off."""
REST_S = 0.25
"""Alone, before asking an engine again that aborted a request: the trainer holds it."""
UNLIMITED = 1 << 30
"""Tokens, where neither the call nor the configuration says how many: the router knows the
engines' limit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the agent loop wants."""

    session: str
    prompt_ids: list[int]
    sampling: Mapping[str, Any]
    limit_key: str
    """max_tokens, or max_new_tokens where the caller says it so."""
    budget: int | None
    """Tokens over all attempts; None: the engine's own limit."""
    resumes: bool
    """Whether an abort of the trainer's is not the end."""
    passed: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the engine as it is."""

    def begin(self, call: int) -> Begin:
        """As the router is told."""
        digest = hashlib.blake2b(array("q", self.prompt_ids).tobytes(), digest_size=12)
        return Begin(
            call,
            session=self.session,
            prompt=digest.hexdigest(),
            prompt_tokens=len(self.prompt_ids),
            max_tokens=UNLIMITED if self.budget is None else self.budget,
            resumes=self.resumes,
        )


@dataclass(eq=False)
class Generation:
    """Carries one out."""

    asked: Asked
    line: Line
    direct: Direct
    make: Callable[..., Any]
    """verl's `TokenOutput`."""
    partial: Partial = field(init=False)
    _failure: Exception | None = None
    """The last an engine raised."""

    def __post_init__(self) -> None:
        self.partial = Partial(len(self.asked.prompt_ids))

    async def run(self) -> tuple[Partial, dict[str, Any]]:
        """What was written, and how it came about.  Raises what the engine raised last, if none
        could do it."""
        call = self.line.open()
        self.line.tell(self.asked.begin(call.number))
        over = False
        try:
            done = await self._steered(call)
            over = True
            return self.partial, done
        except RouterLostError as error:
            if self.line.router_lost == "raise":
                raise
            return self.partial, await self._alone(str(error))
        finally:
            if not over:
                self.line.tell(Gone(call.number))
            self.line.close(call)

    # With the router

    async def _steered(self, call: Call) -> dict[str, Any]:
        order = await call.next()
        while True:
            if isinstance(order, Grant):
                self.partial.keep(order.kept)
                request = self._request(order.replica, order.attempt_id)
                order = await self._carry_out(call, order, request)
            elif isinstance(order, Done):
                return self._done(order)
            else:
                return await self._alone(order.why)

    def _request(self, server: str, attempt_id: str) -> "asyncio.Future[Any]":
        asked, partial = self.asked, self.partial
        sampling = dict(asked.sampling)
        if asked.budget is not None:
            sampling[asked.limit_key] = asked.budget - len(partial)
        reference = self.line.servers[server].generate.remote(
            request_id=attempt_id,
            prompt_ids=asked.prompt_ids + partial.token_ids,
            sampling_params=sampling,
            **asked.passed,
        )
        request: asyncio.Future[Any] = asyncio.ensure_future(reference)
        return request

    async def _carry_out(self, call: Call, grant: Grant, request: "asyncio.Future[Any]") -> Order:
        """The order after this attempt; what the attempt wrote is taken in."""
        coming = asyncio.ensure_future(call.next())
        try:
            await asyncio.wait({request, coming}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                self.line.tell(self._reported(call, grant, request))
            elif coming.exception() is not None or isinstance(coming.result(), Free):
                # the engine knows nothing of it: its answer is still good
                await asyncio.wait({request})
                if self._reported(call, grant, request).replica_lost:
                    self.direct.lose(grant.replica)
            return await coming
        finally:
            coming.cancel()
            request.cancel()

    def _reported(self, call: Call, grant: Grant, request: "asyncio.Future[Any]") -> Report:
        error = request.exception()
        if error is not None:
            self._failure = error if isinstance(error, Exception) else None
            reason, gone = reason_of(error)
            return Report(
                call.number, grant.attempt_id, reason, detail=_line(error), replica_lost=gone
            )
        output = request.result()
        self._take(output)
        steps = output.extra_fields.get("global_steps")
        return Report(
            call.number,
            grant.attempt_id,
            self._reason(output.stop_reason),
            tokens=len(output.token_ids),
            weight_version=None if steps is None else int(steps),
        )

    def _take(self, output: Any) -> None:
        self.partial.add(output)

    def _reason(self, stop_reason: str | None) -> EndReason:
        budget = self.asked.budget
        if budget is not None and len(self.partial) >= budget:
            return EndReason.LENGTH
        return EndReason.ABORT if stop_reason in ABORTED else EndReason.STOP

    def _done(self, done: Done) -> dict[str, Any]:
        if done.disposition == Disposition.FAILED:
            if self._failure is not None:
                raise self._failure
            raise FleetError(f"no engine could generate it: {done.detail}")
        self.partial.keep(done.kept)
        if done.disposition == Disposition.TRUNCATED:
            self.partial.stop_reason = "length"
        return {"steered": True, **done.info}

    # Alone

    async def _alone(self, why: str) -> dict[str, Any]:
        asked, direct, servers = self.asked, self.direct, self.line.servers
        attempts = 0
        while self._unfinished():
            server = direct.take(asked.session, servers)
            if server is None:
                raise FleetError(f"{why}, and no engine is known that lives")
            attempts += 1
            try:
                self._take(await self._request(server, uuid4().hex))
            except Exception as error:
                if not reason_of(error)[1]:
                    raise
                direct.lose(server)
                continue
            finally:
                direct.leave(server)
            if self.partial.stop_reason in ABORTED:
                direct.forget(asked.session)
                await asyncio.sleep(REST_S)
        return {"steered": False, "why": why, "attempts": attempts}

    def _unfinished(self) -> bool:
        partial, budget = self.partial, self.asked.budget
        if budget is not None and len(partial) >= budget:
            partial.stop_reason = "length"
            return False
        if not partial.parts:
            return True
        return partial.stop_reason in ABORTED and self.asked.resumes


def reason_of(error: BaseException) -> tuple[EndReason, bool]:
    """What an engine's exception means, and whether the engine is gone for good.

    By names, since Ray need not be there: an actor that died, one that cannot be reached now, a
    request that vLLM or verl refuses as it is, or anything else.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ActorDiedError" in names:
        return EndReason.LOST, True
    if names & {"RayActorError", "ActorUnavailableError", "RaySystemError"}:
        return EndReason.LOST, False
    if isinstance(error, ValueError | TypeError | AssertionError):
        return EndReason.REFUSED, False
    return EndReason.ERROR, False


def budget_of(
    sampling: Mapping[str, Any], prompt_tokens: int, rollout: Any, resumable: bool
) -> tuple[str, int | None]:
    """The key of the token limit, and the limit over all attempts.

    Where the caller says nothing, the limit is what verl would use: its resumable client the
    configured response length, its plain one (through the engine) what is left of prompt and
    response together, which in a later turn is less.
    """
    for key in ("max_tokens", "max_new_tokens"):
        if key in sampling:
            return key, sampling[key]
    response = getattr(rollout, "response_length", None)
    if not isinstance(response, int) or response <= 0:
        return "max_tokens", None
    prompt = getattr(rollout, "prompt_length", None)
    if resumable or not isinstance(prompt, int):
        return "max_tokens", response
    return "max_tokens", max(min(response, prompt + response - prompt_tokens), 1)


def _line(error: BaseException) -> str:
    lines: Sequence[str] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"
