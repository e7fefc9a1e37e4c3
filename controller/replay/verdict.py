"""Whether tuned options hold on steps they were not tuned on, in words."""

from dataclasses import dataclass, field

from steersman.controller.replay.summary import Interval

MUCH_SMALLER = 0.5
"""A held-out gain below this share of the tuning gain is called over-fit."""
FEW_STEPS = 5
"""With n held-out steps, chance alone puts the interval below 1 about once in 2^n."""


@dataclass(frozen=True)
class Verdict:
    """Which options to use, why, and what to beware of."""

    holds: bool
    """The tuned options are faster on the held-out steps, and the interval says so too."""
    sentence: str
    warnings: list[str] = field(default_factory=list)


def judge(tuning: Interval, held_out: Interval, steps: int) -> Verdict:
    """From the ratios tuned/default on both parts of a run; `steps` were held out."""
    if tuning.value >= 1.0:
        return Verdict(False, "no trial was faster than the defaults, which are kept")
    gains = (
        f"the tuned options save {1 - tuning.value:.1%} of the seconds of the steps they were "
        f"tuned on and {1 - held_out.value:.1%} of the held-out ones"
    )
    if held_out.high >= 1.0:
        what = "slower than" if held_out.low > 1.0 else "not told apart from"
        return Verdict(
            False,
            f"on the held-out steps the tuned options are {what} the defaults, which are kept",
            [f"over-fit: {gains} (the interval reaches {1 - held_out.high:.1%})"],
        )
    warnings = []
    if 1 - held_out.value < MUCH_SMALLER * (1 - tuning.value):
        warnings.append(f"over-fit: {gains}; expect the latter at best")
    if steps < FEW_STEPS:
        warnings.append(
            f"only {steps} steps were held out: chance alone puts such an interval below 1 about "
            f"once in {2**steps}; hold out {FEW_STEPS} or more"
        )
    return Verdict(True, "the tuned options hold on the held-out steps", warnings)
