"""The signs task: find signs so that +-a1 +-a2 ... +-ak equals a target, by trying.

    prompt     <bos> 7 5 t-12 :
    response   =-12 +7 =-19 +5 =-24 x =-12 -7 =-5 -5 =0 ok <eos>

An attempt restates the target, then alternates a signed number with what is left to reach. It ends
in `x` (missed, try again) or in the claim `ok <eos>`. The reward is exact: 1 if the claimed
attempt uses the prompt's numbers and truly sums to the target, otherwise 0.

The demonstrator signs blindly, so the number of attempts is geometric with a rate near 2^-k:
lengths are heavy-tailed within a prompt and across prompts. It also errs in two ways that
reinforcement can mend: it slips in arithmetic, and after a miss it claims `ok` all the same. With
false-claim rate h and chance s of a hit per attempt a prompt succeeds with p = s / (s + (1 - s) h),
a broad spread of p. A target of the wrong parity cannot be reached: such prompts have p = 0
and the longest responses.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LARGEST_NUMBER = 7
LARGEST_TARGET = 15
COUNTS = (2, 3, 4, 5, 6)
"""How many numbers a problem has; each one more doubles the expected length of the search."""
LARGEST_REMAINDER = 63
"""15 + 6 x 7 = 57 is the furthest an exact attempt can stray; six slips reach a little further."""
HELD_OUT_ONE_IN = 5
"""One problem in five, by hash, is kept for evaluation; training never sees it."""

PAD, BOS, EOS, COLON, MISS, CLAIM = "<pad>", "<bos>", "<eos>", ":", "x", "ok"
NUMBERS = tuple(range(1, LARGEST_NUMBER + 1))
SIGNED = tuple(sign * number for sign in (1, -1) for number in NUMBERS)
TARGETS = tuple(range(-LARGEST_TARGET, LARGEST_TARGET + 1))
REMAINDERS = tuple(range(-LARGEST_REMAINDER, LARGEST_REMAINDER + 1))

VOCABULARY_SIZE = 256
_WORDS = (
    *(PAD, BOS, EOS, COLON, MISS, CLAIM),
    *(str(number) for number in NUMBERS),
    *(f"{number:+d}" for number in SIGNED),
    # Targets are words of their own: spelt like remainders, two restarts in three were miscopied.
    *(f"t{target}" for target in TARGETS),
    *(f"={remainder}" for remainder in REMAINDERS),
)
VOCABULARY = (*_WORDS, *(f"<unused{i}>" for i in range(VOCABULARY_SIZE - len(_WORDS))))
"""Word of each token id; one word is one token."""

_ID = {word: token for token, word in enumerate(VOCABULARY)}
PAD_ID, BOS_ID, EOS_ID, MISS_ID, CLAIM_ID = (_ID[word] for word in (PAD, BOS, EOS, MISS, CLAIM))
_COLON_ID = _ID[COLON]
_NUMBER_ID = {number: _ID[str(number)] for number in NUMBERS}
_SIGNED_ID = {number: _ID[f"{number:+d}"] for number in SIGNED}
_SIGNED_OF_ID = {token: number for number, token in _SIGNED_ID.items()}
_TARGET_ID = {target: _ID[f"t{target}"] for target in TARGETS}
_REMAINDER_ID = {remainder: _ID[f"={remainder}"] for remainder in REMAINDERS}
_REMAINDERS = frozenset(_REMAINDER_ID.values())


@dataclass(frozen=True)
class Problem:
    """Numbers to be signed, in this order, so that they sum to the target."""

    numbers: tuple[int, ...]
    target: int
    solvable: bool

    @property
    def held_out(self) -> bool:
        """Whether the problem belongs to evaluation; a stable hash, so no seed can mix the two."""
        spelling = repr((self.numbers, self.target)).encode()
        return zlib.crc32(spelling) % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True)
class Demonstrator:
    """Blind search with two failings; 0 for both rates is a perfect, if slow, solver."""

    slip_rate: float = 0.02
    """Chance that one step of the arithmetic is off by 1 or 2."""
    false_claim_rate: float = 0.15
    """Chance to claim success after a miss; sets the success rate that training starts from."""
    max_attempts: int = 100
    """Attempts after which the search breaks off without a claim; at most 1,400 tokens."""


def make_pool(size: int, unsolvable_share: float, seed: int) -> list[Problem]:
    """Distinct training problems, none of them held out; `round(size * share)` cannot be solved."""
    rng = np.random.default_rng(seed)
    unsolvable = round(size * unsolvable_share)
    pool = _distinct(rng, unsolvable, solvable=False, held_out=False)
    pool += _distinct(rng, size - unsolvable, solvable=True, held_out=False)
    return [pool[i] for i in rng.permutation(size)]


def make_evaluation_pool(size: int, seed: int) -> list[Problem]:
    """Distinct solvable problems that no training pool and no demonstration contains."""
    return _distinct(np.random.default_rng(seed), size, solvable=True, held_out=True)


def draw_problem(rng: np.random.Generator, *, solvable: bool) -> Problem:
    """One problem with 2..6 numbers, each count as likely as the other."""
    while True:
        count = COUNTS[rng.integers(len(COUNTS))]
        numbers = rng.integers(1, LARGEST_NUMBER + 1, count)
        target = int(numbers @ rng.choice((-1, 1), count))
        if not solvable:
            target += int(rng.choice((-1, 1)))  # every reachable sum has the parity of sum(numbers)
        if abs(target) <= LARGEST_TARGET:
            return Problem(tuple(numbers.tolist()), target, solvable)


def deal_prompts(
    pool: Sequence[Problem], steps: int, prompts_per_step: int, seed: int
) -> list[list[int]]:
    """Indices into the pool for every step, each step with the pool's mix of difficulties.

    Epochs over the pool, shuffled within each difficulty and dealt like cards. A step's mean reward
    then varies by its prompts' luck rather than by how many hard ones it drew.
    """
    if not 0 < prompts_per_step <= len(pool):
        raise ValueError(f"cannot deal {prompts_per_step} prompts a step from {len(pool)}")
    rng = np.random.default_rng(seed)
    hands = len(pool) // prompts_per_step
    dealt: list[list[int]] = []
    while len(dealt) < steps:
        drawn = rng.permutation(len(pool))[: hands * prompts_per_step].tolist()
        cards = sorted(drawn, key=lambda i: (pool[i].solvable, len(pool[i].numbers)))
        epoch = [cards[hand::hands] for hand in range(hands)]
        dealt += [epoch[hand] for hand in rng.permutation(hands)]
    return dealt[:steps]


def prompt_tokens(problem: Problem) -> list[int]:
    """`<bos> a1 ... ak t<target> :`, at most nine tokens."""
    numbers = [_NUMBER_ID[number] for number in problem.numbers]
    return [BOS_ID, *numbers, _TARGET_ID[problem.target], _COLON_ID]


def demonstrate(
    problem: Problem, rng: np.random.Generator, demonstrator: Demonstrator = Demonstrator()
) -> list[int]:
    """One response as the demonstrator writes it, `<eos>` included unless it broke off."""
    response: list[int] = []
    for _ in range(demonstrator.max_attempts):
        left = _attempt(problem, rng, demonstrator.slip_rate, response)
        if left == 0 or rng.random() < demonstrator.false_claim_rate:
            return [*response, CLAIM_ID, EOS_ID]
        response.append(MISS_ID)
    return response


def reward(problem: Problem, response_tokens: Sequence[int], finished: bool) -> float:
    """1 if the response ends in a true claim, else 0.

    Parameters
    ----------
    problem : the prompt's problem.
    response_tokens : what was generated, with or without the closing `<eos>` (engines differ).
    finished : whether the model stopped by itself; a response cut at its token cap earns 0.
    """
    tokens = list(response_tokens)
    if tokens and tokens[-1] == EOS_ID:
        tokens.pop()
    if not finished or not tokens or tokens[-1] != CLAIM_ID:
        return 0.0
    start = max((i + 1 for i, token in enumerate(tokens) if token == MISS_ID), default=0)
    attempt = tokens[start:-1]
    signed = [_SIGNED_OF_ID.get(token, 0) for token in attempt[1::2]]
    whole = len(attempt) == 2 * len(problem.numbers) + 1 and _REMAINDERS.issuperset(attempt[::2])
    right_numbers = tuple(abs(number) for number in signed) == problem.numbers
    return float(whole and right_numbers and sum(signed) == problem.target)


def decode(tokens: Sequence[int]) -> str:
    """The words of a token list, separated by spaces."""
    return " ".join(VOCABULARY[token] for token in tokens)


def _attempt(
    problem: Problem, rng: np.random.Generator, slip_rate: float, response: list[int]
) -> int:
    """Append one attempt to the response and return what it believes is left."""
    count = len(problem.numbers)
    signs = rng.integers(0, 2, count) * 2 - 1
    slips = rng.choice((-2, -1, 1, 2), count) * (rng.random(count) < slip_rate)
    left = problem.target
    response.append(_REMAINDER_ID[left])
    for number, sign, slip in zip(problem.numbers, signs.tolist(), slips.tolist(), strict=True):
        left -= sign * number - slip
        left = min(max(left, -LARGEST_REMAINDER), LARGEST_REMAINDER)
        response += (_SIGNED_ID[sign * number], _REMAINDER_ID[left])
    return left


def _distinct(
    rng: np.random.Generator, size: int, *, solvable: bool, held_out: bool
) -> list[Problem]:
    """`size` different problems, in the order they were drawn."""
    found: dict[Problem, None] = {}
    while len(found) < size:
        problem = draw_problem(rng, solvable=solvable)
        if problem.held_out == held_out:
            found[problem] = None
    return list(found)
