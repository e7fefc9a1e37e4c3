"""The cap on trajectories in flight of `adaptive_concurrency`: a state machine on engine polls.

prime-rl's `ConcurrencyController`, whose constants stand here as it ships them; `Rule` are those
worth changing.  One `poll` per `poll_s` reads the engines; between polls only completions raise the
cap.  Three ways down, by severity: a *trim* (KV cache nearly full: to what would leave room again),
a *cut* (preemptions, or requests that keep queueing for memory), an *escalated* cut (overload again
right after the drain of a cut).
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from steersman.estimators.observation import Observation

BINDING = 0.9
"""The cap binds when this share of it is in flight; growing an idle cap says nothing."""
TRIM_REST_POLLS = 6
"""Polls between two trims: the effect of one must show before the next is sized."""
QUEUE_RATIO = 0.5
"""Requests queued in the engines, per running one, that count as overload."""
QUEUE_POLLS = 6
"""Polls that such a queue must last: turns that end together make short ones."""
GRACE_POLLS = 6
"""Polls after a drain in which overload again means that the cut was too small."""
GROWTH_TTL_S = 15.0
"""Seconds after a poll for which growth stays allowed; engines too busy to answer must not be
given more."""
WINDOW_S = 5.0
"""Seconds of a window of admission."""
BURST_SHARE = 0.1
"""Net growth of what is in flight that one window allows, as a share of the cap."""


@dataclass(frozen=True)
class Rule:
    """Thresholds (shares of the KV cache) and factors; see `AdaptiveConcurrency`."""

    growth: float
    kv_grow: float
    kv_soft: float
    kv_hard: float
    kv_target: float
    preemption_cut: float
    queue_cut: float
    escalated_cut: float
    min_inflight: int
    max_inflight: int
    burst: int
    poll_s: float


@dataclass
class Cap:
    """The cap and what the polls so far have left behind; every field is JSON."""

    cap: float = 0.0
    """0: not known yet."""
    polled_s: float | None = None
    can_grow: bool = False
    preemptions: dict[str, int] = field(default_factory=dict)
    """By replica, as last polled."""
    queue_polls: int = 0
    rest_polls: int = 0
    grace_polls: int = 0
    draining: bool = False
    """After a cut, until what is in flight has come down to the cap and the engines are quiet: what
    they report before that is what the cut was for."""
    escalated: bool = False
    window_s: float | None = None
    window_inflight: int = 0
    """In flight when the window of admission began."""

    def start(self, observation: Observation, rule: Rule) -> None:
        """The pessimistic cap, once: what fits if every trajectory grows to its limit.

        Not while no replica lives, or it would be 1 for those that come.
        """
        r, t = observation.replicas, observation.trajectories
        if self.cap or not len(t) or not r.alive.any():
            return
        capacity = int(r.kv_capacity_tokens[r.alive].sum())
        longest = int((t.prompt_tokens + t.max_new_tokens).max())
        # memory that is not known or not limited cannot bind: as many as the engines run at once
        wanted = capacity / longest if capacity else float(r.max_num_seqs[r.alive].sum())
        self.cap = _clamp(wanted, rule)

    def completed(self, count: int, inflight: int, now_s: float, rule: Rule) -> None:
        """`count` have ended, `inflight` are left.  A whole turnover multiplies by `growth`."""
        before = inflight + count
        allowed = self.polled_s is not None and now_s - self.polled_s < GROWTH_TTL_S
        if count and self.can_grow and allowed and before >= BINDING * self.limit:
            self.cap = _clamp(self.cap * rule.growth ** (count / before), rule)

    def poll(self, observation: Observation, inflight: int, rule: Rule) -> int:
        """Read the engines if it is time; returns trajectories in flight that are too many now."""
        if self.polled_s is not None and observation.now_s - self.polled_s < rule.poll_s:
            return 0
        r, alive = observation.replicas, observation.replicas.alive
        self.polled_s = observation.now_s
        seen = dict(zip(r.names, r.preemptions.tolist(), strict=True))
        preempted = any(seen[n] > self.preemptions.get(n, seen[n]) for n in seen)
        self.preemptions = seen
        usage = float(r.kv_cache_usage[alive].max(initial=0.0))
        running, queued = int(r.running[alive].sum()), int(r.waiting[alive].sum())
        self.queue_polls = self.queue_polls + 1 if running and queued > QUEUE_RATIO * running else 0
        overloaded = self.queue_polls >= QUEUE_POLLS
        self._follow_drain(inflight, preempted or overloaded)
        self.rest_polls = max(0, self.rest_polls - 1)
        self.can_grow = not (preempted or queued or self.draining) and usage <= rule.kv_grow
        if self.draining:
            return 0
        if preempted or overloaded:
            return self._cut(inflight, overloaded, rule)
        if usage > rule.kv_soft and inflight and not self.rest_polls:
            self.rest_polls = TRIM_REST_POLLS
            excess = self._lower(inflight * rule.kv_target / usage, inflight, rule)
            return excess if usage > rule.kv_hard else 0
        return 0

    def room(self, inflight: int, now_s: float, rule: Rule) -> int:
        """Trajectories that may be placed now: below the cap, and growing no faster than a window
        allows.  Replacing what has completed is growth of nothing."""
        if self.window_s is None or now_s - self.window_s >= WINDOW_S:
            self.window_s, self.window_inflight = now_s, inflight
        burst = max(rule.burst, int(BURST_SHARE * self.limit))
        return max(0, min(self.limit, self.window_inflight + burst) - inflight)

    @property
    def limit(self) -> int:
        """The cap, whole."""
        return int(self.cap)

    def state_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def _follow_drain(self, inflight: int, overload: bool) -> None:
        if self.draining and inflight <= self.limit and not overload:
            self.draining, self.grace_polls = False, GRACE_POLLS
        if not self.draining and self.escalated:
            self.grace_polls -= 1
            self.escalated = self.grace_polls > 0

    def _cut(self, inflight: int, queue: bool, rule: Rule) -> int:
        share = rule.queue_cut if queue else rule.preemption_cut
        share = rule.escalated_cut if self.escalated else share
        self.queue_polls = 0 if queue else self.queue_polls
        self.draining = self.escalated = True
        return self._lower(inflight * share, inflight, rule)

    def _lower(self, target: float, inflight: int, rule: Rule) -> int:
        self.cap = min(math.floor(_clamp(target, rule)), float(self.limit))
        return max(0, inflight - self.limit)


def _clamp(cap: float, rule: Rule) -> float:
    return float(min(max(cap, rule.min_inflight), rule.max_inflight))
