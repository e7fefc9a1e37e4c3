"""What one game tells: one policy on one workload, drawn from one seed."""

import msgspec


class Game(msgspec.Struct, frozen=True):
    """Which game: the key of a cell."""

    workload: str
    section: str
    policy: str
    """The entry's name: a policy, and what differs from the default stack."""
    seed: int


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its figures.  Times are simulated seconds."""

    game: Game
    correctness: str
    seconds: float
    """Rollout of all steps, the final drain included."""
    useful: float
    """What the time is compared by: tokens of answers that reached their own end and do not merely
    repeat themselves; for prompt policies, informative groups that were trained on."""
    tokens: int
    """Generated, those of no answer included."""
    wasted_share: float
    """Of the tokens: in no answer."""
    finished: int
    truncated: int
    stopped: int
    deferred: int
    restarted: int
    expired: int
    moves: int
    preemptions: int
    mean_length_asked: float
    mean_length_kept: float
    """Of answers given in their own step."""
    bound_s: float
    """Sum over steps of the largest lower bound."""
    clairvoyant_s: float | None
    """Sum over steps of the best schedule that knows the lengths; None: there is none."""
    tick_ms_p99: float
    """Real milliseconds of a decision, estimators included, on this machine."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all cells of a tournament share."""

    version: str
    """Of this project."""
    quick: bool
    profile: str
    """Hardware given for all workloads; empty: each workload's own."""
