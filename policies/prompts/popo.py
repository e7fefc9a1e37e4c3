"""Put the latest informative groups of earlier steps in the place of degenerate ones: POPO.

The batch is rolled out once.  Each of its groups whose rewards are all equal is replaced by the
most recent informative group that is still in a first-in-first-out store; being recent stands for
being close to the present weights.  This step's own informative groups enter the store after that,
so that none is trained on twice in one step.

Source: POPO (arXiv 2606.01281), on par with dynamic sampling at about 30 % of its rollouts.  Its
ablation: replaying groups that are 10 steps old, or treating replayed ones as on-policy, makes the
training collapse.  What happens when the store has nothing recent enough, and how often one group
may be replayed, is not known from it; here the degenerate group then counts as it is, as it does
without the policy, and a group is replayed at most once.

Correctness class: corrected.  The trainer needs the replayed samples' behaviour log-probabilities
and separate ratios to the behaviour's and to the proximal weights.  It also must keep those groups:
the store here holds their ids.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts._rounds import in_order


@dataclass
class Popo:
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.CORRECTED

    max_age: int = 4
    """Weight versions that a replayed group may be old.  The paper leaves it open below the 10 that
    collapse; 4 is what asynchronous systems tolerate."""
    capacity: int = 1024
    """Groups that the store holds; the paper leaves it open."""

    _store: list[tuple[int, int]] = field(default_factory=list, init=False)
    """Group and its oldest weight version, the latest last."""

    def __post_init__(self) -> None:
        if self.max_age < 1 or self.capacity < 1:
            raise InvalidInputError(
                f"max_age is {self.max_age}, capacity {self.capacity}; valid: 1 or more"
            )

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next ones, as the trainer does by default."""
        return in_order(
            request, request.groups_wanted, request.group_size, "next in the data loader's order"
        )

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """None gets more samples."""
        return np.zeros(len(groups), dtype=np.int64)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing; what a group is stored for is known when it is selected."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """The informative ones, and substitutes for the others as far as there are any."""
        accepted = groups.informative
        degenerate = np.flatnonzero(~accepted)
        oldest = groups.weight_version_now - self.max_age
        self._store = [entry for entry in self._store if entry[1] >= oldest]
        count = min(len(degenerate), len(self._store))
        kept = len(self._store) - count
        replayed = [group for group, _ in reversed(self._store[kept:])]
        self._store = self._store[:kept]
        informative = np.flatnonzero(accepted)
        self._store += zip(
            groups.group_id[informative].tolist(),
            groups.weight_version[informative].tolist(),
            strict=True,
        )
        self._store = self._store[-self.capacity :]
        accepted[degenerate[count:]] = True
        return Selection(
            accepted,
            accepted[groups.group_row],
            np.array(replayed, dtype=np.int64),
            self.correctness if count else CorrectnessClass.EXACT,
        )

    def state_dict(self) -> dict[str, Any]:
        """The store."""
        return {"store": [list(entry) for entry in self._store]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the store."""
        self._store = [(int(group), int(version)) for group, version in state["store"]]


PLUGIN: type[PromptPolicy] = Popo
