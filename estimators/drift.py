"""Whether what was learned still holds: two detectors on standardised surprises, one on the policy.

By source ("length", "success"), every group's surprise is clipped to `CLIP` deviations, so that no
heavy tail looks like a change, and shown to

- ADWIN (Bifet & Gavalda 2007; river's): a window of recent surprises that is cut where the means of
  its two parts differ too much.  Slow and sure: a cut is an *alarm*, and little is worth keeping;
- a two-sided CUSUM (Page 1954): sums of what lies beyond `ALLOWANCE`, one per direction, never
  below 0.  Fast and less sure: above `THRESHOLD` it is *doubt*, and begins anew.

A third source, "kl", is told by the trainer: when the weights changed and log(KL) lies `KL_LIMIT`
deviations above its own fading history, the policy has leapt, and everything learned from its
samples is in doubt: "kl" itself and every other source.

`forecast` reports the worst since the last forecast, and so each alarm once: keep is `ALARM_KEEP`,
`DOUBT_KEEP` or 1.

ADWIN's own state cannot be written down.  It is a function of what it was shown, so that is kept:
everything since the last alarm, at most `LONGEST` surprises, rounded to thousandths.  When there
are more, a new ADWIN is shown the latest half (what it says of them again is not reported).  So a
loaded state goes on exactly as the one it was taken from would have.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from steersman.estimators.contract import DriftEstimator, State
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.forecast import DriftForecast
from steersman.estimators.observation import Floats, Observation

CLIP = 2.0
"""Deviations; of t4 surprises 6 % are clipped, and a shift of half a deviation stays .44."""
DELTA, CLOCK = 0.005, 8
"""ADWIN's risk per cut, and every how many surprises it looks.  On t4 surprises: .005 false alarms
per 3,000 groups and a delay of 90 groups at a shift of half a deviation; with river's own .002 and
32 the delay is 123, or 136 unclipped, and longer after a short history."""
ALLOWANCE, THRESHOLD = 0.3, 12.0
"""Deviations: half the smallest shift worth a doubt (.5, clipped), rounded up because surprises are
alike within a step; at the threshold .07 false doubts per 3,000 groups, delay 59 groups at .5."""
LONGEST = 2000
"""Surprises kept by source; 1,000 before a shift are as good a reference as any number."""
KL_MEMORY, KL_WARM_UP = 20, 5
"""Weight versions whose KL is remembered, and those needed before any is called large."""
KL_LIMIT, KL_LEAST_DEVIATION = 4.0, 0.25
"""Deviations of log KL, and the least one assumed: a rise below e = exp(4 * .25) is never news."""
KL = "kl"


class _Adwin(Protocol):
    @property
    def drift_detected(self) -> bool: ...

    def update(self, x: float) -> object: ...


def _adwin() -> _Adwin:
    from river.drift import ADWIN  # costs most of a second: only who builds the estimator pays

    detector: _Adwin = ADWIN(delta=DELTA, clock=CLOCK)  # type: ignore[no-untyped-call]
    return detector


@dataclass
class _Watch:
    """Both detectors of one source."""

    shown: list[float] = field(default_factory=list)
    """Surprises since the last alarm: what the ADWIN is a function of."""
    up: float = 0.0
    down: float = 0.0
    """CUSUM of either direction."""
    alarms: int = 0
    alarmed: bool = False
    """Since the last forecast; so is the next one."""
    doubted: bool = False

    def __post_init__(self) -> None:
        self._adwin = _adwin()
        for surprise in self.shown:
            self._adwin.update(surprise)

    def see(self, surprise: float) -> None:
        """One more group, clipped."""
        self.up = max(0.0, self.up + surprise - ALLOWANCE)
        self.down = max(0.0, self.down - surprise - ALLOWANCE)
        if max(self.up, self.down) > THRESHOLD:
            self.up = self.down = 0.0
            self.doubted = True
        self._adwin.update(surprise)
        self.shown.append(surprise)
        if self._adwin.drift_detected:
            self.alarms += 1
            self.alarmed = True
            self.up = self.down = 0.0
            self._show_anew([])
        elif len(self.shown) > LONGEST:
            self._show_anew(self.shown[-LONGEST // 2 :])

    def _show_anew(self, surprises: list[float]) -> None:
        self.shown, self._adwin = surprises, _adwin()
        for surprise in surprises:
            self._adwin.update(surprise)


@dataclass
class AdaptiveWindows:
    """The estimator of the module's docstring."""

    alarm_keep: float = 0.2
    """Share of the evidence worth keeping after an alarm."""
    doubt_keep: float = 0.5
    """The same after a doubt."""

    _watches: dict[str, _Watch] = field(default_factory=dict, init=False)
    _log_kl: deque[float] = field(default_factory=lambda: deque(maxlen=KL_MEMORY), init=False)
    _version: int | None = field(default=None, init=False)
    _leaps: int = field(default=0, init=False)
    _leapt: bool = field(default=False, init=False)
    """Since the last forecast."""

    def __post_init__(self) -> None:
        if not 0 <= self.alarm_keep <= self.doubt_keep <= 1:
            raise InvalidInputError(
                f"alarm_keep is {self.alarm_keep}, doubt_keep is {self.doubt_keep}; "
                "valid: 0 <= alarm_keep <= doubt_keep <= 1"
            )
        _adwin()  # the import is paid here, not in the first decision that has surprises

    def observe(self, observation: Observation) -> None:
        """Take the KL of new weights, if the trainer told it."""
        trainer = observation.trainer
        changed = self._version is not None and trainer.weight_version != self._version
        self._version = trainer.weight_version
        kl = trainer.policy_kl
        if not changed or kl is None or not (math.isfinite(kl) and kl > 0):
            return
        log_kl, past = math.log(kl), np.array(self._log_kl)
        self._log_kl.append(log_kl)
        if len(past) >= KL_WARM_UP:
            deviation = max(float(past.std()), KL_LEAST_DEVIATION)
            if log_kl > past.mean() + KL_LIMIT * deviation:
                self._leaps += 1
                self._leapt = True

    def feed(self, source: str, surprises: Floats) -> None:
        """(m,) standardised innovations of one source, in order; those not finite are left out."""
        if source == KL:
            raise InvalidInputError(f"the source {KL!r} is taken from the trainer, not fed")
        watch = self._watches.setdefault(source, _Watch())
        finite = surprises[np.isfinite(surprises)]
        for surprise in np.round(np.clip(finite, -CLIP, CLIP), 3).tolist():
            watch.see(surprise)

    def forecast(self, observation: Observation) -> DriftForecast:
        """The worst of each source since the last forecast, and "kl"."""
        keep = dict.fromkeys((KL, *self._watches), self.doubt_keep if self._leapt else 1.0)
        for source, watch in self._watches.items():
            if watch.alarmed:
                keep[source] = self.alarm_keep
            elif watch.doubted:
                keep[source] = self.doubt_keep
            watch.alarmed = watch.doubted = False
        self._leapt = False
        alarms = {source: watch.alarms for source, watch in self._watches.items()}
        return DriftForecast(keep, {KL: self._leaps, **alarms})

    def reset_on_drift(self, keep: float) -> None:
        """Nothing: the detectors began anew with the alarm, and doubt is not evidence."""

    def health(self) -> Mapping[str, float]:
        """By source: mean of the clipped surprises since the last alarm (0 is good)."""
        return {
            f"{source}_surprise_mean": float(np.mean(watch.shown)) if watch.shown else math.nan
            for source, watch in self._watches.items()
        }

    def state_dict(self) -> State:
        """What the detectors were shown, and what is not reported yet."""
        return {
            "watches": {source: asdict(watch) for source, watch in self._watches.items()},
            "log_kl": list(self._log_kl),
            "version": self._version,
            "leaps": self._leaps,
            "leapt": self._leapt,
        }

    def load_state_dict(self, state: State) -> None:
        """Replace what was learned; the ADWINs are shown again what they had been shown."""
        self._watches = {source: _Watch(**watch) for source, watch in state["watches"].items()}
        self._log_kl = deque(state["log_kl"], maxlen=KL_MEMORY)
        self._version, self._leaps = state["version"], state["leaps"]
        self._leapt = state["leapt"]


PLUGIN: type[DriftEstimator] = AdaptiveWindows
