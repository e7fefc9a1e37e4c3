"""Whose turn it is: the prompts of a data set in the order in which the policy wants them.

Every rank holds the same chooser and so draws the same sequence of prompts; rank r of R takes the
places r, r + R, r + 2R, ... of it.  A draw asks for a batch of all ranks at once, and all of them
draw at the same place: when the next R places are not drawn yet.

*Epochs.*  A prompt that was drawn is withheld until its epoch is over: each comes at most once per
epoch, those first that the policy values most.  What is left at the end and does not go round the
ranks (fewer than R) is drawn again in the next epoch, as is what the policy would not choose.  An
endless order withholds nothing: the policy may come back at once.

*State.*  A data loader with workers draws prompts long before the trainer gets them.  The state is
the chooser as it is now and the prompts that were drawn and not consumed; `consumed` is what the
trainer has taken since its loop over the loader began.  Who goes on from it gets those first, and
then draws what would have been drawn without the interruption.  Prompts are kept by id, so that the
data set may have changed: prompts that are gone are left out, new ones join the present epoch.  The
state is that of all ranks, whose number may change as well.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from steersman.controller.prompts.chooser import Chosen, PromptChooser, PromptId
from steersman.estimators.errors import InvalidInputError

KEPT = 65_536
"""Places that may be drawn and not consumed: loaders prefetch some batches, not more."""
MOST_EMPTY = 100
"""Draws in a row without a prompt, each in a step of its own, after which an endless order gives
up: policies that skip prompts do so for tens of steps."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromptTerms:
    """On what terms a prompt was drawn."""

    prompt_id: PromptId
    size: int
    """Samples to roll out."""
    max_new_tokens: int
    inclusion_probability: float
    weight: float
    """Inverse of the inclusion probability, over its mean in the draw."""


class PromptOrder:
    """The sequence, and this rank's place in it."""

    def __init__(
        self,
        chooser: PromptChooser,
        prompt_ids: Sequence[PromptId],
        *,
        prompts_per_draw: int,
        endless: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if prompts_per_draw < 1:
            raise InvalidInputError(f"prompts_per_draw is {prompts_per_draw}; valid: 1 or more")
        if not 0 <= rank < world_size:
            raise InvalidInputError(
                f"rank is {rank}; valid: 0 to world_size - 1 = {world_size - 1}"
            )
        if len(prompt_ids) < world_size:
            raise InvalidInputError(f"{len(prompt_ids)} prompts are too few for {world_size} ranks")
        self.chooser, self.prompt_ids = chooser, list(prompt_ids)
        self.endless, self.rank, self.world_size = endless, rank, world_size
        self.weight_version = 0
        """Newest that the trainer told."""
        self.epoch = self.position = self.draws = 0
        """`position`: places of this epoch that this rank has taken."""
        self._exhausted = False
        """There is nothing more to draw in this epoch."""
        self._per_draw = prompts_per_draw
        self._index = _indices(self.prompt_ids)
        self._drawn: list[PromptTerms] = []
        """Of this epoch, all ranks' places from `_base` on."""
        self._base = self._start = 0
        """`_start`: position at which the present iteration began."""
        self._latest: dict[PromptId, PromptTerms] = {}
        chooser.set_pool(self.prompt_ids)

    @property
    def per_epoch(self) -> int:
        """Prompts of this rank in an epoch in which the policy leaves none out."""
        return len(self.prompt_ids) // self.world_size

    @property
    def finished(self) -> bool:
        """The epoch is over."""
        return self._exhausted and self._lacks_round

    def index(self, prompt_id: PromptId) -> int:
        """Place of the prompt in the data set."""
        if prompt_id not in self._index:
            raise InvalidInputError(f"there is no prompt {prompt_id!r} in the data set")
        return self._index[prompt_id]

    def terms(self, index: int) -> PromptTerms:
        """On what terms the prompt at that place of the data set was last drawn."""
        if not 0 <= index < len(self.prompt_ids):
            raise InvalidInputError(
                f"there is no prompt at index {index}; the data set has {len(self.prompt_ids)}"
            )
        prompt_id = self.prompt_ids[index]
        if prompt_id not in self._latest:
            raise InvalidInputError(
                f"prompt {prompt_id!r} was not drawn, or {KEPT} others were drawn since"
            )
        return self._latest[prompt_id]

    def start(self) -> None:
        """An iteration begins: over the rest of this epoch, or over the next one if it is over."""
        if self.finished:
            self.begin(self.epoch + 1)
        self._start = self.position

    def take(self) -> int | None:
        """The data set index of this rank's next prompt; None: the epoch is over."""
        while self._lacks_round:
            self._exhausted = self._exhausted or not self._draw()
            if self._exhausted:
                return None
        place = self.position * self.world_size + self.rank - self._base
        self.position += 1
        return self._index[self._drawn[place].prompt_id]

    def begin(self, epoch: int) -> None:
        """Begin that epoch; nothing happens if it is under way."""
        if epoch < 0:
            raise InvalidInputError(f"the epoch is {epoch}; valid: 0 or more")
        if epoch == self.epoch and not self.finished:
            return
        self.epoch, self.position, self._exhausted = epoch, 0, False
        self._drawn, self._base, self._start = [], 0, 0
        if not self.endless:
            self.chooser.release()

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """To go on from, once the trainer has taken `consumed` prompts on each rank since the
        iteration began; None: all that were taken from here."""
        taken, kept = self.position - self._start, self._base // self.world_size
        consumed = taken if consumed is None else consumed
        least = max(kept - self._start, 0)
        if not least <= consumed <= taken:
            raise InvalidInputError(
                f"consumed is {consumed}; valid: {least} to {taken}, prompts of this rank since "
                f"the iteration began in epoch {self.epoch}"
            )
        place = (self._start + consumed) * self.world_size
        return {
            "epoch": self.epoch,
            "consumed": place,
            "exhausted": self._exhausted,
            "prompts": len(self.prompt_ids),
            "coming": [asdict(terms) for terms in self._drawn[place - self._base :]],
            "draws": self.draws,
            "weight_version": self.weight_version,
            "endless": self.endless,
            "chooser": self.chooser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if state["endless"] != self.endless:
            raise InvalidInputError(
                "the state is of an order "
                + ("without" if state["endless"] else "with")
                + " epochs"
            )
        grown = len(self.prompt_ids) > state["prompts"]
        self.epoch, self._exhausted = int(state["epoch"]), bool(state["exhausted"]) and not grown
        self.draws, self.weight_version = int(state["draws"]), int(state["weight_version"])
        self.chooser.load_state_dict(state["chooser"])
        coming = [PromptTerms(**terms) for terms in state["coming"]]
        self._drawn = [terms for terms in coming if terms.prompt_id in self._index]
        gone = [terms.prompt_id for terms in coming if terms.prompt_id not in self._index]
        if gone:
            log.warning(
                "%d prompts that were to come next are not in the data set any more, %r the first",
                len(gone),
                gone[0],
            )
        self.position = int(state["consumed"]) // self.world_size
        self._base, self._start = self.position * self.world_size, self.position
        self._latest = {terms.prompt_id: terms for terms in self._drawn}

    def fingerprint(self) -> tuple[int, int, int, list[PromptId]]:
        """Equal on all ranks that go the same way: epoch, position, draws, last of what was
        drawn."""
        tail = [terms.prompt_id for terms in self._drawn[-8:]]
        return self.epoch, self.position, self.draws, tail

    @property
    def _lacks_round(self) -> bool:
        """Not every rank's next place is drawn."""
        return self._base + len(self._drawn) < (self.position + 1) * self.world_size

    def _draw(self) -> bool:
        """Whether there was anything to draw."""
        for _ in range(MOST_EMPTY if self.endless else 1):
            chosen = self.chooser.choose(self._per_draw, self.draws, self.weight_version)
            self.draws += 1
            if len(chosen):
                self._append(chosen)
                return True
        if self.endless:
            raise InvalidInputError(
                f"the prompt policy chose none of {len(self.prompt_ids)} prompts {MOST_EMPTY} times"
            )
        return False

    def _append(self, chosen: Chosen) -> None:
        columns = (chosen.size, chosen.max_new_tokens, chosen.inclusion_probability, chosen.weight)
        rows = zip(chosen.prompt_id, *(column.tolist() for column in columns), strict=True)
        for row in rows:
            terms = PromptTerms(*row)
            self._drawn.append(terms)
            self._latest.pop(terms.prompt_id, None)  # the newest last
            self._latest[terms.prompt_id] = terms
        if not self.endless:
            self.chooser.withhold(chosen.prompt_id)
        while len(self._latest) > KEPT:
            del self._latest[next(iter(self._latest))]
        surplus = len(self._drawn) - KEPT
        if surplus > 0:
            taken = self.position - self._base // self.world_size
            rounds = min(-(-surplus // self.world_size), taken)
            del self._drawn[: rounds * self.world_size]
            self._base += rounds * self.world_size


def _indices(prompt_ids: Sequence[PromptId]) -> dict[PromptId, int]:
    index: dict[PromptId, int] = {}
    for place, prompt_id in enumerate(prompt_ids):
        if index.setdefault(prompt_id, place) != place:
            raise InvalidInputError(
                f"prompt {prompt_id!r} is in the data set twice, at {index[prompt_id]} and {place}"
            )
    return index
