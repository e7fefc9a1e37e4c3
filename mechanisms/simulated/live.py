"""A hardware profile measured on a live fleet, from its engines' own counters.

Every replica runs the same sweep at the same time, as in a rollout; their samples are pooled.

Decode.  For each batch b and prompt length p: b prompts are run for one token, which puts all but
their last token into the prefix cache, then again for `TOKENS` tokens with the end-of-sequence
token ignored.  What the counters grow by the second time is decoding alone; a sample in which
prompts were computed all the same is dropped:

    batch = sequences / iterations,  context = p + TOKENS / 2 + 1,  seconds = busy / iterations

Prefill.  While one long sequence decodes, `PROMPTS` fresh prompts come at once, for one token each.
What the time exceeds that of as many iterations of one sequence is theirs: few iterations, since
the error of each of them counts.

Requests.  The same with `MANY` of the shortest prompts at once, against `PROMPTS` of them: what
each further one adds beyond its prefill is the host's work per request, and no longer the step's.

Each point is measured `ROUNDS` times and the median taken: other work on the machine only adds
time.  The overheads are within the measured times, so the profile's own are 0.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steersman.estimators.errors import FleetError, InvalidInputError
from steersman.mechanisms.fleet import Attempt, AttemptRequest, EndReason, Fleet, Sampling
from steersman.mechanisms.simulated.fit import DecodeFit, DecodeRows, PrefillRows, fit_decode
from steersman.mechanisms.simulated.profile import HardwareProfile
from steersman.mechanisms.simulated.tables import fitted_profile

TOKENS = 64
"""Written per sequence and point: enough iterations for a mean, few enough to hold the context."""
PROMPTS = 8
MANY = 32
PREFILL_PROMPTS = (33, 129, 513)
"""Tokens of each: together they stay within what engines compute in one or two iterations."""
ROUNDS = 3
BLOCK = 32
"""Tokens: a multiple of every common block size of the KV cache.  Prompts are multiples of it and
one token, the only one that a cached prompt computes again."""
SHORTEST_PROMPT = BLOCK + 1
PROMPT_SHARES = (0.0, 0.25, 0.75)
"""Of the longest prompt that leaves room for `TOKENS`: the prompts measured; 0: the shortest."""
KV_SHARE = 0.8
"""Of the KV cache that a point may fill, so that nothing is preempted."""
TOKEN_IDS = range(3, 35)
"""What prompts are made of: ids that every vocabulary has; 32 of them never repeat a prompt."""
PURE = 0.02
"""Prompt tokens per token written, above which a decode sample counts as mixed with prefill."""
SETTLE_TIMEOUT_S = 10.0
"""For a replica to report that it is idle."""


@dataclass(frozen=True)
class Point:
    """One load: `batch` sequences of `prompt` tokens; a batch of 0 measures prefill."""

    batch: int
    prompt: int


@dataclass(frozen=True)
class Sample:
    """What a replica's counters grew by."""

    iterations: float
    busy_s: float
    sequences: float
    prefill_tokens: float


@dataclass
class Samples:
    """By point, of all replicas and rounds."""

    by_point: dict[Point, list[Sample]] = field(default_factory=dict)

    def add(self, point: Point, sample: Sample) -> None:
        """Unless nothing ran, or prompts were computed where only decoding was to be measured."""
        mixed = sample.prefill_tokens > PURE * sample.sequences
        if sample.iterations > 0 and sample.busy_s > 0 and not (point.batch and mixed):
            self.by_point.setdefault(point, []).append(sample)

    def decode_rows(self) -> DecodeRows:
        """One row per point: the median seconds, at the mean batch."""
        rows = []
        for point, samples in self.by_point.items():
            if point.batch:
                batch = round(float(np.mean([s.sequences / s.iterations for s in samples])))
                seconds = float(np.median([s.busy_s / s.iterations for s in samples]))
                rows.append((batch, batch * (point.prompt + TOKENS / 2 + 1), seconds))
        columns = np.array(rows, dtype=np.float64).reshape(-1, 3)
        return DecodeRows(columns[:, 0], columns[:, 1], columns[:, 2])

    def prefill_rows(self, decode: DecodeFit) -> PrefillRows:
        """One row per prompt length: an iteration of one sequence without context, and prompts."""
        rows = []
        for point, samples in self.by_point.items():
            if not point.batch:
                extra = float(np.median([_beyond(s, point.prompt, decode) for s in samples]))
                rows.append((PROMPTS * point.prompt, decode.alone_s + max(extra, 0.0)))
        columns = np.array(rows, dtype=np.float64).reshape(-1, 2)
        return PrefillRows(columns[:, 0], columns[:, 1])


def plan(max_num_seqs: int, max_model_len: int, kv_capacity_tokens: int) -> list[Point]:
    """The points of one round: powers of two by three prompt lengths, and the prompts' prefill."""
    longest, needed = max_model_len - TOKENS - 1, PREFILL_PROMPTS[1]
    if longest < needed:
        raise InvalidInputError(
            f"max_model_len {max_model_len} has no room for prompts of {needed} tokens and "
            f"{TOKENS} more; valid: {needed + TOKENS + 1} or more"
        )
    blocks = {max(1, int(share * longest) // BLOCK) for share in PROMPT_SHARES}
    prompts = sorted(count * BLOCK + 1 for count in blocks)
    room = KV_SHARE * (kv_capacity_tokens or np.inf)
    batches = [2**k for k in range(max_num_seqs.bit_length())]
    decode = [
        Point(b, p) for p, b in itertools.product(prompts, batches) if b * (p + TOKENS) <= room
    ]
    return decode + [Point(0, p) for p in PREFILL_PROMPTS if p <= longest]


def profile_of_samples(samples: Samples, labels: HardwareProfile) -> HardwareProfile:
    """`labels` with its times fitted to the samples."""
    rows = samples.decode_rows()
    if not (rows.batch == 1).any():
        raise FleetError("no sample of one sequence decoding alone: who else uses the fleet?")
    return fitted_profile(rows, samples.prefill_rows(fit_decode(rows)), labels)


async def measure(
    fleet: Fleet,
    labels: HardwareProfile,
    *,
    progress: Callable[[float], None] = lambda share: None,
    seed: int = 0,
) -> HardwareProfile:
    """Sweep every living replica of a fleet that nobody else uses.

    `labels` gives the names and limits; `progress` is told the share of the sweep that is done.
    """
    replicas = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
    length = min(info.max_model_len for info in fleet.replicas)
    points = plan(labels.max_num_seqs, length, labels.kv_capacity_tokens)
    sweeper, samples = _Sweeper(fleet, random.Random(seed)), Samples()
    await asyncio.gather(*(sweeper.sample(name, points[0]) for name in replicas))  # warm up
    for number, point in enumerate(points * ROUNDS, start=1):
        measured = await asyncio.gather(*(sweeper.sample(name, point) for name in replicas))
        for sample in measured:
            samples.add(point, sample)
        progress(number / (ROUNDS * len(points)))
    profile = profile_of_samples(samples, labels)
    many, decode = min(MANY, labels.max_num_seqs - 1), fit_decode(samples.decode_rows())
    if many <= PROMPTS:
        return profile
    extra: list[float] = []
    for _ in range(ROUNDS):
        for count, sign in ((many, 1.0), (PROMPTS, -1.0)):
            taken = await asyncio.gather(
                *(sweeper.prefill(name, SHORTEST_PROMPT, count) for name in replicas)
            )
            extra += [sign * _beyond(sample, SHORTEST_PROMPT, decode, count) for sample in taken]
    each_s = sum(extra) / (len(extra) / 2) / (many - PROMPTS)
    request_s = max(each_s - profile.prefill_token_s * SHORTEST_PROMPT, 0.0)
    step_s = max(profile.prefill_step_s - PROMPTS * request_s, 0.0)
    return replace(profile, request_s=request_s, prefill_step_s=step_s)


class _Sweeper:
    """Runs one point on one replica."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet, self._rng = fleet, rng
        self._numbers = itertools.count()

    async def sample(self, replica: str, point: Point) -> Sample:
        """The counters' growth."""
        if point.batch == 0:
            return await self.prefill(replica, point.prompt)
        prompts = [self._prompt(point.prompt) for _ in range(point.batch)]
        await self._run(replica, prompts, 1)
        before = await self._settled(replica)
        await self._run(replica, prompts, TOKENS)
        return _growth(before, await self._settled(replica))

    async def prefill(self, replica: str, length: int, count: int = PROMPTS) -> Sample:
        """The counters' growth while `count` fresh prompts come beside one long sequence."""
        before = await self._settled(replica)
        background = self._start(replica, self._prompt(SHORTEST_PROMPT), self._longest(replica))
        while background.generated_tokens == 0 and background.end is None:
            await asyncio.sleep(0.005)
        await self._run(replica, [self._prompt(length) for _ in range(count)], 1)
        self._fleet.abort(background)
        await _ended([background])
        return _growth(before, await self._settled(replica))

    async def _run(self, replica: str, prompts: Sequence[list[int]], tokens: int) -> None:
        attempts = [self._start(replica, prompt, tokens) for prompt in prompts]
        await _ended(attempts)
        for attempt in attempts:
            if attempt.end is not None and attempt.end.reason != EndReason.LENGTH:
                raise FleetError(f"replica {replica!r}: {attempt.end.reason} {attempt.end.detail}")

    def _start(self, replica: str, prompt: list[int], tokens: int) -> Attempt:
        number, sampling = next(self._numbers), Sampling(ignore_eos=True)
        request = AttemptRequest(f"profile-{replica}-{number}", prompt, tokens, sampling)
        return self._fleet.start(replica, request)

    def _prompt(self, length: int) -> list[int]:
        return self._rng.choices(TOKEN_IDS, k=length)

    def _longest(self, replica: str) -> int:
        (info,) = (info for info in self._fleet.replicas if info.name == replica)
        return info.max_model_len - SHORTEST_PROMPT - 1

    async def _settled(self, replica: str) -> Sample:
        """The counters, once the replica says that it runs nothing."""
        since_s = time.monotonic()
        while (stats := self._fleet.stats(replica)).running or stats.waiting:
            if time.monotonic() > since_s + SETTLE_TIMEOUT_S:
                raise FleetError(f"replica {replica!r} does not become idle; who else uses it?")
            await asyncio.sleep(0.005)
        return Sample(stats.iterations, stats.busy_s, stats.sequences_run, stats.prefill_tokens)


def _beyond(sample: Sample, prompt: int, decode: DecodeFit, count: int = PROMPTS) -> float:
    """Seconds that the prompts took, beyond the decoding beside them and their own tokens'.

    The long sequence began at `SHORTEST_PROMPT` tokens and wrote one per iteration.
    """
    context = SHORTEST_PROMPT + sample.iterations / 2
    decoding = sample.iterations * (decode.alone_s + decode.token_s * context)
    own = count * (decode.sequence_s + decode.token_s * prompt)
    return sample.busy_s - decoding - own


def _growth(before: Sample, after: Sample) -> Sample:
    return Sample(
        after.iterations - before.iterations,
        after.busy_s - before.busy_s,
        after.sequences - before.sequences,
        after.prefill_tokens - before.prefill_tokens,
    )


async def _ended(attempts: Sequence[Attempt]) -> None:
    """All of them have."""
    open_ones, done = len(attempts), asyncio.Event()

    def count(_: Attempt) -> None:
        nonlocal open_ones
        open_ones -= 1
        if open_ones == 0:
            done.set()

    for attempt in attempts:
        attempt.on_end(count)
    await done.wait()
