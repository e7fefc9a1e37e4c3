"""The reference's replica: the physics of one engine, in plain Python.

A list of running sequences in order of admission, a list of waiting ones, and a list of those that
are away.  Three things can be next:

- the smallest finish: all who share it leave the batch;
- the contexts reach the KV capacity while more than one runs: the last admitted is preempted, until
  they fit;
- somebody who was away (on its way, or waiting for a tool) joins the queue.

Then the queue's head is admitted while there is a slot and it fits (or nobody runs).  Between two
events the batch is constant and tau is linear in the tokens served to each sequence (`v`), below
the knee and above it.
"""

import math
from dataclasses import dataclass, field

from steersman.mechanisms.simulated.spec import EventKind, ReplicaSpec

Event = tuple[float, int, int, int]
"""Time, kind, trajectory, replica."""


@dataclass(eq=False)
class Prompt:
    """A group's prompt on one replica."""

    users: int = 0
    stamp: float = -math.inf


@dataclass(eq=False)
class Trajectory:
    row: int
    group: int
    prompt_tokens: float
    encode_s: float
    turns: list[tuple[float, float, float]]
    """Tokens, wait and extra tokens of each turn."""
    given: float = field(init=False)
    goal: float = field(init=False)
    turn: int = 0
    generated: float = 0.0
    entered_v: float = 0.0
    ready_s: float = -math.inf
    kept_stamp: float = -math.inf
    kept_on: "Replica | None" = None
    replica: "Replica | None" = None

    def __post_init__(self) -> None:
        self.given, self.goal = self.prompt_tokens, self.turns[0][0]

    @property
    def finish_v(self) -> float:
        return self.entered_v + (self.goal - self.generated)


@dataclass(eq=False)
class Replica:
    row: int
    spec: ReplicaSpec
    now_s: float
    speculation: tuple[float, float]
    running: list[Trajectory] = field(default_factory=list)
    waiting: list[Trajectory] = field(default_factory=list)
    away: list[Trajectory] = field(default_factory=list)
    prompts: dict[int, Prompt] = field(default_factory=dict)
    alive: bool = True
    paused: bool = False
    v: float = 0.0
    kv: float = 0.0
    debt_s: float = 0.0
    owed_tokens: float = 0.0
    written: float = 0.0
    forgotten: float = -1.0
    iterations: float = 0.0
    busy_s: float = 0.0
    sequences_run: float = 0.0
    prefill_tokens: float = 0.0
    preemptions: int = 0
    log: list[Event] = field(default_factory=list)

    def batch_s(self, batch: int) -> float:
        """Seconds of an iteration of so many sequences at an empty KV cache."""
        s, cost = self.spec, self.speculation[1]
        if s.batch_s:
            return s.fixed_s / s.speed + cost * ((s.batch_s[batch - 1] - s.fixed_s) / s.speed)
        return s.fixed_s / s.speed + s.sequence_s / s.speed * cost * batch

    def prefill_step_s(self) -> float:
        """What an iteration takes longer because it prefills."""
        step_s = self.spec.prefill_step_s / self.spec.speed
        if not self.spec.batch_s:
            return step_s
        batch_part = self.batch_s(max(len(self.running), 1)) - self.batch_s(1)
        return max(step_s - batch_part, 0.0)

    def curve(self) -> tuple[float, float, float, float]:
        """Seconds per iteration at an empty KV cache, per token in it, per one above the knee, and
        the tokens below the knee that each running sequence can still write."""
        s, batch = self.spec, len(self.running)
        below = max((s.knee_tokens - self.kv) / batch, 0.0)
        return self.batch_s(batch), s.token_s / s.speed, s.knee_token_s / s.speed, below

    def seconds(self, tokens: float) -> float:
        """Integral of tau over `tokens` of each running sequence."""
        base, slope, knee, below = self.curve()
        batch, below = len(self.running), min(tokens, below)
        seconds = below * (base + slope * (self.kv + 0.5 * batch * below))
        if tokens > below:
            above, kv = tokens - below, max(self.kv, self.spec.knee_tokens)
            middle = 0.5 * batch * above
            over = knee * (kv - self.spec.knee_tokens + middle)
            seconds += above * (base + slope * (kv + middle) + over)
        return seconds / self.speculation[0]

    def tokens(self, seconds: float) -> float:
        """The inverse: tau's root."""
        base, slope, knee, below = self.curve()
        batch, amount, kv, done = len(self.running), seconds * self.speculation[0], self.kv, 0.0
        start = base + slope * kv
        if below < math.inf:
            to_knee = below * (base + slope * (kv + 0.5 * batch * below))
            if amount > to_knee:
                kv = max(kv, self.spec.knee_tokens)
                start = base + slope * kv + knee * (kv - self.spec.knee_tokens)
                slope, amount, done = slope + knee, amount - to_knee, below
        return done + 2.0 * amount / (
            start + math.sqrt(start * start + 2.0 * slope * batch * amount)
        )

    def serve(self, elapsed_s: float, paid_s: float, tokens: float) -> None:
        """Seconds of a batch: `paid_s` of them prefill, then `tokens` of each sequence."""
        whole = paid_s == self.debt_s
        prefilled = self.owed_tokens if whole else self.owed_tokens * (paid_s / self.debt_s)
        self.prefill_tokens += prefilled
        self.owed_tokens -= prefilled
        self.debt_s -= paid_s
        self.busy_s += elapsed_s
        iterations, batch = tokens / self.speculation[0], len(self.running)
        self.iterations += iterations
        self.sequences_run += batch * iterations
        self.kv += batch * tokens
        self.written += batch * tokens
        self.v += tokens

    def sync(self, at_s: float) -> None:
        """To `at_s`, before or at the next event."""
        elapsed = at_s - self.now_s
        if elapsed > 0 and self.running and not self.paused:
            paid, tokens = min(self.debt_s, elapsed), 0.0
            if elapsed > paid:
                left = min(t.finish_v for t in self.running) - self.v
                tokens = min(self.tokens(elapsed - paid), left)
            self.serve(elapsed, paid, tokens)
        self.now_s = at_s

    def due(self) -> tuple[float, str, float]:
        """When the next event is due, what it is, and the tokens of each sequence until then."""
        due, what, tokens = math.inf, "nothing", 0.0
        if self.alive and not self.paused and self.running:
            tokens, what = min(t.finish_v for t in self.running) - self.v, "finish"
            if len(self.running) > 1:
                room = max(self.spec.kv_capacity_tokens - self.kv, 0.0) / len(self.running)
                if room < tokens:
                    tokens, what = room, "full"
            due = self.now_s + self.debt_s + self.seconds(tokens)
        if self.away:
            ready = max(min(t.ready_s for t in self.away), self.now_s)
            if ready < due:
                return ready, "arrival", 0.0
        return due, what, tokens

    def step(self) -> None:
        """The next event."""
        due, what, tokens = self.due()
        if what == "arrival":
            self.sync(due)
            ready = [t for t in self.away if t.ready_s <= due]
            self.away = [t for t in self.away if t.ready_s > due]
            self.waiting += sorted(ready, key=lambda t: (t.ready_s, t.row))
        elif what == "finish":
            end = min(t.finish_v for t in self.running)
            self.serve(due - self.now_s, self.debt_s, tokens)
            self.v, self.now_s = end, due
            over = [t for t in self.running if t.finish_v <= end]
            for t in sorted(over, key=lambda t: (t.finish_v, t.row)):
                self.leave(t, t.goal)
                self.end_turn(t)
        else:
            self.serve(due - self.now_s, self.debt_s, tokens)
            self.kv, self.now_s = max(self.kv, self.spec.kv_capacity_tokens), due
            while len(self.running) > 1 and self.kv >= self.spec.kv_capacity_tokens:
                self.preempt()
        self.admit()

    def admit(self) -> None:
        """Fill the batch from the queue."""
        spec, step_s = self.spec, self.prefill_step_s()
        while self.alive and not self.paused and self.waiting:
            t = self.waiting[0]
            context = t.given + t.generated
            fits = self.kv + context <= spec.admit_below_tokens
            if len(self.running) >= spec.max_num_seqs or (self.running and not fits):
                break
            self.waiting.pop(0)
            prompt, tokens, stall = self.prompts.setdefault(t.group, Prompt()), context, 0.0
            if t.kept_on is self and self.fresh(t.kept_stamp):
                tokens = t.turns[t.turn - 1][2]
            elif prompt.users or self.fresh(prompt.stamp):
                tokens = context - t.prompt_tokens
            else:
                stall = t.encode_s / spec.speed
            if tokens > 0:
                stall = stall + step_s
                stall, step_s = stall + spec.request_s / spec.speed, 0.0
            t.kept_on = None
            self.written += tokens
            prompt.stamp, prompt.users = self.written, prompt.users + 1
            self.owed_tokens += tokens
            self.debt_s += tokens * (spec.prefill_token_s / spec.speed) + stall
            if self.debt_s == 0:
                self.prefill_tokens += self.owed_tokens
                self.owed_tokens = 0.0
            self.kv += context
            t.entered_v = self.v
            self.running.append(t)

    def fresh(self, stamp: float) -> bool:
        """Whether the prefix cache still holds what was last used at `stamp`."""
        recent = self.written - stamp < self.spec.prefix_cache_tokens
        return stamp > self.forgotten and recent

    def leave(self, t: Trajectory, generated: float) -> None:
        """Out of the batch."""
        t.generated = generated
        self.kv -= t.given + generated
        self.running.remove(t)
        if not self.running:
            self.kv = self.debt_s = self.owed_tokens = 0.0
        prompt = self.prompts[t.group]
        prompt.users, prompt.stamp = prompt.users - 1, self.written

    def end_turn(self, t: Trajectory) -> None:
        """Its present turn is written."""
        kind = EventKind.FINISHED if t.turn == len(t.turns) - 1 else EventKind.TURN_ENDED
        self.log.append((self.now_s, int(kind), t.row, self.row))
        if kind is EventKind.FINISHED:
            t.replica = None
            return
        _, wait_s, extra = t.turns[t.turn]
        t.ready_s, t.given, t.turn = self.now_s + wait_s, t.given + extra, t.turn + 1
        t.goal += t.turns[t.turn][0]
        if self.spec.keeps_kv_between_turns:
            t.kept_on, t.kept_stamp = self, self.written
        self.away.append(t)

    def preempt(self) -> None:
        """The last admitted goes to the queue's head."""
        t = self.running[-1]
        self.leave(t, self.written_by(t))
        self.prompts[t.group].stamp = -math.inf
        self.preemptions += 1
        self.waiting.insert(0, t)
        self.log.append((self.now_s, int(EventKind.PREEMPTED), t.row, self.row))

    def written_by(self, t: Trajectory) -> float:
        """Tokens that a running trajectory has generated."""
        return min(t.generated + (self.v - t.entered_v), t.goal)

    def withdraw(self, t: Trajectory) -> None:
        """Take it from wherever it is."""
        if t in self.running:
            self.leave(t, self.written_by(t))
        elif t in self.waiting:
            self.waiting.remove(t)
        else:
            self.away.remove(t)
        t.replica = None
