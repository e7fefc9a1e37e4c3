"""What the checks before a run have found, and how it is told."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from steersman.controller.attach.trainers import Ability, Trainer, Verdict, Works


class State(StrEnum):
    """How one check came out."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as one would wish."""
    FAIL = "fail"
    """The run would fail, or would not be steered."""
    SKIP = "skip"
    """It could not be looked at, or was not asked for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    check: str
    state: State
    words: str


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one trainer, and what they mean for what the controller may do."""

    trainer: Trainer
    findings: list[Finding]
    verdicts: dict[Ability, Verdict]

    @property
    def good(self) -> bool:
        """Nothing failed, and something will work."""
        failed = any(finding.state is State.FAIL for finding in self.findings)
        return not failed and any(v.works is not Works.NO for v in self.verdicts.values())

    def plain(self) -> dict[str, Any]:
        """For machines."""
        return {
            "trainer": self.trainer.name,
            "good": self.good,
            "findings": [
                {"check": f.check, "state": f.state.value, "words": f.words} for f in self.findings
            ],
            "works": {
                ability.value: {"works": verdict.works.value, "why": verdict.why}
                for ability, verdict in self.verdicts.items()
            },
            "how": self.trainer.how,
            "cannot": self.trainer.cannot,
        }

    def lines(self) -> list[str]:
        """For a person: one line a check, one a verdict."""
        trainer = self.trainer
        wide = max(len(name) for name in [*Ability, *(f.check for f in self.findings)])
        told = [f"{trainer.title}: {trainer.how}"]
        told += [f"  {f.state:<6}  {f.check:<{wide}}  {f.words}" for f in self.findings]
        for ability, verdict in self.verdicts.items():
            told.append(f"  {verdict.works:<6}  {ability:<{wide}}  {verdict.why}".rstrip())
        if trainer.normaliser:
            told.append(f"Advantages are divided by: {trainer.normaliser}.")
        if trainer.cannot:
            told.append(f"Not possible without a patch: {trainer.cannot}.")
        told.append(
            "It will work." if self.good else "It will not work as it is: see the lines above."
        )
        return told
