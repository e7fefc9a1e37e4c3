"""Ways to draw a number of candidates, each with the probability of being drawn.

Each returns rows and, for those, a probability p whose inverse is the exact weight: for every
candidate i that can be drawn, E[1{i is drawn} / p_i] = 1.

- `weighted`, `best`: p is the first-order inclusion probability itself.
- `kept`, `smallest`: candidates draw independent numbers and the smallest ones win.  p is the
  probability that i wins *given what the others drew*: i's own number has to fall below the one
  that is next in line, which has a closed form where the probability over all draws has none.
  Since E[1{i wins} / p_i] = 1 whatever the others drew, it is 1 over all draws as well.  (Known as
  rank conditioning of bottom-k samples: Duffield, Lund, Thorup, "Priority sampling", 2007.)
"""

import math
from collections.abc import Callable

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Floats, Ints

Drawn = tuple[Ints, Floats]
SMALLEST = 1e-12
"""Of a probability: below, the difference of two distribution functions is rounding."""
SHUFFLED = 65_536
"""Rows up to which a random order is any order: that takes 1 ms."""
BLOCK = 64
"""Values that are summed together first."""
FEWEST_ROWS = 100
"""Of the table by which more are shuffled."""


def check_share(uniform_share: float) -> None:
    """Raise unless it is a share."""
    if not 0.0 <= uniform_share <= 1.0:
        raise InvalidInputError(f"uniform_share is {uniform_share}; 0 to 1")


def weighted(weight: Floats, count: int, rng: np.random.Generator) -> Drawn:
    """`count` rows with probabilities min(1, a * weight), weights above 0: systematic sampling
    (Madow 1949) over a random order, so that any company is possible.
    """
    offered = len(weight)
    if not 0 < count < offered:
        return everyone(min(count, offered))
    scale, certain = _scale(weight, count)
    left = count - len(certain)
    drawn = weight
    if len(certain):
        drawn = weight.copy()
        drawn[certain] = 0.0
    shuffled, row_of = _shuffled(drawn, rng)
    hit = _hit(shuffled, rng.random(), left)
    # no weight reaches past two ticks, but for rounding
    step = np.arange(left)
    hit = np.minimum(np.maximum.accumulate(hit - step) + step, offered - left + step)
    row = rng.permutation(np.concatenate((certain, row_of(hit))))
    return row, np.minimum(scale * weight[row].astype(np.float64), 1.0)


def best(score: Floats, count: int, uniform_share: float, rng: np.random.Generator) -> Drawn:
    """`count` rows: the highest scores, ties by lot, and a share from among all the others, each as
    likely.  Without that share the others cannot be drawn, and no weight makes up for it."""
    offered, by_lot = len(score), math.ceil(uniform_share * count)
    if count >= offered:
        return everyone(offered)
    if by_lot == count:
        row = rng.choice(offered, count, replace=False)
        return row, np.full(count, count / offered)
    high = count - by_lot
    cut = np.partition(score, offered - high)[offered - high]
    above, tied = np.flatnonzero(score > cut), np.flatnonzero(score == cut)
    lucky = rng.choice(tied, high - len(above), replace=False)
    top = np.concatenate((above, lucky))
    lot = _others(offered, top, by_lot, rng)
    row = np.concatenate((top, lot))
    first = np.where(score[row] > cut, 1.0, np.where(score[row] == cut, len(lucky) / len(tied), 0))
    return row, first + (1.0 - first) * by_lot / (offered - high)


def smallest(
    draw: Floats,
    below: Callable[[Ints, Floats], Floats],
    count: int,
    uniform_share: float,
    rng: np.random.Generator,
) -> Drawn:
    """`count` rows: the smallest of independent continuous draws, and a share from among all the
    others, each as likely; `below(row, x)` is the probability that the row's draw is below x."""
    offered, by_lot = len(draw), math.ceil(uniform_share * count)
    if count >= offered:
        return everyone(offered)
    high = count - by_lot
    order = np.argpartition(draw, high)
    top, next_in_line = order[:high], draw[order[high]]
    lot = _others(offered, top, by_lot, rng)
    row = np.concatenate((top, lot))
    last_in = draw[top].max(initial=-np.inf)
    to_beat = np.where(np.arange(count) < high, next_in_line, last_in)
    first = below(row, to_beat) if high else np.zeros(count)
    probability = first + (1.0 - first) * by_lot / (offered - high)
    return row, np.clip(probability, SMALLEST, 1.0)


def kept(keep: Floats, count: int, rng: np.random.Generator) -> Drawn:
    """The first `count` rows that pass a coin with probability `keep` > 0 in the order they come;
    after the last row it goes on with those left over, which get a new coin.

    Takes the order of the rows for random, as a data loader's is.  Let the next in line be row q in
    pass j.  A row passes in an earlier one with probability 1 - (1 - keep)^(j - 1), else in that
    one with `keep`, and then has to stand before it: that are q of c places, or q + 1 for a row
    that now stands behind it, since without that row q is one more among the others.
    """
    offered = len(keep)
    if count >= offered:
        return everyone(offered)
    passed = rng.geometric(keep)
    arrival = passed + np.arange(offered) / offered
    order = np.argpartition(arrival, count)
    row, following = order[:count], int(order[count])
    row = row[np.argsort(arrival[row])]
    missed = (1.0 - keep[row]) ** float(passed[following] - 1)
    places = following + (row > following)
    return row, np.clip(1.0 - missed + missed * keep[row] * places / offered, SMALLEST, 1.0)


def everyone(offered: int) -> Drawn:
    """All rows."""
    return np.arange(offered), np.ones(offered)


def in_order(offered: int, count: int) -> Drawn:
    """The first `count` rows, of an order that is taken for random."""
    row = np.arange(min(count, offered))
    return row, np.full(len(row), len(row) / max(offered, 1))


def _shuffled(values: Floats, rng: np.random.Generator) -> tuple[Floats, Callable[[Ints], Ints]]:
    """The values in a random order, and the rows of places in it.

    Of many values the order is that of the columns of a table with a random number of rows, begun
    at a random place: a permutation takes ten times as long.
    """
    count = len(values)
    if count <= SHUFFLED:
        order = rng.permutation(count)
        return values[order], lambda place: order[place]
    high = int(rng.integers(FEWEST_ROWS, count // FEWEST_ROWS))
    wide = count // high
    begin = int(rng.integers(count))
    turned = np.concatenate((values[begin:], values[:begin]))
    whole = high * wide
    turned[:whole] = turned[:whole].reshape(high, wide).T.ravel()

    def row_of(place: Ints) -> Ints:
        before = np.where(place < whole, (place % high) * wide + place // high, place)
        return np.asarray((before + begin) % count)

    return turned, row_of


def _hit(values: Floats, start: float, count: int) -> Ints:
    """(count,) places at which the running sum passes `count` marks at equal distances, the first
    after a share `start` of one.  Sums of blocks first: a running sum of all takes four times as
    long."""
    blocks = -(-len(values) // BLOCK)
    table = np.zeros((blocks, BLOCK), dtype=values.dtype)
    table.ravel()[: len(values)] = values
    sums = table.sum(axis=1, dtype=np.float64)
    passed = np.cumsum(sums)
    marks = (start + np.arange(count)) * (passed[-1] / max(count, 1))
    block = np.minimum(np.searchsorted(passed, marks, side="right"), blocks - 1)
    within = np.cumsum(table[block], axis=1, dtype=np.float64)
    place = (within <= (marks - (passed - sums)[block])[:, None]).sum(axis=1)
    return np.asarray(block * BLOCK + np.minimum(place, BLOCK - 1))


def _scale(weight: Floats, count: int) -> tuple[float, Ints]:
    """a, and the rows for which min(1, a * weight) is 1, such that it sums up to `count`."""
    certain: Ints = np.zeros(0, dtype=np.int64)
    total = float(weight.sum(dtype=np.float64))
    while True:
        rest = total - float(weight[certain].sum(dtype=np.float64))
        scale = (count - len(certain)) / rest if rest > 0.0 else math.inf
        found = np.flatnonzero(weight >= 1.0 / scale)
        if len(found) <= len(certain) or len(found) >= count:
            return scale, found if len(found) <= count else certain
        certain = found


def _others(offered: int, taken: Ints, count: int, rng: np.random.Generator) -> Ints:
    if not count:
        return np.zeros(0, dtype=np.int64)
    free = np.ones(offered, dtype=np.bool_)
    free[taken] = False
    return np.asarray(rng.choice(np.flatnonzero(free), count, replace=False))
