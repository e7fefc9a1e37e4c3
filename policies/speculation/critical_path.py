"""Draft for those whose end the trainer waits for, once a probe has shown that drafts are accepted.

*For whom and how much.*  Of every replica it is computed when it ends if it drafts K tokens for the
m longest of what it runs, for all m and some K (`_plan`, `estimators.draft_ends`), from what each
still has to write, what drafts have earned and what verifying them was measured to cost.  Under a
barrier only replicas that would end last are drafted on, with the fewest drafts that bring them to
the level that nobody can get below; in a stream all that write more tokens per second by it.  If
not the whole batch drafts, each of the m is told (`SPECULATE`), and the replica drafts nothing for
the others.

*Probes.*  Nothing is drafted in earnest before it is proven.  Where it would pay if drafts were
accepted as usual, one trajectory, the longest of the replica that would gain most, drafts for
`_evidence.PROOF` iterations; where only replicas can be told, one replica does for a tick or two.
After that the measured tokens per verification and cost decide.  New weights need no new probe, but
what is known then weighs no more than a probe's drafts, so that a collapse shows within a tick or
two.  (A probe per weight version took a quarter of the tail in steps of two seconds.)

Drafts that would not pay even for a sequence that runs by itself have failed: such probes take at
most a hundredth of the time, and come half as often with each failure (`_probes`).  Drafts that
would are kept in mind until the batch is small enough.

*Off again*, as soon as by what was measured lately it no longer pays; and, whatever the model says,
on a replica where the sequences that draft advance more slowly than its plain iterations would let
them: that one rests, twice as long each time.

Remaining lengths are taken at their mean.  The forms are ours.  That only the critical path counts
is common (TLT, arXiv 2511.16665, drafts in tails only); a cost model of verification that is fitted
online is like that of SmartSpec (arXiv 2406.14066).

It is wrong where lengths are: drafting for the wrong trajectory costs v0 per iteration and gains
nothing.  Engines that share cores with others slow these down; that is not seen.  Correctness
class: exact, provided the engine's verification is lossless.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import CorrectnessClass
from steersman.estimators.observation import AS_REPLICA, Bools, Floats, Ints, Observation
from steersman.policies.contract import Drafts, SpeculationPolicy
from steersman.policies.speculation._drafts import LEAVE, changes, single_changes
from steersman.policies.speculation._evidence import PROOF, Evidence
from steersman.policies.speculation._plan import Outlook, Plan
from steersman.policies.speculation._probes import PATIENCE_S, SHARE, Probes

NAME = "critical_path"
MOST_TOLD = 64
"""Trajectories told in one tick; the longest first, the others in the next."""
HOPE = 0.7
"""Acceptance that is hoped for before a probe: common drafters reach .6 to .8."""
WATCHED = 32.0
"""Iterations with drafts after which a replica's measured speed overrules the model."""
KEPT_DRAFTS = 8.0
"""What was known weighs so many drafts when it is probed again: it must not be chance that changes
the mind."""
LEAST_COST = 0.5
"""Of a probe's iterations: one that failed and cost nothing measurable is not repeated at once."""


@dataclass
class CriticalPath:
    """The defaults were tried in simulation; they need no tuning."""

    correctness: ClassVar[CorrectnessClass] = CorrectnessClass.EXACT

    margin: float = 0.1
    """Share of the time to the end that a change must gain.  Smaller gains did not come on a live
    fleet whose engines shared a machine."""

    _evidence: Evidence = field(default_factory=Evidence, init=False)
    _probes: Probes = field(default_factory=Probes, init=False)
    _rests: dict[str, list[float]] = field(default_factory=dict, init=False)
    """By replica on which drafting was slower than not: until when, and how often."""
    _version: int = field(default=-1, init=False)
    _seen_s: float = field(default=-1.0, init=False)
    _earnest: bool = field(default=False, init=False)
    """Whether anything is drafted beyond a probe."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.margin < 1.0:
            raise ValueError("margin must be 0 or more, and below 1")

    def decide(
        self, observation: Observation, forecast: Forecast, rng: np.random.Generator
    ) -> Drafts:
        """Learn from what was drafted, then say what changes."""
        if not observation.replicas.max_draft_tokens.any():
            return []
        self._follow(observation, forecast)
        outlook = Outlook.of(observation, forecast, self.margin)
        outlook = outlook.without(self._rest(outlook))
        believed = self._evidence.acceptance(forecast)
        if self._probes.replica and not self._probed(outlook, believed):
            return self._told(outlook, *self._probe(outlook, self._row(outlook)))
        plan = outlook.plan(believed) if self._evidence.proven else None
        if plan is not None and (plan.pays | plan.gains).any():
            self._earnest = True
            return self._told(outlook, plan.drafted, plan.sequences, _reasons(outlook, plan))
        row = -1
        waits = self._evidence.proven and outlook.alone(believed)[0].any()  # for a smaller batch
        if not waits and (self._earnest or self._probes.may_begin):
            row = self._begin(outlook, np.maximum(believed, HOPE))
        return self._told(outlook, *self._probe(outlook, row))

    def _follow(self, observation: Observation, forecast: Forecast) -> None:
        """Time, weights and counters."""
        r = observation.replicas
        if self._seen_s >= 0 and (observation.destination_row >= 0).any():
            self._probes.pass_time(observation.now_s - self._seen_s)
        self._seen_s = observation.now_s
        self._evidence.follow(observation, forecast)
        version = int(r.weight_version[r.alive].max(initial=-1))
        if version != self._version:
            cut_off = self._probes.replica != ""
            self._probes.renew(self._evidence.lost_s().max(initial=0.0) if cut_off else 0.0)
            self._version, self._earnest = version, False
            self._evidence.forget(PROOF)
            self._rests.clear()

    def _rest(self, outlook: Outlook) -> Bools:
        """(r,) replicas that draft nothing: what they drafted was slower than nothing."""
        names, clock_s = outlook.observation.replicas.names, self._probes.clock_s
        slow = self._evidence.speeds(WATCHED) < 1.0
        for row in np.flatnonzero(slow).tolist():
            until_s, times = self._rests.get(names[row], (0.0, 0.0))
            if until_s <= clock_s:
                wait_s = self._cost_s(outlook, row) / SHARE * 2.0**times
                self._rests[names[row]] = [clock_s + wait_s, min(times + 1.0, 6.0)]
                self._evidence.forget_speed(row)
        return np.array([self._rests.get(n, (0.0,))[0] > clock_s for n in names], dtype=np.bool_)

    def _cost_s(self, outlook: Outlook, row: int) -> float:
        """Of what one replica lately drafted."""
        least_s = LEAST_COST * PROOF * float(outlook.iteration_s[row])
        # what was gained for long and then no more was not lost all the time
        lost_s = self._evidence.lost_s(PROOF if self._earnest else np.inf)
        return max(float(lost_s[row]), least_s)

    def _fail(self, outlook: Outlook, row: int) -> None:
        self._probes.failed(self._cost_s(outlook, row))
        self._earnest = False

    # probes

    def _row(self, outlook: Outlook) -> int:
        """Replica of the probe under way; -1: it is gone, or has nothing left to do."""
        names = outlook.observation.replicas.names
        row = names.index(self._probes.replica) if self._probes.replica in names else -1
        return row if row >= 0 and outlook.able[row] else -1

    def _probed(self, outlook: Outlook, believed: Floats) -> bool:
        """Whether the probe under way is over; what comes of it is then in `_probes`."""
        row = self._row(outlook)
        if row < 0:
            self._probes.give_up(0.0)
        elif self._evidence.drafts(row) >= PROOF:
            if outlook.plan(believed).pays.any() or outlook.alone(believed)[0].any():
                self._probes.succeeded()
            else:
                self._fail(outlook, row)
        elif self._probes.stuck:
            self._probes.give_up(PATIENCE_S)
        return not self._probes.replica

    def _begin(self, outlook: Outlook, hope: Floats) -> int:
        """Row of the replica on which a probe begins now; -1: none does."""
        hopeful = outlook.plan(hope)
        if not hopeful.pays.any():
            return -1  # whatever is accepted: no fault of the drafts
        if self._earnest:
            self._fail(outlook, int(np.argmax(self._evidence.lost_s())))
        if not self._probes.may_begin:
            return -1
        row = int(np.argmax(hopeful.gain_s))
        self._evidence.forget(KEPT_DRAFTS)  # proof begins anew
        # one trajectory tells as much of deep drafts, at next to no cost
        tokens = outlook.alone(hope)[1] if outlook.single else hopeful.best
        self._probes.begin(outlook.observation.replicas.names[row], int(tokens[row]))
        return row

    def _probe(self, outlook: Outlook, row: int) -> tuple[Ints, Ints, list[str]]:
        """Nothing is drafted but by the probe on this replica."""
        drafted, sequences = np.zeros((2, len(outlook.able)), dtype=np.int64)
        why = f"acceptance is not known on weights {self._version}"
        if self._evidence.proven:
            why = "by what was measured lately it does not pay"
        reasons = [f"nothing is drafted: {why}"] * len(outlook.able)
        if row >= 0:
            k = drafted[row] = self._probes.tokens
            sequences[row] = 1 if outlook.single else outlook.batches.count[row]
            if outlook.single and outlook.drafting_alone(row, int(k)):
                drafted[row] = LEAVE  # whichever has become the longest meanwhile
            who = "its longest drafts" if outlook.single else "it drafts"
            reasons[row] = f"a probe: {who} {k} until {PROOF:.0f} drafts are verified; {why}"
        return drafted, sequences, reasons

    # decisions

    def _told(self, outlook: Outlook, drafted: Ints, sequences: Ints, reasons: list[str]) -> Drafts:
        """What has to be said so that the `sequences` (r,) longest draft `drafted` (r,) tokens."""
        observation, b = outlook.observation, outlook.batches
        t, r = observation.trajectories, observation.replicas
        drafted = np.where((b.count == 0) & (r.draft_tokens > 0), 0, drafted)  # for who comes next
        whole = (sequences >= b.count) | (drafted == 0) | ~np.array(outlook.single)
        told = changes(observation, np.where(whole | (drafted < 0), drafted, 0), NAME, reasons)
        if not outlook.single:
            return told
        place = np.full(len(t), len(t))
        place[b.order] = b.rank
        rows = observation.running[drafted[t.replica_row[observation.running]] != LEAVE]
        at = t.replica_row[rows]
        chosen = ~whole[at] & (place[rows] < sequences[at])
        wanted = np.where(chosen, drafted[at], AS_REPLICA)
        first = np.argsort(place[rows], kind="stable")
        singly = single_changes(observation, rows[first], wanted[first], NAME, reasons)
        return [*told, *singly[:MOST_TOLD]]

    def state_dict(self) -> dict[str, Any]:
        """What was measured, probed and given up."""
        return {
            "evidence": self._evidence.state_dict(),
            "probes": self._probes.state_dict(),
            "rests": {name: list(rest) for name, rest in self._rests.items()},
            "version": self._version,
            "seen_s": self._seen_s,
            "earnest": self._earnest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace it."""
        self._evidence = Evidence.from_state(state["evidence"])
        self._probes = Probes(**state["probes"])
        self._rests = {name: list(rest) for name, rest in state["rests"].items()}
        self._version, self._seen_s = int(state["version"]), float(state["seen_s"])
        self._earnest = bool(state["earnest"])


def _reasons(outlook: Outlook, plan: Plan) -> list[str]:
    """By replica, for a person."""
    names, count = outlook.observation.replicas.names, outlook.batches.count
    why = "writes faster" if outlook.flowing else "ends the step"
    reasons = []
    for row, name in enumerate(names):
        if not plan.pays[row]:
            reasons.append(f"{name}: drafts shorten nothing that is waited for")
            continue
        m = int(plan.sequences[row])
        who = "all" if m >= count[row] else f"the {m} longest" if m > 1 else "the longest"
        reasons.append(
            f"{name} {why}; {who} of {count[row]} draft {plan.best[row]}: "
            f"{plan.tokens[row]:.1f} tokens per verification at {plan.takes[row]:.1f} x the time, "
            f"ends {plan.gain_s[row]:.1f} s sooner"
        )
    return reasons


PLUGIN: type[SpeculationPolicy] = CriticalPath
