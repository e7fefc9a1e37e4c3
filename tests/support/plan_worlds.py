"""Random fleets and trajectories for planners, and their ends written down plainly.

The reference knows no running sums: it takes who is where, and computes every replica's end anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from steersman.policies.adaptive._ends import Load, Model, Rows, loads


def model_of(replicas: int, **columns: Sequence[float] | float) -> Model:
    """M = 10 ms, c = 1 ms, nothing else costs; slots and memory for all; columns override."""
    usual = {
        "fixed_s": 0.01,
        "sequence_s": 0.001,
        "token_s": 0.0,
        "prefill_token_s": 0.0,
        "slots": 1e9,
        "capacity": np.inf,
    }
    full = {n: np.broadcast_to(columns.get(n, v), replicas).astype(float) for n, v in usual.items()}
    alive = np.broadcast_to(columns.get("alive", True), replicas).astype(bool)
    open_ = np.broadcast_to(columns.get("open", alive), replicas).astype(bool)
    by_name = np.asarray(columns.get("by_name", np.arange(replicas)), dtype=np.int64)
    return Model(**full, alive=alive, open=open_, by_name=by_name)


def rows_of(
    length: Sequence[float] | np.ndarray,
    group: Sequence[int] | None = None,
    prompt: Sequence[float] | float = 0.0,
    context: Sequence[float] | float = 0.0,
    stretch: float = 1.0,
    growth: float = 1.0,
) -> Rows:
    """`length` (S, n) or (n,); each its own group unless told."""
    lengths = np.atleast_2d(np.asarray(length, dtype=float))
    n = lengths.shape[1]
    return Rows(
        length=lengths,
        chain=stretch * lengths,
        context=np.broadcast_to(context, n).astype(float),
        prompt=np.broadcast_to(prompt, n).astype(float),
        group=np.arange(n) if group is None else np.asarray(group, dtype=np.int64),
        growth=growth,
    )


def random_model(rng: np.random.Generator, replicas: int, all_open: bool = False) -> Model:
    """Unlike replicas; some with few slots or little memory, some dead or closed, one never."""
    alive = rng.random(replicas) < 0.8
    alive[rng.integers(replicas)] = True
    open_ = alive & (rng.random(replicas) < 0.8)
    open_[np.flatnonzero(alive)[0]] = True
    everywhere = np.ones(replicas, dtype=bool)
    return model_of(
        replicas,
        fixed_s=rng.uniform(0.005, 0.02, replicas),
        sequence_s=rng.uniform(0.0001, 0.002, replicas),
        token_s=rng.uniform(0.0, 1e-7, replicas),
        prefill_token_s=rng.uniform(0.0, 1e-3, replicas),
        slots=rng.integers(1, 20, replicas),
        capacity=np.where(rng.random(replicas) < 0.5, np.inf, rng.uniform(5e3, 5e4, replicas)),
        by_name=rng.permutation(replicas),
        alive=everywhere if all_open else alive,
        open=everywhere if all_open else open_,
    )


def random_rows(rng: np.random.Generator, scenarios: int, n: int, groups: int = 5) -> Rows:
    """Heavy-tailed lengths, contexts of any kind; siblings have one prompt."""
    group = rng.integers(0, groups, n)
    return rows_of(
        np.exp(rng.normal(5.0, 1.0, (scenarios, n))),
        group=group,
        prompt=rng.integers(0, 2000, groups)[group],
        context=rng.uniform(0, 5000, n),
        stretch=rng.uniform(1.0, 3.0),
        growth=rng.uniform(1.0, 5.0),
    )


@dataclass
class Placed:
    """Rows placed one after another, remembered as a list."""

    model: Model
    rows: Rows
    began: dict[int, int] = field(default_factory=dict)
    """Replica by row, of those that were there at the beginning: their prompts are computed."""
    added: list[tuple[int, int]] = field(default_factory=list)
    """Row, replica."""

    def load(self, groups: int = 5) -> Load:
        """Of the beginning, as the planner has it."""
        where = np.full(len(self.rows.group), -1)
        where[list(self.began)] = list(self.began.values())
        return loads(self.rows, where, len(self.model.fixed_s), groups)

    def ends(self) -> np.ndarray:
        """(S, r) from scratch."""
        m, rows = self.model, self.rows
        ends = np.zeros((rows.length.shape[0], len(m.fixed_s)))
        at = [*self.began.items(), *self.added]
        for r in np.flatnonzero(m.alive):
            here = [i for i, where in at if where == r]
            known = {int(rows.group[i]) for i, where in self.began.items() if where == r}
            prompts = 0.0
            for i, where in self.added:
                if where == r and int(rows.group[i]) not in known:
                    known.add(int(rows.group[i]))
                    prompts += float(rows.prompt[i])
            for s in range(len(ends)):
                x = rows.length[s, here]
                area = float((x * rows.context[here] + rows.growth * x**2 / 2).sum())
                iterations = max([*rows.chain[s, here], x.sum() / m.slots[r], area / m.capacity[r]])
                work_s = m.sequence_s[r] * x.sum() + m.token_s[r] * area
                prefill_s = m.prefill_token_s[r] * prompts
                ends[s, r] = m.fixed_s[r] * iterations + work_s + prefill_s
        return ends


def random_placed(rng: np.random.Generator, all_open: bool = False) -> tuple[Placed, np.ndarray]:
    """A fleet with some rows on it, and the rows that are on none."""
    n, replicas = int(rng.integers(1, 25)), int(rng.integers(1, 6))
    placed = Placed(
        random_model(rng, replicas, all_open), random_rows(rng, int(rng.integers(1, 5)), n)
    )
    living = np.flatnonzero(placed.model.alive)
    there = rng.random(n) < 0.5
    placed.began = {int(i): int(rng.choice(living)) for i in np.flatnonzero(there)}
    return placed, np.flatnonzero(~there)
