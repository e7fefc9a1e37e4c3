"""A page as it lives in headless Chromium: what it shows, what it fails at, a picture of it.

Spoken to over Chromium's own debugging protocol, which needs nothing but a websocket.
"""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.browser import NAMES

READY_S = 60.0
"""For a busy machine to start a browser, or a page to come to what is waited for."""


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        """Errors and warnings, on the console or uncaught."""

    async def listen(self) -> None:
        """Read what the browser says until it closes."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(RuntimeError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            elif told["method"] == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", str(details)))
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                if entry["level"] in ("error", "warning"):
                    self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    async def call(self, method: str, **params: Any) -> Any:
        """One command."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        return await answer

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        told = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"]["exception"]["description"])
        return told["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true; what cannot be evaluated, on a page half loaded, is not."""
        tried = f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        async with asyncio.timeout(READY_S):
            while not await self.value(tried):
                await asyncio.sleep(0.05)

    async def open(self, url: str) -> None:
        """Go there; without waiting for anything on it."""
        await self.call("Page.navigate", url=url)

    async def look(self, *, dark: bool, width: int, height: int) -> None:
        """As a reader with this window and theme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[theme])

    async def picture(self, path: Path) -> None:
        """Write what it shows as a PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browser_tab(folder: Path) -> AsyncIterator[Tab]:
    """A new page in a new browser, whose files go to `folder`.  Skips the test without one."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    process = await asyncio.create_subprocess_exec(
        browser, "--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder / 'browser'}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(folder / "browser" / "DevToolsActivePort")
        async with aiohttp.ClientSession() as client:
            socket_url = await _page_url(client, port)
            async with client.ws_connect(socket_url, max_msg_size=0) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        process.terminate()
        await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(READY_S):
        while not (file.exists() and len(lines := file.read_text().splitlines()) == 2):
            await asyncio.sleep(0.05)
    return int(lines[0])


async def _page_url(client: aiohttp.ClientSession, port: int) -> str:
    async with asyncio.timeout(READY_S):
        while True:
            async with client.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)
