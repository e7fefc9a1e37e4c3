"""The story of a trace's decisions as lines for a terminal."""

from collections.abc import Iterator

from steersman.controller.explain.story import Explained, Fate, Story

MOST_REASONS = 15
"""Lines of the table; a policy that writes a sentence of its own each time must not fill pages."""


def summary_lines(story: Story) -> Iterator[str]:
    """Decisions by action and reason, what the guard dropped, and what was weighed."""
    if not story.matching:
        yield "no decisions"
        return
    yield "action      taken  applied  dropped      gain      cost  reason"
    frequent = sorted(story.counts, key=lambda c: -c.taken - c.dropped)[:MOST_REASONS]
    shown = [c for c in story.counts if c in frequent]
    for c in shown:
        yield (
            f"{c.action:<9} {c.taken:>7} {c.applied:>8} {c.dropped:>8} {c.gain_s:>7.1f} s "
            f"{c.cost_s:>7.1f} s  {c.reason} ({c.policy})"
        )
    if len(story.counts) > len(shown):
        yield f"... and {len(story.counts) - len(shown)} other reasons"
    yield "(gain and cost: predicted, summed over what was taken)"
    if story.dropped:
        yield ""
        yield "dropped by the guard:"
        for why, times in story.dropped.items():
            yield f"  {times:>7} x {why}"
    if story.weighed:
        yield ""
        yield "weighed, and how often nothing was predicted to end sooner:"
        for w in story.weighed:
            mean = f"{w.seconds / w.ending:.1f} s" if w.ending else "no end in sight"
            yield f"  {w.name}: {w.least} of {w.ticks} ticks, on average {mean}"


def decision_lines(told: Explained) -> Iterator[str]:
    """One decision, from its reason to its consequences."""
    where = f" {told.source or 'queue'} -> {told.target}" if told.target else ""
    here = f" on {told.source}" if told.source and not told.target else ""
    yield (
        f"{told.t_s:.3f} s  step {told.step}  tick {told.tick}  trajectory {told.trajectory_id}  "
        f"{told.action}{where}{here}"
    )
    yield f"    why        {told.reason or '(no reason given)'} ({told.policy})"
    yield (
        f"    predicted  gain {told.gain_s:.2f} s, cost {told.cost_s:.2f} s; "
        f"propensity {told.propensity:.3g}"
    )
    if told.alternatives:
        yield f"    weighed    {_alternatives(told.alternatives)}"
    if told.stack:
        yield f"    stack      {told.stack}"
    yield f"    became     {_became(told)}"
    yield f"    then       {_then(told.t_s, told.fate)}"


def _alternatives(seconds: dict[str, float | None]) -> str:
    known = {name: value for name, value in seconds.items() if value is not None}
    parts = [f"{name} {known[name]:.1f} s" for name in sorted(known, key=lambda n: known[n])]
    return ", ".join(parts + [f"{name} without end" for name in seconds if name not in known])


def _became(told: Explained) -> str:
    if told.dropped:
        return f"dropped by the guard: {told.dropped}"
    if not told.enforced:
        return f"only recorded ({told.mode})"
    return f"{told.outcome or 'enforced; the trace does not tell its outcome'} ({told.mode})"


def _then(t_s: float, fate: Fate | None) -> str:
    if fate is None:
        return "it had not ended when the trace did"
    line = (
        f"{fate.disposition} at {fate.ended_s:.3f} s ({fate.ended_s - t_s:.3f} s later) with "
        f"{fate.generated_tokens} tokens, {fate.correctness}"
    )
    if fate.weight != 1.0:
        line += f", weight {fate.weight:.3g}"
    return line if fate.replaced_by is None else f"{line}; {fate.replaced_by} took its slot"
