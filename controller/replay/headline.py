"""The figures that a replay is read by, as text: the same in a terminal and on a page."""

from collections.abc import Callable, Iterator, Sequence

from steersman.controller.replay.summary import Interval, PolicySummary


def _range(interval: Interval) -> str:
    if interval.low == interval.high:  # the baseline itself, or a single sample: nothing to draw
        return f"{interval.value:.3f}"
    return f"{interval.value:.3f} ({interval.low:.3f}-{interval.high:.3f})"


ROWS: dict[str, Callable[[PolicySummary], str]] = {
    "rollout of all steps": lambda s: f"{s.total_s:.1f} s",
    "over the first policy's (90 %)": lambda s: _range(s.ratio),
    "step, median and 90 %": lambda s: f"{s.makespan_median_s:.2f} s, {s.makespan_p90_s:.2f} s",
    "efficiency, bound over achieved (90 %)": lambda s: _range(s.efficiency),
    "replica time without work": lambda s: f"{s.bubble_share:.1%}",
    "slots taken": lambda s: f"{s.slots_used_share:.1%}",
    "tokens in answers": lambda s: f"{s.tokens:,}",
    "answers finished, at the cap": lambda s: f"{s.finished - s.truncated:,}, {s.truncated:,}",
    "migrated, deferred": lambda s: f"{s.moves:,}, {s.deferred:,}",
    "mean length kept, asked": lambda s: f"{s.mean_length_kept:.0f}, {s.mean_length_asked:.0f}",
    "preemptions": lambda s: f"{s.preemptions:,}",
    "a decision takes": lambda s: f"{s.decide_ms:.1f} ms",
    "load beyond the profile's": lambda s: f"{s.unsupported_share:.1%}",
}
"""The figures of a policy, by what they say, in the order of a table."""

SOMETIMES: dict[str, Callable[[PolicySummary], str]] = {
    "stopped, restarted, expired": lambda s: f"{s.stopped:,}, {s.restarted:,}, {s.expired:,}",
    "tokens thrown away": lambda s: f"{s.discarded_tokens:,}",
}
"""Shown where any of it is not 0."""


def rows_of(summaries: Sequence[PolicySummary]) -> Iterator[tuple[str, list[str]]]:
    """What a table of these policies says, line by line."""
    cut = any(s.stopped or s.restarted or s.expired for s in summaries)
    for label, figure in ({**ROWS, **SOMETIMES} if cut else ROWS).items():
        yield label, [figure(s) for s in summaries]
