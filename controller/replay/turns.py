"""Turns: what each writes, how long a tool then keeps its trajectory away, what that adds."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from steersman.estimators.observation import Floats, Ints


@dataclass(frozen=True)
class Turns:
    """The turns of n trajectories, one trajectory's after another's; m in all."""

    count: Ints
    """(n,) turns of each, >= 1."""
    tokens: Floats
    """(m,) written in the turn."""
    wait_s: Floats
    """(m,) after it, outside of the batch; 0 after the last."""
    extra_tokens: Floats
    """(m,) that the wait adds to the context."""

    @classmethod
    def single(cls, length: Ints) -> "Turns":
        """One turn each."""
        nothing = np.zeros(len(length))
        return cls(np.ones(len(length), dtype=np.int64), length.astype(float), nothing, nothing)

    def of(self, rows: Ints) -> "Turns":
        """Those of some trajectories, in that order."""
        first = np.cumsum(self.count) - self.count
        each = self.count[rows]
        at = np.repeat(first[rows] - (np.cumsum(each) - each), each) + np.arange(each.sum())
        return Turns(each, self.tokens[at], self.wait_s[at], self.extra_tokens[at])

    def reaching(self, length: Ints) -> "Turns":
        """With the last turn changed so that each trajectory writes `length` in all.

        Where less is asked for than the earlier turns write, all becomes one turn.
        """
        last = np.cumsum(self.count) - 1
        row = np.repeat(np.arange(len(self.count)), self.count)
        total = np.bincount(row, weights=self.tokens, minlength=len(self.count))
        change = length - total
        if not change.any():
            return self
        tokens = self.tokens.copy()
        tokens[last] += change
        short = np.flatnonzero(tokens[last] < 1)
        if not len(short):
            return Turns(self.count, tokens, self.wait_s, self.extra_tokens)
        keep = ~np.isin(row, short)
        keep[last[short]] = True
        tokens[last[short]] = length[short]
        count = self.count.copy()
        count[short] = 1
        return Turns(count, tokens[keep], self.wait_s[keep], self.extra_tokens[keep])


def turns_of(frame: pl.DataFrame, length: Ints) -> Turns:
    """From the lists of a run table; a trajectory that tells none has one turn."""
    if frame["turn_tokens"].null_count() == len(frame):
        return Turns.single(length)
    count, tokens, wait_s, extra = [], list[float](), list[float](), list[float]()
    names = ("turn_tokens", "turn_wait_s", "turn_prompt_tokens")
    columns = (frame[name].to_list() for name in names)
    for whole, told, waits, contexts in zip(length.tolist(), *columns, strict=True):
        own = [max(float(t), 1.0) for t in told] if told else [float(whole)]
        pause = [*(waits or [0.0] * (len(own) - 1)), 0.0]
        count.append(len(own))
        tokens += own
        wait_s += [float(w or 0.0) for w in pause]
        extra += _extra(own, contexts)
    turns = Turns(np.array(count), np.array(tokens), np.array(wait_s), np.array(extra))
    return turns.reaching(length)


def _extra(tokens: list[float], contexts: list[int] | None) -> list[float]:
    """Tokens that each wait added: the next turn's context less this one's and what it wrote."""
    if not contexts or len(contexts) != len(tokens):
        return [0.0] * len(tokens)
    pairs = zip(contexts, contexts[1:], tokens, strict=False)
    return [*(max(float(after - before) - own, 0.0) for before, after, own in pairs), 0.0]
