"""What `steersman observe` found, and how it tells it."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from steersman.controller.gateway.why import seconds
from steersman.controller.watching.load import Load, episodes_of
from steersman.controller.watching.record_counts import DROPPED, RECORDED
from steersman.controller.watching.told import DecisionSum
from steersman.estimators.observation import Floats
from steersman.policies.decision import Action


class ObservedEngine(msgspec.Struct, frozen=True):
    """One engine, over the time it was looked at."""

    name: str
    answered: float
    """Share of the looks at which it answered."""
    running: float
    """Mean requests in its batch while anything ran anywhere; so is the next one."""
    waiting: float
    most_inflight: int
    idle: float
    """Share of the busy time in which it had nothing to do."""
    kv_mean: float | None
    kv_most: float | None
    tokens: int
    tokens_per_s: float
    """Over the busy time."""
    best_per_s: float
    """Over the best few seconds."""
    preemptions: int


class Observed(msgspec.Struct, frozen=True):
    """All that was found.  None: it cannot be known from there."""

    source: str
    """engines, gateway or trace."""
    seen_s: float
    busy_s: float
    """In which anything was in flight anywhere."""
    engines: list[ObservedEngine]
    bubble: float
    """Share of the engines' time without work, of the busy time."""
    tails: int
    """Times that four fifths of what had been in flight at once were gone, and nothing new came."""
    tail_mean_s: float | None
    tail_share: float
    """Of the busy time."""
    tokens: int
    fastest_s: float | None
    """Seconds that the same tokens had taken at everybody's best."""
    gain_at_most: float | None
    """Share of the busy time."""
    preemptions: int
    degenerate_share: float | None = None
    groups_rewarded: int = 0
    decider: str = ""
    """Who decides, and by which policy."""
    decisions: list[DecisionSum] = []
    """Since the gateway, or the trace, began."""


def observed_of(
    source: str,
    names: Sequence[str],
    load: Load,
    preemptions: Sequence[int],
    answered: Sequence[float] | None = None,
) -> Observed:
    """From the load; the rest is to be added by who knows it."""
    found = episodes_of(load)
    engines = [
        ObservedEngine(
            name=name,
            answered=1.0 if answered is None else answered[i],
            running=_busy_mean(load, load.running[:, i]),
            waiting=_busy_mean(load, load.waiting[:, i]),
            most_inflight=int((load.running + load.waiting)[:, i].max(initial=0)),
            idle=float(found.idle[i]),
            kv_mean=_known(np.nanmean, load.kv[:, i]),
            kv_most=_known(np.nanmax, load.kv[:, i]),
            tokens=int(found.tokens[i]),
            tokens_per_s=float(found.tokens[i]) / found.busy_s if found.busy_s else 0.0,
            best_per_s=float(found.best_per_s[i]),
            preemptions=preemptions[i],
        )
        for i, name in enumerate(names)
    ]
    return Observed(
        source=source,
        seen_s=found.seen_s,
        busy_s=found.busy_s,
        engines=engines,
        bubble=found.bubble,
        tails=len(found.tails_s),
        tail_mean_s=float(np.mean(found.tails_s)) if found.tails_s else None,
        tail_share=found.tail_share,
        tokens=int(found.tokens.sum()),
        fastest_s=found.fastest_s,
        gain_at_most=found.gain_at_most,
        preemptions=sum(preemptions),
    )


def lines_of(o: Observed) -> Iterator[str]:
    """For a person."""
    many = f"{len(o.engines)} engine{'s' if len(o.engines) != 1 else ''}"
    yield f"{many}, seen for {seconds(o.seen_s)}; something ran in {seconds(o.busy_s)} of that"
    yield ""
    width = max([6, *(len(engine.name) for engine in o.engines)])
    yield (
        f"{'engine':<{width}}  running  waiting   most  KV mean  KV most  tokens/s     best   idle"
        "  preempted"
    )
    for engine in o.engines:
        yield _engine_line(engine, width)
    yield ""
    if not o.busy_s:
        yield "nothing was in flight: look again while requests are"
        return
    yield f"bubble       {o.bubble:.0%} of the engines' busy time passed without work"
    yield f"tails        {_tails(o)}"
    yield f"preemptions  {o.preemptions:,}"
    if o.source != "engines":
        share = "no rewards were told" if o.degenerate_share is None else _degenerate(o)
        yield f"degenerate   {share}"
    if o.gain_at_most is not None and o.fastest_s is not None:
        yield (
            f"gain         at most {o.gain_at_most:.0%}: {o.tokens:,} tokens took "
            f"{seconds(o.busy_s)}; with each engine always at its best, {seconds(o.fastest_s)}"
        )
        yield "             (a bound, not a promise: how near one comes depends on the lengths)"
    yield from _decision_lines(o)


def _engine_line(e: ObservedEngine, width: int) -> str:
    gone = "" if e.answered == 1 else f"  answered {e.answered:.0%} of the looks"
    return (
        f"{e.name:<{width}}  {e.running:7.1f}  {e.waiting:7.1f}  {e.most_inflight:5}  "
        f"{_percent(e.kv_mean):>7}  {_percent(e.kv_most):>7}  {e.tokens_per_s:8,.0f}  "
        f"{e.best_per_s:7,.0f}  {e.idle:5.0%}  {e.preemptions:9,}{gone}"
    )


def _tails(o: Observed) -> str:
    if not o.tails or o.tail_mean_s is None:
        return "none: what was in flight never fell below a fifth of its most"
    times = "once" if o.tails == 1 else f"{o.tails} times"
    return (
        f"{o.tail_share:.0%} of the busy time: {times} less than a fifth of what had been in "
        f"flight was left, for {seconds(o.tail_mean_s)} on average"
    )


def _degenerate(o: Observed) -> str:
    return f"{o.degenerate_share:.0%} of {o.groups_rewarded:,} rewarded groups taught nothing"


def _decision_lines(o: Observed) -> Iterator[str]:
    told = [d for d in o.decisions if d.action != Action.PLACE]
    if not o.decider:
        return
    yield ""
    yield f"decisions of {o.decider}"
    for d in told:
        if d.became == DROPPED:
            yield f"  {d.count:>7,} x {d.action} held back by the guard"
            continue
        words = "would be taken" if d.became == RECORDED else d.became
        yield (
            f"  {d.count:>7,} x {d.action} {words}: predicted gain {d.gain_s:,.1f} s, cost "
            f"{d.cost_s:,.1f} s, summed"
        )
    if not told:
        yield "  none but placements"


def _busy_mean(load: Load, values: Floats) -> float:
    if len(load) < 2:
        return float(values.mean()) if len(values) else 0.0
    step_s = np.diff(load.t_s) * ((load.running + load.waiting)[:-1].sum(axis=1) > 0)
    total = float(step_s.sum())
    return float((step_s * values[:-1]).sum()) / total if total else 0.0


def _known(reduce: object, values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(reduce(known)) if len(known) else None  # type: ignore[operator]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
