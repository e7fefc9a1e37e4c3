"""Counts what a run's records tell, one by one and cheaply: live through a tap, or from a file.

Everything here is bounded: counters by small sets of names, the last decisions, and what waits for
something that may never come (a reward, a placement) at most as long as the ledger keeps it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from steersman.controller.trace import records
from steersman.controller.trace.records import Record
from steersman.controller.watching.rates import Rate
from steersman.controller.watching.rewards import RewardBook
from steersman.controller.watching.told import DecisionSum, Told
from steersman.estimators.lifecycle import ANSWERS
from steersman.mechanisms.fleet import EndReason
from steersman.policies.decision import Action, Decision, StackChoice

MOST_DECISIONS, MOST_PLACEMENTS = 256, 32
"""Last decisions kept.  Placements are apart, since there are many and they tell little; so are
dropped ones, since a policy may propose the same one at each tick."""
WAIT_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of the time to placement: at once is about 4 ms, a full queue may be minutes."""
RECORDED, DROPPED = "recorded", "dropped"
"""What becomes of decisions that are not carried out; the others have an `OutcomeKind`."""
_ANSWERS = frozenset(disposition.value for disposition in ANSWERS)


class Histogram:
    """Counts by upper bound, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RecordCounts:
    """`take` each record of one run in its order."""

    def __init__(self) -> None:
        self.decisions: Counter[tuple[str, str]] = Counter()
        """By action and what became of them; recorded ones once per trajectory."""
        self.gains_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        """Predicted, summed over those; so is the next one."""
        self.costs_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.recent: deque[Told] = deque(maxlen=MOST_DECISIONS)
        """The last decisions, placements left out; oldest first."""
        self.placements: deque[Told] = deque(maxlen=MOST_PLACEMENTS)
        self.dropped: deque[Told] = deque(maxlen=MOST_DECISIONS)
        """The last ones that the guard did not let pass."""
        self.weighed: dict[str, float | None] = {}
        """What the placement policy compared when it last decided anything: seconds to the end."""
        self.stack: StackChoice | None = None
        """What was last chosen to act in a step."""
        self.ended: Counter[str] = Counter()
        """Trajectories by disposition."""
        self.attempts: Counter[tuple[str, str]] = Counter()
        """Ended ones by replica and `EndReason`."""
        self.generated_tokens = 0
        """Of ended attempts."""
        self.placement_wait = Histogram(WAIT_BOUNDS_S)
        """Seconds from being queued to the first attempt."""
        self.states: Counter[str] = Counter()
        """Times the controller entered each state."""
        self.state_since_s = 0.0
        self.engines_lost: Counter[str] = Counter()
        """Times each replica was reported dead after it had been alive."""
        self.tokens: dict[str, Rate] = {}
        """Tokens each replica writes, by its own reports."""
        self.rewards = RewardBook()
        self.weight_pushes = 0
        self._alive: dict[str, bool] = {}
        self._queued_s: dict[int, float] = {}
        """Of trajectories that were never placed."""
        self._where: dict[int, str] = {}
        """Replica by unfinished trajectory."""
        self._recorded: dict[int, set[str]] = {}
        """Actions that were only recorded, by unfinished trajectory."""
        self._awaited: dict[tuple[int, int, str], Told] = {}
        """Enforced decisions whose outcome is not written yet."""
        self._takers: dict[type, Callable[[Any], None]] = {
            records.TrajectoryQueued: self._queued,
            records.PhaseChanged: self._phase_changed,
            records.AttemptStarted: self._started,
            records.AttemptEnded: self._attempt_ended,
            records.TrajectoryEnded: self._ended,
            records.GroupEnded: lambda record: self.rewards.closed(record.group_id),
            records.Rewarded: self._rewarded,
            records.DecisionTaken: self._taken,
            records.DecisionDropped: self._dropped,
            records.Outcome: self._outcome,
            records.AlternativesWeighed: self._weighed,
            records.StackChosen: self._chosen,
            records.ControllerState: self._state_entered,
            records.ReplicaReport: self._reported,
            records.WeightsPushed: self._pushed,
        }

    def take(self, record: Record) -> None:
        """One record; kinds that tell nothing here are passed over."""
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def lost(self, replica: str) -> int:
        """Attempts that ended because the replica died or stalled."""
        return self.attempts[replica, EndReason.LOST.value]

    def tokens_per_s(self, replica: str) -> float | None:
        """That it writes, by its own reports of the last seconds; None: not known yet."""
        rate = self.tokens.get(replica)
        return None if rate is None else rate.per_s

    def decision_sums(self) -> list[DecisionSum]:
        """By action, in the order of the names."""
        return [
            DecisionSum(
                action, became, n, self.gains_s[action, became], self.costs_s[action, became]
            )
            for (action, became), n in sorted(self.decisions.items())
        ]

    def _queued(self, record: records.TrajectoryQueued) -> None:
        self._queued_s[record.trajectory_id] = record.t_s

    def _phase_changed(self, record: records.PhaseChanged) -> None:
        self._where[record.trajectory_id] = record.replica

    def _started(self, record: records.AttemptStarted) -> None:
        queued_s = self._queued_s.pop(record.trajectory_id, None)
        if queued_s is not None:
            self.placement_wait.observe(record.t_s - queued_s)

    def _attempt_ended(self, record: records.AttemptEnded) -> None:
        self.attempts[record.replica, record.reason] += 1
        self.generated_tokens += record.tokens

    def _ended(self, record: records.TrajectoryEnded) -> None:
        self.ended[record.disposition] += 1
        self._where.pop(record.trajectory_id, None)
        self._queued_s.pop(record.trajectory_id, None)
        self._recorded.pop(record.trajectory_id, None)
        if record.disposition in _ANSWERS:
            self.rewards.answered(record.trajectory_id, record.group_id)

    def _rewarded(self, record: records.Rewarded) -> None:
        self.rewards.rewarded(record.trajectory_id, record.reward)

    def _taken(self, record: records.DecisionTaken) -> None:
        told = self._told(record.t_s, record.tick, record.decision, record.mode)
        told.enforced = record.enforced
        self._keep(told)
        if record.enforced:
            self._awaited[record.tick, told.trajectory_id, told.action] = told
        elif self._is_new(told):
            self._count(told, RECORDED)

    def _is_new(self, told: Told) -> bool:
        """Whether its trajectory is unfinished, and nobody only recorded the same of it before."""
        known = told.trajectory_id in self._where or told.trajectory_id in self._queued_s
        if not known or told.action in self._recorded.get(told.trajectory_id, ()):
            return False
        self._recorded.setdefault(told.trajectory_id, set()).add(told.action)
        return True

    def _dropped(self, record: records.DecisionDropped) -> None:
        told = self._told(record.t_s, record.tick, record.decision, "")
        told.dropped = record.why
        self.dropped.append(told)
        self._count(told, DROPPED)

    def _outcome(self, record: records.Outcome) -> None:
        told = self._awaited.pop((record.tick, record.trajectory_id, record.action), None)
        if told is not None:
            told.outcome = record.outcome
            self._count(told, record.outcome)

    def _count(self, told: Told, became: str) -> None:
        key = told.action, became
        self.decisions[key] += 1
        self.gains_s[key] += told.gain_s
        self.costs_s[key] += told.cost_s

    def _told(self, t_s: float, tick: int, decision: Decision, mode: str) -> Told:
        return Told(
            t_s=t_s,
            tick=tick,
            trajectory_id=decision.trajectory_id,
            action=decision.action.value,
            source=self._where.get(decision.trajectory_id, ""),
            target=decision.replica,
            policy=decision.policy,
            reason=decision.reason,
            gain_s=decision.gain_s,
            cost_s=decision.cost_s,
            mode=mode,
            enforced=False,
        )

    def _keep(self, told: Told) -> None:
        if told.action == Action.PLACE:
            self.placements.append(told)
        elif told.action != Action.CONTINUE:
            self.recent.append(told)

    def _weighed(self, record: records.AlternativesWeighed) -> None:
        self.weighed = record.seconds

    def _chosen(self, record: records.StackChosen) -> None:
        self.stack = record.choice

    def _state_entered(self, record: records.ControllerState) -> None:
        self.states[record.state] += 1
        self.state_since_s = record.t_s

    def _reported(self, record: records.ReplicaReport) -> None:
        name = record.replica
        if self._alive.get(name, True) and not record.alive:
            self.engines_lost[name] += 1
        self._alive[name] = record.alive
        rate = self.tokens.setdefault(name, Rate())
        rate.note(record.stats.reported_s, record.stats.sequences_run)

    def _pushed(self, record: records.WeightsPushed) -> None:
        self.weight_pushes += 1
