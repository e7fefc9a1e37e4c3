"""Prompts whose groups are likely to teach, by a belief that widens while the policy drifts on.

*Which.*  A prompt is drawn with a probability in proportion to

    chance^sharpness * waited,

where chance is the probability that its logit, of which the request tells a Gaussian belief, lies
where a group is worth at least `WORTHWHILE` of the best (`_belief`; the normaliser decides where).
That is Thompson sampling without its noise: the share of draws from the belief that would be worth
a group.  A prompt that was given up returns by itself, since its belief widens with every weight
version; `waited` (steps since it was rolled out) turns prompts that are as good as each other.
`explore` = "ucb" takes the chance for the logit of the belief that is nearest to 0 within one
deviation, which looks at uncertain prompts sooner.  A share `probe_share` of every draw falls on
all candidates alike.  The draw is systematic sampling (`_inclusion.weighted`), so that the
inclusion probability is known exactly, and is at least probe_share * groups / candidates.

*Starvation.*  With N candidates and B groups a step, an epoch is N / B steps.  Who has waited for
half of `starve_epochs` epochs is due; of the due, those that have waited longest are taken first,
with probability 1, 2 / `starve_epochs` of the batch on average, the whole parts of that sum.  All N
are through then after half of `starve_epochs` epochs more: no prompt waits longer than
`starve_epochs` epochs, as long as every step asks for B of N.

*How many samples.*  A group that is not likely to differ (probability below `commit_from`) begins
with `probe_samples`.  If they differ it gets the rest.  If all are equal, a coin decides with the
probability (at least `least_keep`) of

    chance that it will differ / (share of the group that is left * that of a prompt drawn),

that is, what the rest of this group brings over what as many samples of others would; the former
corrected by how often such groups have come to differ of late, over how often they should have.  A
group that is spared weighs the inverse of that; one that is not is dropped.  Weighted sums over
groups are those of complete groups: nothing is biased by the probe.

*Which count.*  Groups whose rewards differ; others have no advantage and are dropped.  Each round
asks for as many as bring what lacks by what is believed of them.  `batch` = "full" goes on until
the batch has the groups that the trainer wants; "as_uniform" until it has as many as would have
differed of that number drawn alike, which costs less and is the batch that the trainer's learning
rate was made for.

`sizes` = "allotted" and `cap_factor` size groups and cut answers by value per token (`_allotment`).

Sums of 1 / inclusion probability * 1 / keep probability * anything of a group are unbiased for the
sum over all candidates, in the first round of a step; over several rounds, and divided by their
mean, they are consistent.  Correctness class: modified (the distribution of prompts; the weight is
known).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Floats, Ints, Normaliser
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts import _allotment
from steersman.policies.prompts._belief import (
    chance_informative,
    chance_within,
    edge,
    still_informative,
)
from steersman.policies.prompts._inclusion import check_share, weighted
from steersman.policies.prompts._memory import check_rewards

WORTHWHILE = {Normaliser.STD: 0.9, Normaliser.NONE: 0.64}
"""Value, over the best, from which a group is worth it: 16 samples differ from p = 0.13 on, 8 from
0.25 on; undivided, it counts from p = 0.2 on, where the variance is 0.64 of the largest."""
SAMPLED = 2048
"""Candidates by which those of a million are described."""
UNTHROWN = (1.0, 0.0)
"""What `_kept` would hold of a group that no coin was thrown for."""
NEVER_NONE = 1e-6
"""Least `probe_share`: no probability is 0."""
MOST_OPEN = 65_536
"""Groups that may be extended; a trainer that loses groups loses the oldest of them here."""
FIRST_HOPES, FIRST_TRUST = 2.0, 0.1
"""Of what the belief says of groups whose first samples were equal, what holds: before a coin has
kept some, little, since before data the belief is wide, and most such prompts are hopeless."""
REMEMBERED = 0.98
"""Of that record, per group."""
LEAST_SHARE = 0.05
"""Of groups that are worth it: the least to reckon with."""


@dataclass
class PromptValue:
    """Defaults need no tuning."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED
    any_order: ClassVar[bool] = True

    explore: Literal["thompson", "ucb"] = "thompson"
    sharpness: float = 3.0
    """The larger, the fewer groups that teach nothing, and the longer the others are not seen."""
    probe_share: float = 0.05
    """Share of every draw that falls on all candidates alike."""
    starve_epochs: float = 20.0
    """Epochs within which every prompt is rolled out, 2 or more; 0: there is no bound."""
    probe_samples: int = 4
    """Of a group that is not likely to be worth it; 0: all groups begin whole."""
    commit_from: float = 0.8
    """Expected value from which a group begins whole."""
    least_keep: float = 0.1
    """Probability with which a group whose first samples were equal goes on, at least."""
    batch: Literal["as_uniform", "full"] = "as_uniform"
    max_rounds: int = 10
    """Rounds of a batch; 0: any number."""
    sizes: Literal["fixed", "allotted"] = "fixed"
    """The trainer's group size for all, or samples by what they bring for what they cost
    (`_allotment`), as many on average."""
    cap_factor: float = 0.0
    """Token cap over a prompt's mean length, tighter where a token brings little (`_allotment`); 0:
    the trainer's cap.  A cap that cuts depends on lengths: correctness class empirical."""
    reward_low: float = 0.0
    reward_high: float = 1.0
    """Rewards that count as failed and as passed."""

    _wanted: int = field(default=0, init=False)
    """Groups that the trainer wanted when the batch began."""
    _enough: int = field(default=0, init=False)
    """Groups with which the batch is full."""
    _share: float = field(default=1.0, init=False)
    """Of prompts drawn in this round whose groups are expected to be informative."""
    _open: dict[int, tuple[int, float, float]] = field(default_factory=dict, init=False)
    """By prompt key: size of the whole group, belief when it was chosen."""
    _kept: dict[int, tuple[float, float]] = field(default_factory=dict, init=False)
    """By group: probability with which its coin kept it, 0 if it did not, and with which the belief
    said that it would become informative."""
    _hoped: float = field(default=FIRST_HOPES, init=False)
    _came: float = field(default=FIRST_HOPES * FIRST_TRUST, init=False)
    """Of groups that a coin kept, the latest counting most: how many should have become
    informative, and how many did."""

    def __post_init__(self) -> None:
        check_share(self.probe_share)
        check_rewards(self.reward_low, self.reward_high)
        valid = {
            "sharpness": self.sharpness > 0.0,
            "starve_epochs": self.starve_epochs == 0.0 or self.starve_epochs >= 2.0,
            "probe_samples": self.probe_samples == 0 or self.probe_samples >= 2,
            "commit_from": 0.0 <= self.commit_from <= 1.0,
            "least_keep": 0.0 < self.least_keep <= 1.0,
            "max_rounds": self.max_rounds >= 0,
            "cap_factor": self.cap_factor == 0.0 or self.cap_factor >= 1.0,
        }
        for name, good in valid.items():
            if not good:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, which is out of range")

    @classmethod
    def correctness_with(cls, options: Mapping[str, Any]) -> CorrectnessClass:
        """Caps that cut favour short answers."""
        return CorrectnessClass.EMPIRICAL if options.get("cap_factor") else cls.correctness

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """Draw prompts for what the batch lacks."""
        size = self._sizes(request)
        count = self._count(request, size)
        due = self._due(request, count)
        row, probability = due, np.ones(len(due))
        if len(due) < count:
            others = np.ones(len(size), dtype=np.bool_)
            others[due] = False
            left = np.flatnonzero(others) if len(due) else np.arange(len(size))
            drawn, p = weighted(size[left] if len(due) else size, count - len(due), rng)
            row, probability = np.concatenate((due, left[drawn])), np.concatenate((probability, p))
        return PromptChoice(
            row=row,
            size=self._begin(request, row),
            max_new_tokens=self._caps(request, row),
            inclusion_probability=probability,
            reason=self._reason(request, count, len(due)),
        )

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """The rest of groups whose samples differ, or that their coin keeps."""
        known = [self._open.get(key) for key in groups.prompt_key.tolist()]
        size = groups.size
        whole = np.array([size[g] if each is None else each[0] for g, each in enumerate(known)],
                         dtype=np.int64)  # fmt: skip
        left = np.maximum(whole - size, 0)
        ids = groups.group_id.tolist()
        new = [g for g in np.flatnonzero((left > 0) & ~groups.informative).tolist()
               if ids[g] not in self._kept]  # fmt: skip
        if new:
            self._throw(groups, np.array(new), left[new], rng)
        dropped = np.array([self._kept.get(each, UNTHROWN)[0] == 0.0 for each in ids], np.bool_)
        return np.where(dropped, 0, left)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing: what is believed comes with the request."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """The groups whose rewards differ."""
        accepted = groups.informative | (groups.size == 1)
        kept = [self._judged(*each) for each in zip(groups.group_id.tolist(),
                groups.informative.tolist(), strict=True)]  # fmt: skip
        for key in groups.prompt_key.tolist():
            self._open.pop(key, None)
        weight = np.where(accepted, 1.0 / np.maximum(kept, self.least_keep), 0.0)
        train = accepted[groups.group_row]
        return Selection(accepted, train, correctness=self.correctness, weight=weight)

    def state_dict(self) -> dict[str, Any]:
        """The batch that is being filled, and groups that may be extended."""
        return {
            "wanted": self._wanted,
            "enough": self._enough,
            "share": self._share,
            "open": [[key, *told] for key, told in self._open.items()],
            "kept": [[group, *told] for group, told in self._kept.items()],
            "record": [self._hoped, self._came],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with them."""
        self._wanted, self._enough = int(state["wanted"]), int(state["enough"])
        self._share = float(state["share"])
        self._open = {int(key): (int(n), m, v) for key, n, m, v in state["open"]}
        self._kept = {int(group): (keep, becomes) for group, keep, becomes in state["kept"]}
        self._hoped, self._came = state["record"]

    def _sizes(self, request: PromptRequest) -> Floats:
        """(c,) what the inclusion probabilities are in proportion to; sums up to 1."""
        offered = request.candidates
        if not len(offered):
            return np.zeros(0)
        distance = edge(WORTHWHILE[request.normaliser], request.group_size, request.normaliser)
        mean, variance = offered.logit_mean, offered.logit_variance
        if self.explore == "ucb":
            mean = np.maximum(np.abs(mean) - np.sqrt(variance), 0.0)
        size = chance_within(mean, variance, distance) ** np.float32(self.sharpness)
        if len(offered.waited):
            waited = offered.waited.astype(np.float32)
            size *= np.maximum(waited, np.float32(1.0), out=waited)
        total = float(size.sum(dtype=np.float64))
        alike = max(self.probe_share, NEVER_NONE) if total > 0.0 else 1.0
        size *= np.float32((1.0 - alike) / max(total, 1e-30))
        size += np.float32(alike / len(offered))
        return size

    def _count(self, request: PromptRequest, size: Floats) -> int:
        """Groups to ask for now."""
        offered = request.candidates
        if not request.selects or not len(offered):
            return min(request.groups_wanted, len(offered))
        some = np.arange(0, len(offered), -(-len(offered) // SAMPLED))
        mean, variance = offered.logit_mean[some], offered.logit_variance[some]
        informative = chance_informative(mean, variance, request.group_size)
        self._share = max(float(informative @ size[some] / size[some].sum()), LEAST_SHARE)
        if not request.refill:
            self._wanted = self._enough = request.groups_wanted
            if self.batch == "as_uniform":
                self._enough = max(round(request.groups_wanted * float(informative.mean())), 1)
        if 0 < self.max_rounds <= request.refill:
            return 0
        lacking = max(request.groups_wanted - (self._wanted - self._enough), 0)
        return min(int(np.ceil(lacking / self._share - 1e-9)), len(offered))

    def _due(self, request: PromptRequest, count: int) -> Ints:
        """Rows that have waited too long, as many as may be taken now."""
        waited = request.candidates.waited
        if not (self.starve_epochs and len(waited) and count and not request.refill):
            return np.zeros(0, dtype=np.int64)
        half = 0.5 * self.starve_epochs
        rate = request.groups_wanted / half
        most = int(np.floor((request.step + 1) * rate) - np.floor(request.step * rate))
        due = np.flatnonzero(waited >= half * len(waited) / max(request.groups_wanted, 1))
        most = min(most, count)
        if most < len(due):
            due = due[np.argpartition(-waited[due], most)[:most]]
        return due

    def _begin(self, request: PromptRequest, row: Ints) -> Ints:
        """(m,) samples to begin with."""
        offered, usual = request.candidates, request.group_size
        whole = np.full(len(row), usual)
        if not request.selects:
            return whole
        mean, variance = offered.logit_mean[row], offered.logit_variance[row]
        if self.sizes == "allotted":
            whole = _allotment.samples(mean, variance, offered.mean_tokens[row], usual)
        if not self.probe_samples:
            return whole
        unlikely = chance_informative(mean, variance, usual) < self.commit_from
        probed = np.flatnonzero(unlikely & (self.probe_samples < whole))
        told = zip(whole.tolist(), mean.tolist(), variance.tolist(), strict=True)
        told_of = dict(zip(offered.prompt_key[row].tolist(), told, strict=True))
        self._open |= {key: told_of[key] for key in offered.prompt_key[row[probed]].tolist()}
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        size = whole.copy()
        size[probed] = self.probe_samples
        return size

    def _caps(self, request: PromptRequest, row: Ints) -> Ints:
        """(m,) tokens."""
        if not self.cap_factor:
            return np.full(len(row), request.max_new_tokens)
        offered = request.candidates
        return _allotment.caps(
            offered.logit_mean[row], offered.logit_variance[row], offered.mean_tokens[row],
            self.cap_factor, request.max_new_tokens,
        )  # fmt: skip

    def _throw(
        self, groups: FinishedGroups, new: Ints, left: Ints, rng: np.random.Generator
    ) -> None:
        """Coins of these groups."""
        told = [self._open[key] for key in groups.prompt_key[new].tolist()]
        mean, variance = (np.array([each[k] for each in told]) for k in (1, 2))
        samples = groups.rewarded[new].astype(np.float64)
        low, high = self.reward_low, self.reward_high
        passed = np.clip((groups.mean_reward[new] - low) / (high - low), 0.0, 1.0)
        passes = np.where(samples > 0.0, passed, 0.0) * samples
        becomes = still_informative(mean, variance, passes, samples, left.astype(np.float64))
        share_left = left / (groups.size[new] + left)
        trusted = becomes * min(self._came / self._hoped, 1.0)
        keep = np.clip(trusted / (share_left * self._share), self.least_keep, 1.0)
        spared = rng.random(len(new)) < keep
        fell = zip(np.where(spared, keep, 0.0).tolist(), becomes.tolist(), strict=True)
        self._kept.update(zip(groups.group_id[new].tolist(), fell, strict=True))

    def _judged(self, group_id: int, informative: bool) -> float:
        """Probability with which the group was kept; what became of it is remembered."""
        keep, becomes = self._kept.pop(group_id, UNTHROWN)
        if keep > 0.0 and becomes > 0.0:
            self._hoped = REMEMBERED * self._hoped + becomes
            self._came = REMEMBERED * self._came + informative
        return keep

    def _reason(self, request: PromptRequest, count: int, due: int) -> str:
        if not count:
            full = request.groups_wanted <= self._wanted - self._enough
            return "the batch is full" if full else f"{self.max_rounds} rounds are over"
        waited = f", {due} because they waited too long" if due else ""
        return f"drawn by the chance that their group is worth it{waited}"


PLUGIN: type[PromptPolicy] = PromptValue
