"""Looks at engines by their own metrics alone, for a fleet that nobody steers yet."""

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp

from steersman.controller.watching.looks import EngineLook, Looks
from steersman.controller.watching.observed import Observed
from steersman.estimators.errors import FleetError
from steersman.mechanisms.http_vllm.scrape import read_page
from steersman.mechanisms.http_vllm.settings import clean_urls

PATIENCE_S = 5.0
"""For one page of metrics; an engine that needs longer does not answer."""
Progress = Callable[[float], None]
"""Told of the seconds passed."""


async def observe_engines(
    urls: Sequence[str],
    for_s: float,
    every_s: float,
    stop: asyncio.Event,
    progress: Progress,
    token: str = "",
) -> Observed:
    """Look every `every_s` seconds until `for_s` have passed or `stop` is set.

    Raises `FleetError` if no engine answers the first look as vLLM does.
    """
    cleaned = clean_urls(urls)
    looks = Looks(cleaned)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
        began_s = time.monotonic()
        while True:
            seen_s = time.monotonic() - began_s
            answers = await asyncio.gather(*(_look(client, url) for url in cleaned))
            found = [answer if isinstance(answer, EngineLook) else None for answer in answers]
            if not len(looks) and not any(found):
                raise FleetError(f"no engine can be seen: {answers[0]}")
            looks.add(seen_s, found)
            progress(seen_s)
            if seen_s >= for_s or await stopped_by(stop, began_s + len(looks) * every_s):
                return looks.observed("engines")


async def _look(client: aiohttp.ClientSession, url: str) -> EngineLook | str:
    """What it says of itself, or why it says nothing."""
    try:
        async with client.get(f"{url}/metrics") as answer:
            if answer.status != 200:
                return f"{url}/metrics answers with status {answer.status}"
            page = read_page(await answer.read())
    except TimeoutError:
        return f"{url} does not answer within {PATIENCE_S:g} s"
    except aiohttp.ClientError as error:
        return f"{url}: {error}"
    if "num_requests_running" not in page.values:
        return f"{url}/metrics tells nothing of vLLM"
    return EngineLook(
        running=page["num_requests_running"],
        waiting=page["num_requests_waiting"],
        kv=page["kv_cache_usage_perc"],
        tokens=page["generation_tokens"],
        preemptions=page["num_preemptions"],
    )


async def stopped_by(stop: asyncio.Event, until_s: float) -> bool:
    """Wait until then, or until it is set."""
    try:
        async with asyncio.timeout(max(until_s - time.monotonic(), 0.0)):
            await stop.wait()
    except TimeoutError:
        return False
    return True
