"""Stacks of mechanisms that the learner over steps chooses from: what a step may do at all.

Each is what the planner finds best with some mechanisms left out; the default is the trainer's own
rule.  They differ in what they rely on: admission rests on who will be long, moving on who has
proved long and on what moving costs, and either may be wrong where the other is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """What may be done in a step."""

    admit: bool
    """Choose when and where what waits begins; else all at once, fewest in flight."""
    move: bool
    """Move, put off, cancel what runs."""


DEFAULT, FULL = "default", "full"
ARMS: Mapping[str, Arm] = {
    DEFAULT: Arm(admit=False, move=False),
    FULL: Arm(admit=True, move=True),
    "admit": Arm(admit=True, move=False),
    "move": Arm(admit=False, move=True),
}
PROMISED: Mapping[str, float] = {FULL: -0.04, "admit": -0.02, "move": -0.02}
"""Log cost less the default's, before data: what simulations of many workloads say, made small."""
DOUBT: Mapping[str, float] = {FULL: 0.04, "admit": 0.04, "move": 0.04}
"""Deviations of that, alike: with .01 for those that leave a mechanism out, a planner that loses
5 % is given up after 145 steps and not 47, as the loss is then put down to the reference."""
LEVEL_DOUBT = 0.3
"""Deviation of the default's log cost: the reference is good to 5 % where the model of `_ends`
holds, and knows little of tools and of thrashing caches."""
QUIET_STEPS = 20
"""At the start without looks at other arms: the default may cost several times what is planned, and
a run of ten steps could not make use of what a look tells."""
