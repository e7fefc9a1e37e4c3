"""The options of a policy that may be searched, and Optuna's search over them.

The search is the tree-structured Parzen estimator (Bergstra et al. 2011), seeded: one seed and one
objective give one sequence of trials.
"""

from collections.abc import Callable, Mapping
from typing import Any

from steersman.controller import plugins
from steersman.controller.config import PartConfig
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.policies.contract import Range

KIND = "policies.placement"
DIGITS = 3
"""Significant digits of a value tried: more would be noise, and a person reads the file."""

Options = dict[str, Any]
Ranges = Mapping[str, Range]


def ranges_of(part: PartConfig) -> Ranges:
    """What the policy declares, without what the configuration sets by hand."""
    declared = _declared(part.name)
    if not declared:
        tunable = [name for name in plugins.names(KIND) if _declared(name)]
        raise InvalidInputError(
            f"the policy {part.name!r} declares no option to tune (TUNABLE); "
            f"valid: {', '.join(tunable)}"
        )
    free = {option: r for option, r in declared.items() if option not in part.options}
    if not free:
        raise InvalidInputError(f"--set fixes every option of {part.name} that could be tuned")
    return free


def _declared(name: str) -> Ranges:
    return getattr(plugins.load(KIND, name), "TUNABLE", {})


def defaults_of(part: PartConfig, ranges: Ranges) -> Options:
    """The policy's own values of the options in `ranges`."""
    policy = plugins.build(KIND, part.name, part.options)
    values: Options = {}
    for option, valid in ranges.items():
        if not hasattr(policy, option):
            raise UnknownNameError(f"option in TUNABLE of {part.name}", option, vars(policy))
        value = getattr(policy, option)
        if value not in valid:
            raise InvalidInputError(
                f"the default {option}={value} of {part.name} is outside its own range; "
                f"valid: {valid.low:g} to {valid.high:g}"
            )
        values[option] = value
    return values


def searched(
    ranges: Ranges, first: Options, trials: int, seed: int, objective: Callable[[Options], float]
) -> None:
    """Call the objective, to be minimised, with `first` and then with what looks promising."""
    try:
        import optuna
    except ImportError as error:
        raise InvalidInputError(
            "tuning needs Optuna, which is not installed: pip install 'steersman[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(first)
    for number in range(trials):
        trial = study.ask()
        tried = {
            option: trial.suggest_int(option, int(r.low), int(r.high), log=r.log)
            if r.integer
            else _rounded(trial.suggest_float(option, r.low, r.high, log=r.log), r)
            for option, r in ranges.items()
        }
        study.tell(trial, objective(tried if number else first))


def _rounded(value: float, valid: Range) -> float:
    return min(max(float(f"{value:.{DIGITS}g}"), valid.low), valid.high)
