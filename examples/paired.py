"""A paired comparison on one fleet: the same steps under each setting, in turns, at equal work.

The work is a number of *blocks*, each of some consecutive steps.  The settings take turns at each
step, in the reverse order at every other (ABBA), so that what else happens on the machine hits all
of them.  Each has a session of its own, in which its controller learns on and its parked answers
wait; it knows nothing of the others (`turns`) and does not draft from their text.  Before every
step the weights are pushed anew under the next version, outside of the measured time: the lag bound
and the engines' caches are then as in training.  Engines draft nothing until the controller says
otherwise.  At a block's end each setting drains what it has put off; a block's seconds are those of
its rollouts and of that drain.  The first block is not counted.

Equal work.  All answers are first drawn once, undisturbed.  From then on a trajectory writes
exactly as many tokens as it did then, wherever and in however many pieces it runs
(`ScriptedLengths`).  Seeds alone would not do: after a move it draws on from a fresh stream.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace as replace_fields

from steersman.controller.config import Config, load_config
from steersman.controller.core import Controller
from steersman.controller.results import Group, Prompt
from steersman.controller.session import RolloutSession
from steersman.controller.tournament.standing import STUDENT_975
from steersman.controller.trace.writer import TraceWriter
from steersman.examples.turns import Turns
from steersman.mechanisms.execution import mixed_seed
from steersman.mechanisms.fleet import (
    Attempt,
    AttemptRequest,
    EndReason,
    Fleet,
    NamedTensors,
    Sampling,
)

LARGE_SAMPLE = STUDENT_975[-1]
"""For more pairs than the table has: a little too wide an interval."""
DRAFT_COUNTS = ("drafts", "drafted", "accepted")
"""What a replica's `draft_classes` hold, in this order."""
UNCOUNTED = 1
"""Blocks played first: compiling, first calls, and estimators that know nothing yet."""


@dataclass(frozen=True)
class Setting:
    """A placement policy with options, as the command line names it."""

    name: str
    config: Config

    @classmethod
    def parse(cls, text: str, seed: int) -> "Setting":
        """NAME[,KEY=VALUE...]; raises if a part refuses its options."""
        policy, *options = text.split(",")
        said = [
            option
            if option.split("=")[0].split(".")[0] in Config.__struct_fields__
            else f"placement.options.{option}"
            for option in options
        ]
        config = load_config(None, [f"seed={seed}", f"placement.name={policy}", *said], environ={})
        Controller.from_config(config)
        return cls(text, config)


@dataclass(frozen=True)
class Work:
    """What every setting does."""

    blocks: list[list[list[Prompt]]]
    """Prompts by block and step."""
    group_size: int
    cap: int
    """Tokens per answer at most."""
    sampling: Sampling


@dataclass
class Played:
    """What one setting did, over all counted blocks."""

    step_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    block_s: list[float] = field(default_factory=list)
    """Steps and drain of each block."""
    lengths: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Tokens by group and slot."""
    answers: Counter[tuple[int, int]] = field(default_factory=Counter)
    owed: int = 0
    late: int = 0
    """Answers delivered in a later step than their own."""
    deferred: int = 0
    moved: int = 0
    drafts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By where they came from: "drafts" verified, tokens "drafted" and "accepted"."""
    controller: str = ""
    """Who decided in the end: a policy that failed was replaced by the default rule."""

    def end_block(self) -> float:
        """Close the block; its seconds."""
        total_s = sum(self.step_s) + sum(self.drain_s)
        self.block_s.append(total_s - sum(self.block_s))
        return self.block_s[-1]


class ScriptedLengths:
    """A fleet on which a trajectory ends once it has as many tokens as `lengths` says.

    The engine is asked for that many and ignores the end-of-sequence token; a policy sees the cap
    only, as ever.  A fresh sample in a slot (after a restart) has no such length: it ends freely.
    """

    def __init__(self, fleet: Fleet, work: "Work", lengths: dict[int, int]) -> None:
        self._fleet, self._work, self._lengths = fleet, work, lengths
        self._known: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def start(self, replica: str, request: AttemptRequest) -> Attempt:
        """Begin an attempt that is cut to what its trajectory has left."""
        trajectory, _, number = request.attempt_id.rpartition("-")
        seed = request.sampling.seed
        if number == "0" and seed is not None and seed in self._lengths:
            self._known[trajectory] = self._lengths[seed]
        cap = self._work.cap
        length = self._known.get(trajectory)
        if length is None:
            stop = self._work.sampling.stop_token_ids
            sampling = replace_fields(request.sampling, ignore_eos=False, stop_token_ids=stop)
            return self._fleet.start(replica, replace(request, sampling=sampling))
        left = max(length - (cap - request.max_tokens), 1)
        attempt = self._fleet.start(replica, replace(request, max_tokens=left))
        if length < cap:
            attempt.on_end(_length_is_stop)
        return attempt


def _length_is_stop(attempt: Attempt) -> None:
    """Runs before the trajectory hears of the end: it was registered first."""
    if attempt.end is not None and attempt.end.reason is EndReason.LENGTH:
        attempt.end = replace(attempt.end, reason=EndReason.STOP)


@dataclass
class Bench:
    """A fleet, its weights, and the work."""

    fleet: Fleet
    tensors: NamedTensors
    work: Work

    async def record(self, setting: Setting) -> dict[int, int]:
        """Draw all answers once; their lengths by the seed of their first attempt."""
        seed, played = self.work.sampling.seed or 0, Played()
        async with self.session(setting, self.fleet, None) as session:
            for prompts in chain.from_iterable(self.work.blocks):
                await self.step(session, prompts, self.work.sampling, played)
        return {mixed_seed(seed, g, s, 0): length for (g, s), length in played.lengths.items()}

    async def compare(
        self,
        settings: Sequence[Setting],
        lengths: dict[int, int] | None,
        out: Path | None,
        tell: Callable[[str], None],
    ) -> dict[str, Played]:
        """All blocks under all settings; `lengths` None: answers end by themselves."""
        fleet, sampling = self.fleet, self.work.sampling
        if lengths is not None:
            fleet = cast(Fleet, ScriptedLengths(self.fleet, self.work, lengths))
            sampling = replace_fields(sampling, ignore_eos=True, stop_token_ids=())
        played = {setting.name: Played() for setting in settings}
        async with AsyncExitStack() as stack:
            sessions: dict[str, RolloutSession] = {}
            for i, setting in enumerate(settings):
                trace = None if out is None else out / f"{i}.jsonl"
                own = cast(Fleet, Turns(fleet))
                opened = self.session(setting, own, trace)
                sessions[setting.name] = await stack.enter_async_context(opened)
            turns = cycle((settings[::-1], settings))
            for number, block in enumerate(self.work.blocks):
                counted = number >= UNCOUNTED
                target = {s.name: played[s.name] if counted else Played() for s in settings}
                for prompts in block:
                    for setting in next(turns):
                        name = setting.name
                        await self.step(sessions[name], prompts, sampling, target[name])
                for setting in next(turns):
                    await self.drain(sessions[setting.name], target[setting.name])
                    target[setting.name].controller = sessions[setting.name].controller_state
                seconds = "  ".join(f"{target[s.name].end_block():6.2f}" for s in settings)
                tell(f"block {number}{'' if counted else ' (not counted)'}: {seconds} s")
        return played

    @asynccontextmanager
    async def session(
        self, setting: Setting, fleet: Fleet, trace: Path | None
    ) -> AsyncIterator[RolloutSession]:
        """A session with a controller of its own."""
        writer = TraceWriter(trace) if trace else None
        controller = Controller.from_config(setting.config)
        async with RolloutSession(fleet, controller, trace=writer) as session:
            yield session

    async def step(
        self,
        session: RolloutSession,
        prompts: list[Prompt],
        sampling: Sampling,
        played: Played,
    ) -> None:
        """One step of one setting."""
        work, before = self.work, self._drafts()
        await self._push(session)
        with _turn(session):
            started_s = time.monotonic()
            groups = await session.rollout(
                prompts, work.group_size, max_new_tokens=work.cap, sampling=sampling
            )
            played.step_s.append(time.monotonic() - started_s)
        played.owed += len(prompts) * work.group_size
        played.drafts += self._drafts() - before
        _book(groups, played)

    async def drain(self, session: RolloutSession, played: Played) -> None:
        """Let what was put off end.  All push, so that versions stay the same for all."""
        await self._push(session)
        with _turn(session):
            started_s = time.monotonic()
            groups = await session.drain() if session.counts().unfinished else []
            played.drain_s.append(time.monotonic() - started_s if groups else 0.0)
        _book(groups, played)

    def _drafts(self) -> Counter[tuple[str, str]]:
        """All engines' counts since they started, as far as they have been reported."""
        counts: Counter[tuple[str, str]] = Counter()
        for info in self.fleet.replicas:
            for source, three in self.fleet.stats(info.name).draft_classes.items():
                for what, count in zip(DRAFT_COUNTS, three, strict=True):
                    counts[source, what] += count
        return counts

    async def _push(self, session: RolloutSession) -> None:
        for info in self.fleet.replicas:
            self.fleet.draft(info.name, 0)  # as the setting before it found them
        await session.push_weights(self.tensors, session.weight_version + 1)


@contextmanager
def _turn(session: RolloutSession) -> Iterator[None]:
    """The fleet is this session's."""
    turns = session.fleet
    if not isinstance(turns, Turns):
        yield
        return
    turns.begin()
    try:
        yield
    finally:
        turns.end()


def _book(groups: list[Group], played: Played) -> None:
    for group in groups:
        for t in group.trajectories:
            played.lengths[group.group_id, t.slot] = len(t.token_ids)
            played.answers[group.group_id, t.slot] += 1
            played.late += group.delivered_step > group.admitted_step
            played.deferred += t.deferrals > 0
            played.moved += t.moves > 0


def summarize(settings: Sequence[Setting], played: dict[str, Played]) -> list[dict[str, Any]]:
    """One row per setting.

    `step_s` and `ratio` include the drains, by block; `rollout_ratio` is of the steps alone.
    """
    base = played[settings[0].name]
    rows = []
    for setting in settings:
        own = played[setting.name]
        ratio, *interval = paired_ratio(own.block_s, base.block_s)
        rollout_ratio, *rollout_interval = paired_ratio(own.step_s, base.step_s)
        rows.append(
            {
                "setting": setting.name,
                "step_s": round(sum(own.block_s) / len(own.step_s), 4),
                "ratio": round(ratio, 4),
                "ci95": [round(end, 4) for end in interval],
                "rollout_ratio": round(rollout_ratio, 4),
                "rollout_ci95": [round(end, 4) for end in rollout_interval],
                "drain_s": round(sum(own.drain_s), 2),
                "tokens": sum(own.lengths.values()),
                "answers": own.answers.total(),
                "same_length": sum(base.lengths[key] == n for key, n in own.lengths.items()),
                "late": own.late,
                "deferred": own.deferred,
                "moved": own.moved,
                "lost": own.owed - len(own.answers),
                "doubled": own.answers.total() - len(own.answers),
                "accepted_per_draft": _accepted_per_draft(own.drafts),
                "controller": own.controller,
                "block_s": [round(s, 3) for s in own.block_s],
            }
        )
    return rows


def _accepted_per_draft(drafts: Counter[tuple[str, str]]) -> dict[str, float]:
    """By source and in "all": tokens kept of a draft, on average; empty where nobody drafted."""
    sources = sorted({source for source, what in drafts if what == "drafts"})
    kept = {s: (drafts[s, "accepted"], drafts[s, "drafts"]) for s in sources if drafts[s, "drafts"]}
    if kept:
        kept["all"] = sum(a for a, _ in kept.values()), sum(n for _, n in kept.values())
    return {source: round(accepted / n, 3) for source, (accepted, n) in kept.items()}


def paired_ratio(own: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of own/base, and Student's 95 % interval (NaN from one pair)."""
    logs = np.log(np.array(own) / np.array(base))
    freedom, half = len(logs) - 1, float("nan")
    if freedom:
        student = STUDENT_975[freedom - 1] if freedom <= len(STUDENT_975) else LARGE_SAMPLE
        half = student * float(logs.std(ddof=1)) / np.sqrt(len(logs))
    mean = float(logs.mean())
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))
