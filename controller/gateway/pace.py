"""Which step the trainer is in, as far as a gateway can know.

A client may tell its step.  Where none ever does, a step begins with the first request after new
weights, or after nothing was in flight: a synchronous trainer sends a step's requests at once and
waits for all of them.
"""

from dataclasses import dataclass

from steersman.controller.trace import records
from steersman.estimators.observation import Normaliser, Objective, TrainerSignal


@dataclass(slots=True)
class Pace:
    """Step, weight version, and what the trainer waits for."""

    objective: Objective
    max_lag: int
    """As policies are told: 0 where nothing may be put off to a later step."""
    step: int = -1
    """-1: none has begun."""
    weight_version: int = 0
    started_s: float = 0.0
    _told: bool = False
    _fresh: bool = True
    """Nothing has come since new weights."""

    def arrives(self, now_s: float, idle: bool, told_step: int | None) -> bool:
        """A request comes; `idle`: nothing else is in flight.  True: it begins a step."""
        if told_step is not None:
            begins = told_step > self.step or not self._told
            self._told = True
            step = max(told_step, self.step)
        else:
            begins = not self._told and (self._fresh or idle)
            step = self.step + int(begins)
        self._fresh = False
        if begins:
            self.step, self.started_s = step, now_s
        return begins

    def begun(self) -> records.StepStarted:
        """The present step's beginning, for the trace."""
        return records.StepStarted(
            t_s=self.started_s,
            step=self.step,
            weight_version=self.weight_version,
            objective=self.objective.value,
            groups=0,
            max_lag=self.max_lag,
        )

    def weights_changed(self, weight_version: int | None) -> int:
        """New weights are on the fleet; without a number the version counts on."""
        newer = self.weight_version + 1 if weight_version is None else weight_version
        self.weight_version, self._fresh = newer, True
        return newer

    def signal(self, normaliser: Normaliser) -> TrainerSignal:
        """What policies are told."""
        return TrainerSignal(
            step=max(self.step, 0),
            weight_version=self.weight_version,
            max_lag=self.max_lag,
            objective=self.objective,
            step_started_s=self.started_s,
            normaliser=normaliser,
        )
