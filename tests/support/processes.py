"""Processes that a test started, and a patient look at what they do."""

import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 0.02
"""Between two looks."""
LISTENING = """
import signal, sys
from steersman.controller.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
"""The command as in the foreground of a terminal: what a shell starts behind it is deaf to
interrupts, and so may be these tests."""


def wait_until(done: Callable[[], bool], patience_s: float) -> bool:
    """False: it did not come to pass."""
    until_s = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > until_s:
            return False
        time.sleep(LOOK_S)
    return True


def processes_of(session: int) -> list[int]:
    """That live, whoever their parent is now."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            told = (folder / "stat").read_text()
        except OSError:  # it has just ended
            continue
        # pid (name) state parent group session ...; the name may hold anything
        state, _, _, own = told.rpartition(")")[2].split()[:4]
        if int(own) == session and state != "Z":
            found.append(int(folder.name))
    return found
