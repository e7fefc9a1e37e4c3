"""A fleet's load over one step: slots taken, replicas without work, KV cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steersman.controller.report.html import colour, dash, figure
from steersman.controller.report.summary import Bar
from steersman.controller.report.svg import Panel, Point, spread
from steersman.estimators.observation import Floats

BINS = 240
"""Of a step; about one every two pixels."""


@dataclass(frozen=True)
class Load:
    """Means over bins of equal length.  NaN: not known."""

    edges_s: Floats
    """(bins + 1,) seconds since the step began."""
    taken: Floats
    """(bins,) share of the fleet's slots that hold an attempt, preempted ones included."""
    idle: Floats
    """(bins,) share of the replicas on which nothing runs: the bubble."""
    kv: Floats
    """(bins,) share of the KV cache in use, on the replica that has most in use."""

    @property
    def has_kv(self) -> bool:
        """Whether anything is known of the KV cache (a report that is always 0 tells nothing)."""
        return bool((np.nan_to_num(self.kv) > 0).any())


def load_of(
    bars: Sequence[Bar],
    slots: Mapping[str, int],
    span_s: tuple[float, float],
    kv_usage: Mapping[str, tuple[Floats, Floats]],
) -> Load:
    """Of the interval `span_s`, as far as `bars` are in it.

    `slots` of each replica; `kv_usage` is (times, share of its cache in use from then on).  What a
    replica was given beyond its slots waits inside it.
    """
    start_s, end_s = span_s
    seconds = max(end_s - start_s, 1e-9)
    at_s = np.linspace(0.0, seconds, BINS + 1)
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in slots}
    for bar in bars:
        if (part := bar.clipped(span_s)) is not None and bar.replica in parts:
            parts[bar.replica].append(part)
    taken, idle, kv = np.zeros(BINS), np.zeros(BINS), np.full(BINS, np.nan)
    for name, limit in slots.items():
        time_s, alive = _alive(np.array(parts[name]).reshape(-1, 2))
        taken += bin_means(time_s, np.minimum(alive, limit), at_s)
        idle += bin_means(time_s, (alive == 0).astype(np.float64), at_s)
        if name in kv_usage:
            seen_s, usage = kv_usage[name]
            kv = np.fmax(kv, bin_means(seen_s - start_s, usage, at_s))
    return Load(at_s, taken / max(sum(slots.values()), 1), idle / max(len(slots), 1), kv)


def _alive(part: Floats) -> tuple[Floats, Floats]:
    """Times, and the attempts alive from each until the next; `part` is (attempts, 2)."""
    time_s = np.concatenate(([0.0], part[:, 0], part[:, 1]))
    change = np.concatenate(([0.0], np.ones(len(part)), -np.ones(len(part))))
    order = np.argsort(time_s, kind="stable")
    return time_s[order], np.cumsum(change[order])


def bin_means(time_s: Floats, value: Floats, at_s: Floats) -> Floats:
    """Means between the edges `at_s` of what is `value[i]` from `time_s[i]` until the next."""
    if not len(time_s):
        return np.full(len(at_s) - 1, np.nan)
    knots = np.append(time_s, max(float(at_s[-1]), float(time_s[-1])))
    area = np.append(0.0, np.cumsum(value * np.diff(knots)))
    means = np.diff(np.interp(at_s, knots, area)) / np.diff(at_s)
    return np.where(at_s[:-1] < time_s[0], np.nan, means)


def load_figures(loads: Sequence[Load | None], step: int, slots: str) -> str:
    """The figures, of one step; the cache's is left out where nothing is known of it.

    `slots` says how many there are.
    """
    figures = figure(
        f"Slots taken in step {step}",
        f"Attempts on the whole fleet over its {slots} slots; one that an engine preempted counts. "
        "A long thin tail is what holds a step.",
        slots_taken(loads),
    ) + figure(
        f"Replicas without work in step {step}",
        "The bubble: replicas on which nothing runs while the step goes on.",
        without_work(loads),
    )
    if any(load is not None and load.has_kv for load in loads):
        note = "On the replica whose cache is fullest. At 100 % the engine preempts."
        figures += figure(f"KV cache in step {step}", note, kv_cache(loads))
    return figures


def slots_taken(loads: Sequence[Load | None]) -> str:
    """Utilisation."""
    return _chart(loads, "Slots taken", "share of the slots", lambda load: load.taken)


def without_work(loads: Sequence[Load | None]) -> str:
    """The bubble."""
    return _chart(loads, "Replicas without work", "share of the replicas", lambda load: load.idle)


def kv_cache(loads: Sequence[Load | None]) -> str:
    """The fullest cache."""
    return _chart(loads, "KV cache in use", "share of the cache", lambda load: load.kv)


def _chart(
    loads: Sequence[Load | None], title: str, y_label: str, pick: Callable[[Load], Floats]
) -> str:
    known = [load for load in loads if load is not None]
    panel = Panel(
        (0.0, max((float(load.edges_s[-1]) for load in known), default=1.0)),
        spread([float(y) for load in known for y in pick(load)]),
        title,
        "seconds since the step began",
        y_label,
        y_percent=True,
    )
    for i, load in enumerate(loads):
        if load is not None:
            panel.curve(_stairs(load.edges_s, pick(load)), colour(i), dash(i))
    return panel.svg()


def _stairs(at_s: Floats, value: Floats) -> list[Point]:
    held = np.repeat(value, 2).tolist()
    return list(zip(np.repeat(at_s, 2)[1:-1].tolist(), held, strict=True))
