"""How far the logits of all prompts have moved together: the policy's skill, up to a constant.

The score of a group whose prompt was known before is s (k - n E p) / R, its information s^2 / R,
with s = n E[p(1-p)] and R = n E p (1 - E p) + n (n-1) Var p the variance of k.  They are summed
over one weight version; when the next begins, the level moves by e / (1 + 1 / (TRUST information)),
e = score / information, and by `LARGEST_MOVE` at most.  The gain is bounded and remembers nothing:
an adaptive (Kalman) one, fed with prompts that were selected by its own forecast, runs away.
"""

from dataclasses import dataclass

from steersman.estimators.observation import Floats

TRUST = 0.01
"""Variance of e (squared logit) at which half of it is believed; 128 groups of 16 give 0.01.  With
less of it, prompts that are revisited often take for their own what is common, and the level lags:
under greedy selection by 0.6 in 300 steps at half the gain, by 0.2 at this one."""
LARGEST_MOVE = 0.4
"""Per weight version: a collapse of 0.8 within one version is followed to less than 0.5."""


@dataclass
class CommonLevel:
    """The level and what the present weight version has shown so far."""

    level: float = 0.0
    score: float = 0.0
    information: float = 0.0

    @property
    def next(self) -> float:
        """The level once the present weight version is over."""
        if self.information <= 0.0:
            return self.level
        move = self.score / self.information / (1.0 + 1.0 / (TRUST * self.information))
        return self.level + min(max(move, -LARGEST_MOVE), LARGEST_MOVE)

    def advance(self) -> None:
        """The present weight version is over."""
        self.level, self.score, self.information = self.next, 0.0, 0.0

    def add(self, slope: Floats, excess: Floats, spread: Floats) -> None:
        """(m,) groups of known prompts: s, k - n E p and R."""
        self.score += float((slope * excess / spread).sum())
        self.information += float((slope**2 / spread).sum())
