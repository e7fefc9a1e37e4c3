"""Made-up workloads that are more than lengths: turns, images, strays, a change of regime."""

from dataclasses import dataclass, replace

import numpy as np

from steersman.controller.replay.turns import Turns
from steersman.controller.replay.workload import NEVER, Asked, Workload
from steersman.controller.tournament.lengths import Lengths, joined, made_up

STRAYS, REGRET, REGRET_OF_STRAYS = 0.125, 0.15, 0.4
"""Share of answers that stray, and the mean regret of the others' tokens and of theirs, nats."""


def agentic(seed: int, steps: int) -> Workload:
    """Turns of about 300 tokens with a tool between them."""
    lengths = Lengths(steps=steps, groups=32, median_tokens=1500, p90_over_p50=4.0)
    whole = made_up(lengths, seed)
    return replace(whole, steps=[_with_turns(step, seed) for step in whole.steps])


def _with_turns(step: Asked, seed: int) -> Asked:
    """Turns of about 300 tokens; log-normal tool waits, 1 in 20 over ten times the median."""
    rng = np.random.default_rng((seed, 3, step.step))
    n = len(step)
    count = np.clip(step.length // 300 + rng.integers(1, 4, n), 2, 16)
    count = np.minimum(count, step.length)
    row = np.repeat(np.arange(n), count)
    last = np.cumsum(count) - 1
    share = rng.gamma(2.0, 1.0, len(row))
    share /= np.bincount(row, weights=share)[row]
    wait_s = np.clip(np.exp(rng.normal(np.log(2.0), 1.4, len(row))), 0.5, 30.0)
    extra = np.round(rng.gamma(2.0, 150.0, len(row)))
    wait_s[last] = extra[last] = 0.0
    tokens = np.maximum(share * step.length[row], 0.5)
    return replace(step, turns=Turns(count, tokens, wait_s, extra).reaching(step.length))


@dataclass(frozen=True)
class Agents:
    """Groups of agents of equally many turns, none of which comes again."""

    groups: int = 16
    size: int = 8
    turns: int = 20
    written: int = 60
    """Tokens per turn."""
    extra: float = 1500.0
    """Mean tokens that a tool appends; it takes a second in the mean."""


def long_agents(seed: int, steps: int) -> Workload:
    """Agents of 20 turns, whose contexts grow to some 30,000 tokens."""
    return agents(Agents(), seed, steps)


def agents(kind: Agents, seed: int, steps: int) -> Workload:
    """Exponential tool calls, in time and in tokens."""
    n, turns, made = kind.groups * kind.size, kind.turns, []
    last = np.arange(1, n + 1) * turns - 1
    for number in range(steps):
        rng = np.random.default_rng((seed, 6, number))
        wait_s = rng.exponential(1.0, n * turns)
        extra = np.round(rng.exponential(kind.extra, n * turns)) + 1
        wait_s[last] = extra[last] = 0.0
        made.append(
            Asked.plain(
                step=number,
                prompt_key=np.arange(kind.groups) + number * kind.groups,
                group_row=np.repeat(np.arange(kind.groups), kind.size),
                prompt_tokens=1000,
                length=np.full(n, kind.written * turns),
                max_new_tokens=1 << 16,
                turns=Turns(
                    np.full(n, turns), np.full(n * turns, float(kind.written)), wait_s, extra
                ),
            )
        )
    return Workload(made, (f"agents, made up from seed {seed}",))


def multimodal(seed: int, steps: int) -> Workload:
    """Prompts with images, short answers."""
    lengths = Lengths(steps=steps, median_tokens=400, p90_over_p50=3.0, max_new_tokens=4096)
    whole = made_up(lengths, seed)
    made = []
    for step in whole.steps:
        rng = np.random.default_rng((seed, 4, step.step))
        images = rng.integers(0, 5, len(step.prompt_key))[step.group_row]
        prompt = step.prompt_tokens + 800 * images
        made.append(replace(step, images=images.astype(np.int64), prompt_tokens=prompt))
    return replace(whole, steps=made)


def wandering(seed: int, steps: int) -> Workload:
    """One answer in eight strays."""
    whole = made_up(Lengths(steps=steps, p90_over_p50=3.0, max_new_tokens=8192), seed)
    return replace(whole, steps=[_with_strays(step, seed) for step in whole.steps])


def _with_strays(step: Asked, seed: int) -> Asked:
    """Strays write to the cap and repeat themselves from the length they were drawn with."""
    rng = np.random.default_rng((seed, 5, step.step))
    stray = rng.random(len(step)) < STRAYS
    length = np.where(stray, step.max_new_tokens, step.length)
    level = np.where(stray, REGRET_OF_STRAYS, REGRET)
    return replace(
        step,
        length=length,
        turns=Turns.single(length),
        regret=level * rng.gamma(8.0, 1 / 8.0, len(step)),
        loops_from=np.where(stray, step.length, NEVER),
    )


def regime_change(seed: int, steps: int) -> Workload:
    """In the middle, other prompts with other lengths."""
    before = made_up(Lengths(steps=steps - steps // 2), seed)
    short = Lengths(steps=steps // 2, p90_over_p50=1.2, median_tokens=1000)
    after = made_up(short, seed + 1_000_003)
    other = [replace(s, prompt_key=s.prompt_key + (1 << 32)) for s in after.steps]
    return joined((before, replace(after, steps=other)))
