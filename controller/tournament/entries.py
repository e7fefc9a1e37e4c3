"""Who takes part: every policy that this project brings, or those that are named.

An entry is a policy in an otherwise default stack.  It takes part in the workloads of its kind: a
rule about drafts needs engines that can draft.  What else differs from that stack is part of its
name (`spelling`), so that one policy can meet itself with another option or another estimator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from steersman.controller.config import KINDS, Config, load_config
from steersman.controller.plugins import build, load, names
from steersman.controller.tournament.spelling import Spelling, policy_of
from steersman.estimators.errors import InvalidInputError, UnknownNameError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.policies.contract import Graded, Oversampling, Policy

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
    """One policy, with what differs from the default stack."""

    section: str
    """Key of `SECTIONS`."""
    name: str
    """As it is written, in one spelling for all ways to write it: its name in tables and stores."""
    correctness: CorrectnessClass
    """The worst of its policies."""
    oversamples: bool
    """Its trainer asks for more groups than a batch needs."""
    policy: str
    """Of the section."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """That the policy itself is given."""
    overrides: tuple[str, ...] = ()
    """All that differs, as overrides of the configuration."""

    @property
    def is_default(self) -> bool:
        """The others of its kind are compared with it."""
        return DEFAULTS[self.section] == self.name

    def config(self, of_workload: Sequence[str] = ()) -> Config:
        """Its stack, on a workload with such overrides; its own are stronger."""
        stack = {"placement": DEFAULTS["placement"], self.section: self.policy}
        stack.pop("prompts", None)  # they are asked by the trainer, not by the controller
        named = [f"{section}.name={name}" for section, name in stack.items()]
        return load_config(None, [*named, *of_workload, *self.overrides], environ={})


def entries(chosen: Sequence[str] = ()) -> list[Entry]:
    """Those of the names, or all; the default of each kind that occurs comes first."""
    known = {name: section for section in DEFAULTS for name in names(SECTIONS[section])}
    made = [entry(_section(text, known), text) for text in chosen or known]
    defaults = dict.fromkeys(one.section for one in made)
    made = [*(entry(section, DEFAULTS[section]) for section in defaults), *made]
    return list({(one.section, one.name): one for one in reversed(made)}.values())[::-1]


def _section(text: str, known: Mapping[str, str]) -> str:
    name = policy_of(text)
    if name not in known and not ("." in name or ":" in name):
        raise UnknownNameError("policy", name, known)
    return known.get(name, "placement")


def entry(section: str, text: str) -> Entry:
    """One of them, from its name.

    Raises `InvalidInputError` if one of its policies does not say what it does to samples, or does
    not take such options.
    """
    name = policy_of(text)
    spelling = Spelling.of(text, section, load(SECTIONS[section], name))
    one = Entry(
        section=section,
        name=spelling.label,
        correctness=CorrectnessClass.EXACT,  # until its options have been checked
        oversamples=False,
        policy=name,
        options=spelling.options,
        overrides=spelling.overrides,
    )
    config = one.config()
    _check(one, config, spelling.parts)
    stack = {s: getattr(config, s) for s in SECTIONS if s in KINDS}
    placement = load(SECTIONS["placement"], stack["placement"].name)
    classes = [_correctness(s, part.name, part.options) for s, part in stack.items()]
    return replace(
        one,
        correctness=max(_correctness(section, name, spelling.options), *classes),
        oversamples=section != "prompts" and issubclass(placement, Oversampling),
    )


def _check(one: Entry, config: Config, parts: Sequence[str]) -> None:
    """Build what was given options, as the configuration's parts are built, and forget it."""
    if one.options:
        build(SECTIONS[one.section], one.policy, one.options)
    for part in parts:
        chosen = getattr(config, part)
        build(KINDS[part], chosen.name, chosen.options)


def _correctness(section: str, name: str, options: Mapping[str, Any]) -> CorrectnessClass:
    policy = cast(type[Policy], load(SECTIONS[section], name))
    if not isinstance(getattr(policy, "correctness", None), CorrectnessClass):
        raise InvalidInputError(
            f"policy {name!r} does not say what it does to samples; valid: a class variable "
            "`correctness` that is a CorrectnessClass"
        )
    return policy.correctness_with(options) if issubclass(policy, Graded) else policy.correctness
