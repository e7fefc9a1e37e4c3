"""What a run of a prompt policy tells, step by step and in all."""

from dataclasses import dataclass

from steersman.controller.replay.outcome import Result
from steersman.controller.replay.workload import Workload


@dataclass(frozen=True)
class PromptStep:
    """One step of the trainer."""

    step: int
    seconds: float
    """Of its rollouts, in virtual time."""
    rounds: int
    stages: int
    """Rounds, and rounds of extensions."""
    samples: int
    tokens: int
    """Written."""
    groups_accepted: int
    informative: int
    """Of those: the rewards of what is trained on differ."""
    replayed: int
    """Earlier groups trained on again."""
    samples_trained: int
    tokens_trained: int


@dataclass(frozen=True)
class PromptRunResult:
    """A whole run."""

    steps: list[PromptStep]
    distinct_prompts: int
    """That were rolled out at least once."""
    effective_groups: float
    """(sum w)^2 / sum w^2 of the accepted groups' weights, 1 / inclusion probability, per choice;
    summed over choices.  Replayed groups are not in it."""
    decide_s: float
    """Seconds of real time in the policy."""
    workload: Workload
    """What was rolled out: a step of it is a round."""
    replay: Result
    """How it was timed, likewise."""

    @property
    def seconds(self) -> float:
        """Of all steps' rollouts."""
        return sum(step.seconds for step in self.steps)

    @property
    def samples(self) -> int:
        """Rolled out."""
        return sum(step.samples for step in self.steps)

    @property
    def tokens(self) -> int:
        """Written."""
        return sum(step.tokens for step in self.steps)

    @property
    def informative_groups(self) -> int:
        """Trained on, replayed ones counted: the finished useful work."""
        return sum(step.informative + step.replayed for step in self.steps)

    @property
    def seconds_per_informative_group(self) -> float:
        """inf, if there was none."""
        return self._per_group(self.seconds)

    @property
    def tokens_per_informative_group(self) -> float:
        """inf, if there was none."""
        return self._per_group(self.tokens)

    @property
    def effective_share(self) -> float:
        """`effective_groups` over the accepted ones: 1 where all weigh the same."""
        accepted = sum(step.groups_accepted for step in self.steps)
        return self.effective_groups / accepted if accepted else float("nan")

    def _per_group(self, amount: float) -> float:
        return amount / self.informative_groups if self.informative_groups else float("inf")


@dataclass
class Tally:
    """Counts of a step that is under way."""

    step: int
    rounds: int = 0
    stages: int = 0
    samples: int = 0
    tokens: int = 0
    groups_accepted: int = 0
    informative: int = 0
    replayed: int = 0
    samples_trained: int = 0
    tokens_trained: int = 0

    def result(self, seconds: float) -> PromptStep:
        """With its time."""
        return PromptStep(seconds=seconds, **vars(self))
