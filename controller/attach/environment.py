"""Checks of the environment that a trainer runs in: its version, its hooks, and ours beside it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from steersman.controller.attach import looking
from steersman.controller.attach.findings import Finding, State
from steersman.controller.attach.trainers import Link, Trainer
from steersman.estimators.errors import InvalidInputError

PATIENCE_S = 60.0
"""For an interpreter that begins on a slow disk."""


def environment_findings(trainer: Trainer, python: str) -> list[Finding]:
    """Of this environment, or of the one that the interpreter `python` belongs to."""
    if trainer.link is Link.NOWHERE:
        return []
    found = _look(trainer, python)
    findings = [_version(trainer, found), *_hooks(trainer, found)]
    if trainer.link is Link.INSIDE:
        findings.append(_ourselves(trainer, found))
    return findings


def _look(trainer: Trainer, python: str) -> dict[str, Any]:
    question = {
        "package": trainer.package,
        "module": trainer.module,
        "hooks": [[hook.path, hook.text] for hook in trainer.hooks],
    }
    if not python:
        return looking.look(question)
    command = [python, str(Path(looking.__file__)), json.dumps(question)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        found = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise InvalidInputError(f"--python {python}: {why[0]}") from None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        why_not = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidInputError(f"--python {python}: {why_not}; valid: a Python") from None
    assert isinstance(found, dict)
    return found


def _version(trainer: Trainer, found: dict[str, Any]) -> Finding:
    version, python = found["version"], found["python"]
    where = f"Python {python}"
    if version is None and found["folder"] is None:
        words = f"{trainer.package} is not installed here ({where}); --python names another one"
        return Finding("version", State.FAIL, words)
    if version is None:
        words = f"no version is told by {found['folder']} ({where}); tested: {trainer.tested}"
        return Finding("version", State.WARN, words)
    told = f"{trainer.package} {version} ({where})"
    if trainer.least and numbers(version) < numbers(trainer.least):
        return Finding("version", State.FAIL, f"{told}; it must be {trainer.least} or newer")
    if trainer.python and numbers(python) < numbers(trainer.python):
        return Finding("version", State.FAIL, f"{told}; it needs Python {trainer.python}")
    if version != trainer.tested:
        return Finding("version", State.WARN, f"{told}; tested: {trainer.tested}")
    return Finding("version", State.OK, f"{told}, the version that was tested")


def _hooks(trainer: Trainer, found: dict[str, Any]) -> list[Finding]:
    if found["folder"] is None:
        return []
    missing = [f"{text!r} in {path}" for path, text in found["missing"]]
    if not missing:
        words = f"all {len(trainer.hooks)} places that it is attached by are in its source"
        return [Finding("hooks", State.OK, words)]
    words = f"not in the source at {found['folder']}: {'; '.join(missing)}"
    if not trainer.on_registry and len(missing) == len(trainer.hooks):
        words += f"; a package of that name may be another one than {trainer.title}"
    return [Finding("hooks", State.FAIL, words)]


def _ourselves(trainer: Trainer, found: dict[str, Any]) -> Finding:
    if trainer.python and numbers(trainer.python) >= (3, 13):
        words = "not needed there: the file of the example stands alone"
        return Finding("steersman", State.OK, words)
    if found["steersman"] is None:
        words = "it is not installed beside the trainer, whose processes must load it"
        return Finding("steersman", State.FAIL, words)
    return Finding("steersman", State.OK, f"{found['steersman']} is installed beside the trainer")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at the end: 0.10.0rc1 is (0, 10)."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)
