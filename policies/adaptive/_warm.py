"""Compile what is compiled before the first decision, whose time is limited.

Once per installation it takes some ten seconds; afterwards the compiled code is read from a cache.
"""

from functools import cache

import numpy as np

from steersman.policies.adaptive._ends import Model, Rows, end_s, loads
from steersman.policies.adaptive._filling import by_cuts, by_end, by_fewest, place_all
from steersman.policies.adaptive._moving import best_move


@cache
def warm() -> None:
    """Run every compiled function once, on two trajectories and two replicas."""
    some, both = np.ones(2), np.ones(2, dtype=np.bool_)
    index = np.arange(2)
    model = Model(some, some, some, some, 8 * some, 1e6 * some, both, both, index)
    length = np.ones((2, 2))
    rows = Rows(length, length.copy(), some, some, index, 1.0)
    nowhere = np.full(2, -1)
    load = loads(rows, nowhere, 2, 2)
    target = by_fewest(model, rows, load.copy(), index)
    by_end(model, rows, load.copy(), index, index + 2, some.copy(), some)
    by_cuts(model, rows, load.copy(), index, index, index + 2)
    place_all(model, rows, load, index, target)
    end_s(model, load)
    best_move(model, rows, load, index[:1], 0, index[1:], some, some)
