"""The configuration file that `tune` writes: what was replayed, and where that is from."""

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from steersman.controller._layers import assignments
from steersman.controller.config import Config, load_config
from steersman.controller.replay.study import Study
from steersman.controller.replay.summary import Interval
from steersman.controller.replay.tuning import Settings, Tuning
from steersman.estimators.errors import InvalidInputError

SUFFIX = ".toml"


def check_target(path: Path) -> None:
    """Refuse what could not be written, before minutes are spent on it."""
    if path.suffix != SUFFIX:
        raise InvalidInputError(f"{path}: the configuration to write ends in {SUFFIX}")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot be written: no such folder, or it is one")


def write_config(path: Path, source: Path, study: Study, settings: Settings, found: Tuning) -> None:
    """Write the file whole or not at all; what it holds loads as what was replayed."""
    text = "\n".join(f"# {line}".rstrip() for line in _header(source, study, settings, found))
    text += "\n\n" + "".join(f"{line}\n" for line in _assignments(study, found))
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            part = Path(folder) / f"part{SUFFIX}"
            part.write_text(text, encoding="utf-8")
            if load_config(part, environ={}) != found.config:
                raise InvalidInputError(f"{path}: a --set value has no form in TOML")
            part.replace(path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror}") from error


def _header(source: Path, study: Study, settings: Settings, found: Tuning) -> list[str]:
    tuned, which = found.tuned, "tuned" if found.verdict.holds else "default"
    return [
        f"Written by `steersman tune`: {which} options of {settings.policy}.",
        f"{found.verdict.sentence[0].upper()}{found.verdict.sentence[1:]}.",
        *(f"Warning: {warning}." for warning in found.verdict.warnings),
        "",
        f"Tier: {found.tier}.  These figures come from a simulated fleet; they are no promise for",
        "a real one.  Compare both there before you rely on them.",
        f"  file     {source.name}",
        f"  fleet    {study.plan.replicas} x {study.plan.profile.name}, "
        f"{study.plan.profile.max_num_seqs} slots each",
        f"  search   {settings.trials} trials, seed {study.seed}, on the first "
        f"{found.tuning_steps} steps; the last {found.held_out_steps} were held out",
        f"  tuned    {json.dumps(found.tuned_options)}",
        f"  default  {json.dumps(found.default_options)}",
        "Rollout seconds, and how they compare (90 % interval over steps; below 1 is faster):",
        f"  tuning steps (best of all trials, so it flatters): tuned {min(found.trials_s):.1f} s, "
        f"default {found.trials_s[0]:.1f} s",
        f"    tuned/default {shown(found.on_tuning_steps)}",
        f"  held-out steps: tuned {tuned.total_s:.1f} s, default {found.defaults.total_s:.1f} s, "
        f"{found.trainer.policy} {found.trainer.total_s:.1f} s",
        f"    tuned/default {shown(tuned.over_defaults)}",
        f"    tuned/{found.trainer.policy} {shown(tuned.over_trainer)}",
        f"    default/{found.trainer.policy} {shown(found.defaults.over_trainer)}",
    ]


def shown(ratio: Interval) -> str:
    """A ratio and its interval."""
    return f"{ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"


def _assignments(study: Study, found: Tuning) -> list[str]:
    """Lines of TOML with dotted keys: the placement, and what `--set` gave."""
    placement = found.config.placement
    values: dict[tuple[str, ...], Any] = {("placement", "name"): placement.name}
    values |= {("placement", "options", key): value for key, value in placement.options.items()}
    for given in assignments(None, study.overrides, {})[-1]:
        if given.keys[0] != "placement":
            values[given.keys] = _accepted(found.config, given.keys)
    return [
        f"{'.'.join(map(_key, keys))} = {json.dumps(value, ensure_ascii=False)}"
        for keys, value in values.items()
        if value is not None  # TOML has no word for it, and where it may be given it is the default
    ]


def _accepted(config: Config, keys: tuple[str, ...]) -> Any:
    """The value as the configuration read it: text may have become a number."""
    value = msgspec.to_builtins(config)
    for key in keys:
        value = value[key]
    return value


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else json.dumps(name)
