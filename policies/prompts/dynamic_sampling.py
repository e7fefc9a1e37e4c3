"""Drop groups that teach nothing and refill until the batch is full: DAPO's dynamic sampling.

Every round asks for the next prompts of the data loader; a group whose rewards are all equal (all
samples pass, or all fail) is dropped, and another round follows while groups lack.  With a share
P of degenerate groups the batch costs 1 / (1 - P) times its samples, and every round ends with its
own slowest sample.

Source: DAPO (arXiv 2503.14476); the rounds as in verl (`data.gen_batch_size`,
`filter_groups.max_num_gen_batches`) and NeMo-RL (`batch_multiplier`,
`dynamic_sampling_max_gen_batches`).  Both end the run with an error when the rounds are used up; a
controller must not, so that the batch then stays short, or is filled, and the reason says so.  As
in verl a group of one sample is kept.

Correctness class: modified.  Prompts are drawn in proportion to the chance that their group is
informative.  Surplus groups are dropped in the order of the data loader, not in the order they
finished, so that lengths do not matter; `select` must therefore see a whole round at once.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from steersman.estimators.errors import InvalidInputError
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import Ints
from steersman.policies.contract import PromptPolicy
from steersman.policies.prompting import FinishedGroups, PromptChoice, PromptRequest, Selection
from steersman.policies.prompts._rounds import exhausted, in_order, oversampled


@dataclass
class DynamicSampling:
    """The rule of the module's docstring."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.MODIFIED

    oversampling: float = 1.0
    """Groups asked for over groups needed.  1 is the default of verl and NeMo-RL; DAPO's own script
    takes 3, which nearly always makes one round do and throws the surplus away."""
    whole_rounds: bool = True
    """Every round is as large as the first, as in both trainers; off: a refill asks only for what
    lacks, which wastes less and may take more rounds."""
    max_rounds: int = 10
    """Rounds of a batch, as in verl's example scripts; 0: any number."""
    when_exceeded: Literal["short", "fill"] = "short"
    """After the last round the batch stays short, or degenerate groups of that round fill it."""
    keep_surplus: bool = False
    """Informative groups beyond the batch are trained on as well; both trainers drop them."""

    _batch: int = field(default=0, init=False)
    """Groups of the whole batch."""
    _lacking: int | None = field(default=None, init=False)
    _last_round: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.oversampling >= 1.0:
            raise InvalidInputError(f"oversampling is {self.oversampling}; valid: 1 or more")
        if self.max_rounds < 0:
            raise InvalidInputError(f"max_rounds is {self.max_rounds}; valid: 0 or more")

    def choose(self, request: PromptRequest, rng: np.random.Generator) -> PromptChoice:
        """The next prompts of the data loader; none when the rounds are used up."""
        if not request.refill:
            self._batch = request.groups_wanted
        self._lacking = request.groups_wanted
        self._last_round = request.refill == self.max_rounds - 1
        if (none := exhausted(request, self.max_rounds)) is not None:
            return none
        needed = max(self._batch, request.groups_wanted) if self.whole_rounds else self._lacking
        reason = f"round {request.refill + 1}: {self._lacking} groups lack"
        count = oversampled(needed, self.oversampling)
        return in_order(request, count, request.group_size, reason)

    def extend(self, groups: FinishedGroups, rng: np.random.Generator) -> Ints:
        """None gets more samples."""
        return np.zeros(len(groups), dtype=np.int64)

    def learn(self, groups: FinishedGroups) -> None:
        """Nothing."""

    def select(self, groups: FinishedGroups, rng: np.random.Generator) -> Selection:
        """The informative ones, in order, as many as lack."""
        accepted = groups.informative | (groups.size == 1)
        if self._lacking is not None:
            if self._last_round and self.when_exceeded == "fill":
                others = np.flatnonzero(~accepted)
                accepted[others[: max(self._lacking - int(accepted.sum()), 0)]] = True
            if not self.keep_surplus:
                accepted &= np.cumsum(accepted) <= self._lacking
            self._lacking = max(self._lacking - int(accepted.sum()), 0)
        return Selection(accepted, accepted[groups.group_row], correctness=self.correctness)

    def state_dict(self) -> dict[str, Any]:
        """The batch that is being filled."""
        return {"batch": self._batch, "lacking": self._lacking, "last_round": self._last_round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with that batch."""
        self._batch, self._last_round = int(state["batch"]), bool(state["last_round"])
        self._lacking = None if state["lacking"] is None else int(state["lacking"])


PLUGIN: type[PromptPolicy] = DynamicSampling
