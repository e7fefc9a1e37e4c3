"""More samples where gradients differ and answers are short, within a token budget (DUET).

arXiv 2605.08441, rule as in Haoyu-Hu/DUET: Neyman allocation with costs.  For the data loader's
next prompts, with s the spread of a prompt's gradient between samples and L its mean length,

    n = clip(round(s / sqrt(lambda L)), 1, `most_samples`)      samples,
    clip(s sqrt(L / lambda), `least_tokens`, trainer's cap)     token cap of each,

where lambda makes sum n L the budget (bisection of its logarithm).  The cap is n L before rounding,
so that a prompt that gets one sample is cut at its mean length or before: half of its answers.
`token_caps` turns that off.

A prompt then passes a gate with probability clip(n / mean n, `least_gate`, 1).  The allocator of
the source states this as the propensity; here the gate is really drawn, so that the inclusion
probability (times the share of the candidates that is next) is what happens.  What the prompts
at the gate would have cost goes to those that are asked for in their stead.

s is not known as the source means it, the standard deviation between a group's samples of advantage
times summed log-probability, unless the trainer tells log-probabilities: `signal` = "logprob".  By
default it is the standard deviation of the rewards.  Both are averaged over a prompt's groups
(Welford).  For a prompt never seen the source asks a ridge regression on the prompt's
log-probability; here it is sqrt(E[p (1 - p)]) by the success forecast, or the mean of the others.
Not here: the stop in mid-answer by markers and margins, which is a stopping policy's matter.
Correctness class: empirical (caps depend on length); without `token_caps` modified, with the weight
1 / inclusion probability.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, WholeGroups
from steersman.policies.prompts._inclusion import in_order
from steersman.policies.prompts._memory import PromptMemory, one_of_each

LOG_LAMBDA = 20.0
"""Bisection starts from -20 to 20, as in the source."""
BISECTIONS = 30
"""The source makes 10, which leave n off by up to 2 %."""
NO_SPREAD = 1e-6
"""Added to a group's deviation before dividing by it, as GRPO does."""


@dataclass
class Duet(WholeGroups):
    """Defaults are the source's, where it has the option."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EMPIRICAL

    budget: float = 1.0
    """Tokens as a share of what the trainer's group size would take; the source tried 0.5 and 1."""
    most_samples: int = 32
    least_tokens: int = 32
    token_caps: bool = True
    """Whether prompts get their own token caps."""
    least_gate: float = 0.05
    """Least probability of the gate; 1: no gate."""
    signal: Literal["reward", "logprob"] = "reward"
    """What spreads: rewards, or advantages times summed log-probabilities (the source)."""
    least_signal: float = 0.1
    """s as a share of the batch's mean, at least: what never varied may yet; the source has a floor
    whose value was not to be found."""
    max_prompts: int = 50_000
    """Prompts remembered (the source's number); if full, the eighth not updated for longest
    goes."""

    _memory: PromptMemory = field(init=False)
    """Columns: groups and mean of s; groups and mean of L."""
    _left: float = field(default=0.0, init=False)
    """Tokens of the step's budget that are not given out yet."""

    def __post_init__(self) -> None:
        if not (self.budget > 0 and 0.0 < self.least_gate <= 1.0 and self.least_signal > 0):
            raise InvalidInputError(
                "budget, least_gate and least_signal are above 0, gates up to 1"
            )
        if self.most_samples < 1 or self.least_tokens < 1:
            raise InvalidInputError("most_samples and least_tokens are 1 or more")
        self._memory = PromptMemory(4, self.max_prompts)

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """Allocate samples and tokens to the next prompts and draw the gate."""
        row, share = in_order(len(request.candidates), request.groups_wanted)
        spread, length = self._known(request, row)
        if not request.refill:
            self._left = self.budget * request.group_size * float(length.sum())
        size, cap = self.allocate(spread, length, self._left)
        cap = np.minimum(cap, request.max_new_tokens)
        if not self.token_caps:
            cap = np.full(len(row), request.max_new_tokens)
        gate = np.clip(size / size.mean(), self.least_gate, 1.0) if len(row) else share
        passed = rng.random(len(row)) < gate
        self._left -= float(size[passed] @ length[passed])
        return PromptChoice(
            row=row[passed],
            size=size[passed],
            max_new_tokens=cap[passed],
            inclusion_probability=(share * gate)[passed],
            reason="sized by the spread of its gradient and its length",
        )

    def allocate(self, spread: Floats, length: Floats, tokens: float) -> tuple[Ints, Ints]:
        """(m,) samples and token caps that take so many tokens."""
        low, high = -LOG_LAMBDA, LOG_LAMBDA
        for _ in range(BISECTIONS):
            middle = (low + high) / 2.0
            if self._samples(spread, length, middle) @ length > tokens:
                low = middle
            else:
                high = middle
        cap = np.rint(spread * np.sqrt(length) * np.exp(-high / 2.0))
        cap = np.maximum(np.minimum(cap, 2.0**31), self.least_tokens).astype(np.int64)
        return self._samples(spread, length, high), cap

    def learn(self, groups: FinishedGroups) -> None:
        """Average spreads and lengths."""
        row, value = groups.group_row, groups.reward
        if self.signal == "logprob" and len(groups.mean_logprob):
            centred = value - groups.mean_reward[row]
            advantage = centred / (_deviation(value, row, len(groups))[row] + NO_SPREAD)
            value = advantage * groups.mean_logprob * groups.tokens
        told = self.signal == "reward" or len(groups.mean_logprob) > 0
        length = np.bincount(row, weights=groups.tokens, minlength=len(groups)) / groups.size
        seen = np.stack((_deviation(value, row, len(groups)), length))
        known = np.stack(((groups.rewarded > 0) & told, np.ones(len(groups), dtype=np.bool_)))
        for part in one_of_each(groups.prompt_key):
            key = groups.prompt_key[part]
            after = self._memory.read(key, (0.0,) * 4)
            count, mean = after[0::2], after[1::2]
            count += known[:, part]
            mean += np.where(known[:, part], (seen[:, part] - mean) / np.maximum(count, 1.0), 0.0)
            self._memory.write(key, after)

    def state_dict(self) -> dict[str, Any]:
        """The averages, and what the step may still cost."""
        return {"prompts": self._memory.state_dict(), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace them."""
        self._memory.load_state_dict(state["prompts"])
        self._left = float(state["left"])

    def _known(self, request: PromptRequest, row: Ints) -> tuple[Floats, Floats]:
        """(m,) spread and length of the prompts: own averages, else the forecast, else the mean."""
        offered = request.candidates
        groups, spread, told, length = self._memory.read(offered.prompt_key[row], (0.0,) * 4)
        p, deviation = offered.pass_probability[row], offered.pass_deviation[row]
        if self.signal == "reward":
            unseen = np.sqrt(np.maximum(p * (1.0 - p) - deviation**2, 0.0))
        else:
            unseen = np.full(len(row), _mean(spread[groups > 0], 1.0))
        spread = np.where(groups > 0, spread, unseen)
        length = np.where(told > 0, length, offered.mean_tokens[row])
        some = length[np.isfinite(length)]
        length = np.where(np.isfinite(length), length, _mean(some, request.max_new_tokens))
        floor = self.least_signal * _mean(spread, 1.0)
        return np.maximum(spread, floor or 1.0), np.maximum(length, 1.0)

    def _samples(self, spread: Floats, length: Floats, log_lambda: float) -> Ints:
        ideal = np.rint(spread / np.sqrt(length) * np.exp(-log_lambda / 2.0))
        return np.asarray(np.clip(ideal, 1, self.most_samples).astype(np.int64))


def _mean(values: Floats, otherwise: float) -> float:
    return float(values.mean()) if len(values) else otherwise


def _deviation(value: Floats, row: Ints, groups: int) -> Floats:
    """(m,) standard deviation of the known values within each group; 0 where none is known."""
    known = np.isfinite(value)
    value, row = value[known], row[known]
    size = np.maximum(np.bincount(row, minlength=groups), 1)
    mean = np.bincount(row, weights=value, minlength=groups) / size
    square = np.bincount(row, weights=(value - mean[row]) ** 2, minlength=groups)
    return np.asarray(np.sqrt(square / size))


PLUGIN: type[PromptPolicy] = Duet
