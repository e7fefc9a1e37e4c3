"""Who takes part: every policy that this project brings, or those that are named.

An entry is a policy in an otherwise default stack.  It takes part in the workloads of its kind: a
rule about drafts needs engines that can draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from steersman.controller.plugins import load, names
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.contract import Oversampling, Policy

SECTIONS = {
    "placement": "policies.placement",
    "prompts": "policies.prompts",
    "stopping": "policies.stopping",
    "speculation": "policies.speculation",
}
"""What a policy decides, and where such policies are found."""
DEFAULTS = {
    "placement": "sticky_least_inflight",
    "prompts": "uniform",
    "stopping": "never",
    "speculation": "unchanged",
}
"""What a policy of each kind is compared with."""


@dataclass(frozen=True)
class Entry:
    """One policy."""

    section: str
    """Key of `SECTIONS`."""
    name: str
    correctness: CorrectnessClass
    oversamples: bool
    """Its trainer asks for more groups than a batch needs."""

    @property
    def is_default(self) -> bool:
        """The others of its kind are compared with it."""
        return DEFAULTS[self.section] == self.name


def entries(chosen: Sequence[str] = ()) -> list[Entry]:
    """Those of the names, or all; the default of each kind that occurs comes first."""
    known = {name: section for section in DEFAULTS for name in names(SECTIONS[section])}
    outside = {name: "placement" for name in chosen if "." in name or ":" in name}
    for name in chosen:
        if name not in known and name not in outside:
            raise UnknownNameError("policy", name, known)
    takes = [*chosen] or [*known]
    sections = {**known, **outside}
    wanted = list(dict.fromkeys((*(DEFAULTS[sections[name]] for name in takes), *takes)))
    return [entry(sections[name], name) for name in wanted]


def entry(section: str, name: str) -> Entry:
    """One of them."""
    policy = cast(type[Policy], load(SECTIONS[section], name))
    if not isinstance(getattr(policy, "correctness", None), CorrectnessClass):
        raise InvalidInputError(
            f"policy {name!r} does not say what it does to samples; valid: a class variable "
            "`correctness` that is a CorrectnessClass"
        )
    return Entry(
        section=section,
        name=name,
        correctness=policy.correctness,
        oversamples=section == "placement" and issubclass(policy, Oversampling),
    )
