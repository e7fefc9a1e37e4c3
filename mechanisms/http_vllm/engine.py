"""One engine as it is seen from here: what runs there for us, what it says, whether it lives.

A watcher looks at its metrics, which tells that it lives, and ends its life here when it refuses
connections, says it is ill, or stalls: no event on any request, counters that stand still, and no
pause.  One broken connection is no death: then its health is asked for.  The requests of a dead
engine end as lost with what they have; the engine is looked for until it is back.
"""

import asyncio
import errno
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from steersman.estimators.errors import FleetError
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptEnd,
    EndReason,
    ReplicaInfo,
    ReplicaStats,
)
from steersman.mechanisms.http_vllm.aborts import Aborts
from steersman.mechanisms.http_vllm.ask import Abilities, Answer, Ask
from steersman.mechanisms.http_vllm.errand import Errand
from steersman.mechanisms.http_vllm.place import Place
from steersman.mechanisms.http_vllm.probe import FIRST_TOKEN_S, Found, probe
from steersman.mechanisms.http_vllm.scrape import Counters, read_page
from steersman.mechanisms.http_vllm.settings import HttpSettings
from steersman.mechanisms.http_vllm.wire import LOOK_S, Wire

log = logging.getLogger(__name__)

HEALTH_S = 2.0
"""For an engine to say that it is well; a busy server that takes longer is not called dead."""

TRIES, BETWEEN_TRIES_S = 2, 0.05
"""A server in the middle of something may drop one connection."""
_GONE = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.EHOSTUNREACH}
"""Other errors of a connection (no file is left, no name is found) may be our own."""


class Engine:
    """See the module's docstring.  `found` None: it has not answered yet."""

    def __init__(
        self,
        name: str,
        url: str,
        wire: Wire,
        settings: HttpSettings,
        found: Found | None,
        like: Found,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.url = url
        self.alive = found is not None
        self.paused = False
        self.weight_version = 0
        self.stale = False
        """It came back without weights that the others were given meanwhile."""
        self.models: list[dict[str, Any]] = []
        self.abilities = Abilities()
        self.info = ReplicaInfo(name=name)
        self._names = like.names
        self._base = URL(url)
        self._wire, self._settings, self._changed, self._clock = wire, settings, changed, clock
        self._counters = Counters()
        self._errands: dict[Attempt, Errand] = {}
        self._place: Place | None = None
        self._stats: tuple[tuple[int, tuple[int, int, int]], ReplicaStats] | None = None
        self._aborts = Aborts(wire)
        self._checking: asyncio.Task[bool] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._heard_s = self._looked_s = clock()
        self._quiet_s = 0.0
        self._stalled = self._missed = False
        self._expected: int | None = None
        """Version that all engines were last given; None: none was since this was attached."""
        self._away = ""
        self._born_s = 0.0
        self._accept(like if found is None else found)

    async def begin(self) -> None:
        """Take the first look, and go on looking."""
        if self.alive:
            await self._look()
        self._watcher = asyncio.create_task(self._watch(), name=f"steersman-{self.info.name}")

    @property
    def gauges(self) -> dict[str, float]:
        """Its metrics at the last look, by name without `vllm:` and `_total`."""
        return self._counters.page.values

    def stats(self) -> ReplicaStats:
        """The last look, with what was sent there and ended since.

        Kept until something changes: each arrival asks all engines.
        """
        counters = self._counters
        told = len(self._errands), self.info.max_num_seqs, self.weight_version
        if self._stats is None or self._stats[0] != (counters.looks, told):
            self._stats = (counters.looks, told), counters.stats(*told)
        return self._stats[1]

    # Requests

    def start(self, attempt: Attempt, ask: Ask) -> None:
        """Carry it out."""
        if not self.alive:
            attempt.finish(AttemptEnd(EndReason.LOST, [], [], [], f"{self.info.name} is dead"))
            return
        if not self._errands:
            self._heard()
        errand = self._errands[attempt] = Errand(attempt, ask, self._place_now())
        errand.begin()

    def abort(self, attempt: Attempt) -> None:
        """By the engine, which then tells the last tokens; or by closing the connection."""
        errand = self._errands.get(attempt)
        if errand is None or errand.aborted:
            return
        errand.aborted = True
        if not errand.abort_id or not self.abilities.abort_path:
            errand.stop()
            return
        self._aborts.send(self._at(self.abilities.abort_path), errand)

    def lose(self, why: str, *, stalled: bool = False) -> None:
        """It is dead to us: end what runs there as lost."""
        if not self.alive:
            return
        self.alive, self._stalled = False, stalled
        log.warning("engine %s (%s) is lost: %s", self.info.name, self.url, why)
        self._counters.forget()
        for errand in list(self._errands.values()):
            errand.lost = why
            errand.stop()
        self._changed()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        params: Mapping[str, str] | Sequence[tuple[str, str]],
    ) -> Answer:
        """Its answer to a request of the control plane, which may take as long as it likes."""
        url = self._at(path).with_query(params)
        try:
            return await self._wire.call(method, url, body, headers, timeout_s=None)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self.is_well()
            raise FleetError(
                f"engine {self.info.name!r} does not answer {path}: {error}"
            ) from error

    async def is_well(self) -> bool:
        """Whether it lives, after a sign that it may not; callers share one look."""
        if not self.alive:
            return False
        if self._checking is None:
            self._checking = asyncio.create_task(self._check())
            self._checking.add_done_callback(self._checked)
        return await asyncio.shield(self._checking)

    async def close(self, why: str) -> None:
        """Stop looking, and end what runs."""
        tasks: list[asyncio.Task[Any]] = [*self._aborts.tasks]
        if self._watcher is not None:
            tasks.append(self._watcher)
        if self._checking is not None:
            tasks.append(self._checking)
        for task in tasks:
            task.cancel()
        for errand in list(self._errands.values()):
            errand.lost = why
            errand.stop()
            if errand.task is not None:
                tasks.append(errand.task)
        self.alive = False
        await asyncio.gather(*tasks, return_exceptions=True)

    def given(self, weight_version: int) -> None:
        """It has these weights."""
        was_stale, self.weight_version = self.stale, weight_version
        self.stale = self._missed = False
        if was_stale:
            self._changed()

    def expect(self, weight_version: int) -> None:
        """All engines that live have these weights now."""
        self._expected = weight_version
        if self.alive:
            self.given(weight_version)
        else:
            self._missed = True

    def pause(self, paused: bool) -> None:
        """A paused engine does not stall."""
        self.paused = paused
        self._heard()

    # Inside

    def _place_now(self) -> Place:
        """Where errands go, until its abilities change."""
        if self._place is None or self._place.abilities is not self.abilities:
            self._place = Place(
                self._wire,
                self._base,
                self.abilities,
                self.is_well,
                self._heard,
                lambda: self.weight_version,
                self._usage_told,
                self._ended,
            )
        return self._place

    def _at(self, path: str) -> URL:
        return self._base.with_path(self._base.path.rstrip("/") + path)

    def _heard(self, weight_version: int | None = None) -> None:
        self._heard_s = self._clock()
        if weight_version is not None:
            self.weight_version = weight_version

    def _usage_told(self, event: dict[str, Any]) -> None:
        """If it is but counts, it need not be waited for with further answers."""
        if not (self.abilities.tells_usage and self.abilities.steady_usage):
            return
        usage, page = event.get("usage"), self.gauges
        if not isinstance(usage, dict) or any(name.startswith("spec_decode") for name in page):
            return
        if usage.get("prompt_tokens_details") is None and event.get("metrics") is None:
            self.abilities = replace(self.abilities, tells_usage=False)

    def _ended(self, attempt: Attempt) -> None:
        self._errands.pop(attempt, None)
        self._changed()

    async def _check(self) -> bool:
        for number in range(TRIES):
            if number:
                await asyncio.sleep(BETWEEN_TRIES_S)
            try:
                answer = await self._wire.call("GET", self._base / "health", timeout_s=HEALTH_S)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if not _is_gone(error):
                    return self.alive
                why = f"it takes no connection ({error})"
            else:
                if answer.status == 200:
                    return self.alive
                why = f"its health check answers {answer.status}"
        self.lose(why)
        return self.alive

    def _checked(self, check: "asyncio.Task[bool]") -> None:
        self._checking = None
        if not check.cancelled() and (error := check.exception()) is not None:
            log.error("checking engine %s failed", self.info.name, exc_info=error)

    async def _watch(self) -> None:
        """Look again and again, whatever a look brings; not at all engines at once."""
        await asyncio.sleep(random.uniform(0, self._settings.scrape_s))
        while True:
            await asyncio.sleep(self._settings.scrape_s if self.alive else self._settings.revive_s)
            try:
                await (self._look() if self.alive else self._revive())
            except Exception:
                log.exception("watching engine %s failed", self.info.name)

    async def _look(self) -> None:
        """Scrape it, and judge whether it stalls."""
        before_s, answered = self._counters.moved_s, True
        try:
            text = await self._wire.look(self._base / "metrics", min(LOOK_S, self._patience_s))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if _is_gone(error):
                await self.is_well()
                return
            answered, text = False, None
        now_s = self._clock()
        if text is not None:
            page = read_page(text)
            self._counters.take(page, len(self._errands), now_s, paused=self.paused)
            self._born_s = page.born_s
            if page.kv_capacity_tokens != self.info.kv_capacity_tokens:
                self._set_info(kv_capacity_tokens=page.kv_capacity_tokens)
        elif answered:
            await self.is_well()  # no metrics: then its health must do
        moved = self._counters.moved_s > before_s or self._heard_s >= self._looked_s
        idle = answered and (not self._errands or text is None)
        await self._judge(now_s, moved or idle or self.paused)

    async def _judge(self, now_s: float, moves: bool) -> None:
        """A time in which we ourselves slept counts as no more than one look."""
        step_s = min(now_s - self._looked_s, LOOK_S + 2 * self._settings.scrape_s)
        self._looked_s = now_s
        self._quiet_s = 0.0 if moves else self._quiet_s + step_s
        if self._quiet_s > self._settings.stall_timeout_s and self.alive:
            if await self._says_paused():
                self._quiet_s = 0.0
            else:
                self.lose(f"it has done nothing for {self._quiet_s:.0f} s", stalled=True)

    @property
    def _patience_s(self) -> float:
        """A look must not outlast the time after which an engine counts as stalled."""
        return max(self._settings.stall_timeout_s / 4, 0.05)

    async def _says_paused(self) -> bool:
        """Somebody else may have paused it."""
        if not self.abilities.developer:
            return False
        try:
            answer = await self._wire.call("GET", self._base / "is_paused", timeout_s=HEALTH_S)
            return bool(msgspec.json.decode(answer.body)["is_paused"])
        except (
            aiohttp.ClientError,
            OSError,
            TimeoutError,
            msgspec.DecodeError,
            KeyError,
            TypeError,
        ):
            return False

    async def _revive(self) -> None:
        """Take it back once it answers; after a stall, once it writes."""
        try:
            found = await probe(self._wire, self._base)
        except FleetError:
            return
        if found.names != self._names:
            self._stays_away(f"serves {', '.join(found.names)}, not {', '.join(self._names)}")
            return
        if self._stalled and not await self._writes():
            return
        born_s = self._born_s
        await self._look()
        self._accept(found)
        born_anew = self._born_s != born_s or not born_s
        if found.weight_version is None and born_anew:
            self.weight_version = 0  # a new process has the weights it was started with
        self._judge_weights(found.weight_version, born_anew)
        self.alive, self._stalled, self._quiet_s, self._away = True, False, 0.0, ""
        self._heard_s = self._looked_s = self._clock()
        log.warning("engine %s (%s) is back", self.info.name, self.url)
        self._changed()

    def _stays_away(self, why: str) -> None:
        """Said once."""
        if why != self._away:
            log.warning("engine %s (%s) stays away: it %s", self.info.name, self.url, why)
        self._away = why

    def _judge_weights(self, told: int | None, born_anew: bool) -> None:
        expected = self._expected
        if expected is None or not (self._missed or born_anew):
            return
        if told is not None and told >= expected:
            return
        self.stale = True
        log.warning(
            "engine %s came back without weight version %d: nothing is placed there until it is "
            "given weights, or says with /update_weight_version that it has them",
            self.info.name,
            expected,
        )

    async def _writes(self) -> bool:
        body = {"model": self.abilities.model, "prompt": [1], "max_tokens": 1}
        try:
            answer = await self._wire.call(
                "POST",
                self._base / "v1/completions",
                msgspec.json.encode(body),
                {"Content-Type": "application/json"},
                timeout_s=FIRST_TOKEN_S,
            )
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return answer.status == 200

    def _accept(self, found: Found) -> None:
        self.abilities, self.models = found.abilities, found.models
        if found.weight_version is not None:
            self.weight_version = found.weight_version
        known = {"max_num_seqs": found.max_num_seqs, "max_model_len": found.abilities.max_model_len}
        told: dict[str, Any] = {name: value for name, value in known.items() if value}
        self._set_info(**told, **({"dtype": found.dtype} if found.dtype else {}))

    def _set_info(self, **told: Any) -> None:
        self.info = msgspec.structs.replace(self.info, **told)


def _is_gone(error: BaseException) -> bool:
    """Whether nothing takes connections there; not where it is only slow."""
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return error.errno in _GONE
    return isinstance(error, aiohttp.ServerDisconnectedError)
