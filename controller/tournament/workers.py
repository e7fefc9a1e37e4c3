"""Games in worker processes: outcomes as they come, an interrupt at once, steps counted."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.sharedctypes import Synchronized
from typing import TypeVar

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

WAKE_S = 0.5
"""Until the waiting process looks at the count of steps, and whether it was interrupted."""
_counted: "Synchronized[int] | None" = None
"""In a worker: the steps that all of them have done."""


def outcomes(
    play: Callable[[Task], Outcome],
    tasks: Sequence[Task],
    workers: int,
    on_steps: Callable[[int], object] = lambda steps: None,
) -> Generator[Outcome, None, None]:
    """Of `play`, in the order they end; `on_steps` is told, now and then, how many steps the
    workers have counted (`count_step`)."""
    # spawn: a forked child would inherit threads of numerical libraries in an unknown state
    context = multiprocessing.get_context("spawn")
    counted = context.Value("q", 0)
    with ExitStack() as stack:
        with _deaf():
            size = min(workers, max(len(tasks), 1))
            pool = stack.enter_context(context.Pool(size, _begin, (counted,)))
        coming, left = pool.imap_unordered(play, tasks), len(tasks)
        while left:
            try:
                outcome = coming.next(timeout=WAKE_S)
            except multiprocessing.TimeoutError:
                on_steps(counted.value)
                continue
            left -= 1
            on_steps(counted.value)
            yield outcome


def count_step() -> None:
    """One more, in a worker."""
    if _counted is not None:
        with _counted.get_lock():
            _counted.value += 1


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes and threads that are begun in here never get an interrupt, not even before they
    could say so; this one gets it afterwards.

    The mask is inherited.  The handler is for threads of libraries, which do not have the mask.
    """
    came = list[int]()
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _begin(counted: "Synchronized[int]") -> None:
    """One thread, as there is one worker per core."""
    global _counted
    _counted = counted
    os.environ["OMP_NUM_THREADS"] = "1"
