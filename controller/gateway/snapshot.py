"""Fills the gateway's state from the desk: arrays for what is many, objects for what is shown.

What runs is taken from the last decision's observation while that is young, else from the ledger
(the controller is off, failed or held).  The forecast is always that of the last decision: it is
joined by trajectory, and what was written since is taken off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steersman.controller.core import Verdict
from steersman.controller.gateway.state import (
    Decider,
    FleetFigures,
    GatewayState,
    GroupView,
    ReplicaState,
    Sums,
    TrajectoryState,
)
from steersman.controller.gateway.why import Shown, recent_reasons, why_of
from steersman.controller.watching.ends import Ends, predicted_ends
from steersman.controller.watching.figures import bubble, tail_s
from steersman.estimators.lifecycle import Disposition, Phase
from steersman.estimators.observation import Bools, Floats, Ints, Observation, TrainerSignal
from steersman.mechanisms.fleet import EndReason

if TYPE_CHECKING:
    from steersman.controller.gateway.desk import Desk

MOST_TRAJECTORIES, MOST_GROUPS = 200, 50
"""Shown one by one: more than a person reads, and about 80 kB of JSON."""
YOUNG_S = 1.0
"""Age up to which the last decision's observation stands for the present; four ticks."""
NAME_LENGTH = 80
"""Characters of a prompt's name or a request's id that are shown."""
SHOWN = (Phase.QUEUED, Phase.RUNNING, Phase.LEAVING)
"""Phases of trajectories that somebody waits for now."""


@dataclass(frozen=True)
class Look:
    """The present, and what is predicted of it."""

    now_s: float
    observation: Observation
    ends: Ends
    verdict: Verdict | None
    """The last one, however old."""

    @property
    def shown(self) -> NDArray[np.int64]:
        """Rows of what somebody waits for: the last to end first, then what waits, oldest first."""
        t = self.observation.trajectories
        rows = np.flatnonzero(np.isin(t.phase, SHOWN))
        end, waits = self.ends.ends_in_s[rows], t.phase[rows] == Phase.QUEUED
        known = np.isfinite(end)
        since = np.where(waits, t.queued_s[rows], t.placed_s[rows])
        order = np.lexsort((since, np.where(known, -end, 0.0), np.where(known, 0, 1 + waits)))
        return np.asarray(rows[order])


def look(desk: "Desk") -> Look:
    """What is the case now."""
    now_s, latest = desk.ledger.now_s(), desk.loop.latest
    observation, verdict = latest if latest is not None else (None, None)
    then = observation
    if observation is None or now_s - observation.now_s > YOUNG_S:
        observation = desk.ledger.observation(0, TrainerSignal(), learning=False)
    if then is None or verdict is None:
        ends = Ends.unknown(len(observation.trajectories))
    else:
        ends = predicted_ends(observation, verdict.forecast, then)
    return Look(now_s, observation, ends, verdict)


def snapshot(desk: "Desk", unix_s: float = 0.0) -> GatewayState:
    """The state as it is now; `unix_s` is the present on the wall clock."""
    seen = look(desk)
    pace, phases = desk.pace, seen.observation.trajectories.phase
    rows = seen.shown
    trajectories = _trajectories(desk, seen, rows[:MOST_TRAJECTORIES])
    groups, groups_left_out = _groups(desk, seen)
    replicas = _replicas(desk, seen)
    shown = Shown(seen.observation, seen.ends, rows, seen.now_s)
    return GatewayState(
        now_s=seen.now_s,
        unix_s=unix_s,
        paused=desk.paused,
        draining=desk.draining,
        decider=Decider(
            desk.loop.state.value,
            desk.loop.why,
            desk.counts.state_since_s,
            desk.controller.config.placement.name,
        ),
        step=pace.step,
        step_s=max(seen.now_s - pace.started_s, 0.0) if pace.step >= 0 else 0.0,
        weight_version=pace.weight_version,
        objective=pace.objective.value,
        requests_open=len(desk.questions),
        queue_limit=desk.queue_limit,
        phases={
            phase.name.lower(): int((phases == phase).sum())
            for phase in Phase
            if phase is not Phase.ENDED
        },
        replicas=replicas,
        trajectories=trajectories,
        trajectories_left_out=len(rows) - len(trajectories),
        groups=groups,
        groups_left_out=groups_left_out,
        figures=figures_of(desk, seen),
        sums=sums_of(desk),
        why=why_of(shown, trajectories, desk.counts),
        decisions=desk.counts.decision_sums(),
    )


def figures_of(desk: "Desk", seen: Look) -> FleetFigures:
    """Of the whole fleet."""
    replicas, rewards = seen.observation.replicas, desk.counts.rewards
    alive, busy = replicas.alive, busy_replicas(seen.observation)
    slots = int(replicas.max_num_seqs[alive].sum())
    kv = replicas.kv_cache_usage[alive]
    known = seen.ends.ends_in_s[np.isfinite(seen.ends.ends_in_s)]
    rates = [desk.counts.tokens_per_s(name) for name in replicas.names]
    measured = [rate for rate in rates if rate is not None]
    return FleetFigures(
        bubble=bubble(busy[alive]),
        slots_taken=min(int(replicas.running[alive].sum()) / slots, 1.0) if slots else 0.0,
        tail_s=tail_s(known),
        ends_in_s=float(known.max()) if len(known) else None,
        kv_mean=float(kv.mean()) if len(kv) else 0.0,
        kv_most=float(kv.max()) if len(kv) else 0.0,
        tokens_per_s=sum(measured) if measured else None,
        degenerate_share=rewards.degenerate_share,
        groups_rewarded=rewards.degenerate + rewards.informative,
    )


def sums_of(desk: "Desk") -> Sums:
    """Since the gateway started."""
    books, tally, counts = desk.ledger.counts(), desk.tally, desk.counts
    lost = sum(n for (_, why), n in counts.attempts.items() if why == EndReason.LOST)
    return Sums(
        requests=tally.requests,
        refused=tally.refused,
        failed=tally.failed,
        answered=books.answered,
        abandoned=books.dispositions.get(Disposition.ABANDONED, 0),
        moves=books.moves,
        deferrals=books.deferrals,
        restarts=books.dispositions.get(Disposition.RESTARTED, 0),
        lost=lost,
        generated_tokens=counts.generated_tokens,
    )


def busy_replicas(observation: Observation) -> Bools:
    """(r,) whether something runs there: of this gateway's or, by its own report, of others'."""
    return (observation.inflight() > 0) | (observation.replicas.running > 0)


def written(desk: "Desk", name: str, sequences_run: float) -> float:
    """Tokens that a replica wrote since it started.

    Its own counter, where it shows one: what an estimator is given (`sequences_run`) leaves out the
    first and the last moments of work, whose time is not known.
    """
    return desk.fleet.engine(name).gauges.get("generation_tokens", sequences_run)


def _replicas(desk: "Desk", seen: Look) -> list[ReplicaState]:
    r, inflight = seen.observation.replicas, seen.observation.inflight().tolist()
    ends = _latest(seen.ends.ends_in_s, seen.observation.destination_row, len(r))
    iteration, known = _speeds(seen)
    return [
        ReplicaState(
            name=name,
            url=desk.fleet.engine(name).url,
            pool=r.pools[i],
            alive=bool(r.alive[i]),
            paused=desk.fleet.engine(name).paused,
            running=int(r.running[i]),
            waiting=int(r.waiting[i]),
            inflight=inflight[i],
            slots=int(r.max_num_seqs[i]),
            kv_usage=float(r.kv_cache_usage[i]),
            tokens_per_s=desk.counts.tokens_per_s(name),
            generated_tokens=int(written(desk, name, float(r.sequences_run[i]))),
            preemptions=int(r.preemptions[i]),
            weight_version=int(r.weight_version[i]),
            report_age_s=_age_s(float(r.metrics_age_s[i])),
            ends_in_s=_or_none(ends[i]),
            iteration_s=_or_none(iteration[i]),
            speed_known=bool(known[i]),
        )
        for i, name in enumerate(r.names)
    ]


def _speeds(seen: Look) -> tuple[Floats, Bools]:
    """Predicted seconds of an iteration at the present load, and whether that was measured."""
    observation, verdict = seen.observation, seen.verdict
    count = len(observation.replicas)
    if verdict is None or len(verdict.forecast.throughput.samples) != count:
        return np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    model, batch = verdict.forecast.throughput, observation.inflight().astype(np.float64)
    seconds = model.iteration_s(batch, observation.resident_tokens().astype(np.float64))
    return np.where(batch > 0, seconds, np.nan), model.samples > 0


def _trajectories(desk: "Desk", seen: Look, rows: Ints) -> list[TrajectoryState]:
    t, ends, names = seen.observation.trajectories, seen.ends, seen.observation.replicas.names
    ids = t.trajectory_id[rows].tolist()
    requests, reasons = _request_ids(desk, ids), recent_reasons(desk.counts, seen.now_s)
    group_ids = seen.observation.groups.group_id[t.group_row[rows]].tolist()
    columns = zip(
        ids,
        group_ids,
        t.phase[rows].tolist(),
        t.replica_row[rows].tolist(),
        t.target_row[rows].tolist(),
        t.prompt_tokens[rows].tolist(),
        t.generated_tokens[rows].tolist(),
        t.max_new_tokens[rows].tolist(),
        _listed(ends.remaining_tokens[rows]),
        _listed(ends.remaining_upper[rows]),
        _listed(ends.ends_in_s[rows]),
        _listed(ends.ends_in_upper_s[rows]),
        np.where(t.phase[rows] == Phase.QUEUED, t.queued_s[rows], t.placed_s[rows]).tolist(),
        t.moves[rows].tolist(),
        t.restarts[rows].tolist(),
        t.oldest_weight_version[rows].tolist(),
        strict=True,
    )
    return [
        TrajectoryState(
            trajectory_id=trajectory_id,
            request_id=requests.get(trajectory_id, ""),
            group_id=group_id,
            prompt_id=_prompt_id(desk, group_id),
            phase=Phase(phase).name.lower(),
            replica=names[replica] if replica >= 0 else "",
            target=names[target] if target >= 0 else "",
            why=reasons.get(trajectory_id, ""),
            prompt_tokens=prompt,
            generated_tokens=generated,
            max_new_tokens=cap,
            remaining_tokens=left,
            remaining_upper=upper,
            ends_in_s=end,
            ends_in_upper_s=end_upper,
            since_s=since if since == since else seen.now_s,
            moves=moves,
            restarts=restarts,
            weight_version=version,
        )
        for (
            trajectory_id, group_id, phase, replica, target, prompt, generated, cap, left, upper,
            end, end_upper, since, moves, restarts, version,
        ) in columns
    ]  # fmt: skip


def _groups(desk: "Desk", seen: Look) -> tuple[list[GroupView], int]:
    g, t = seen.observation.groups, seen.observation.trajectories
    end = _latest(seen.ends.ends_in_s, t.group_row, len(g))
    order = np.argsort(np.where(np.isfinite(end), -end, np.inf), kind="stable")[:MOST_GROUPS]
    views = [
        GroupView(
            group_id=int(g.group_id[row]),
            prompt_id=_prompt_id(desk, int(g.group_id[row])),
            step=int(g.step[row]),
            size=int(g.size[row]),
            ended=int(g.ended[row]),
            ends_in_s=_or_none(end[row]),
        )
        for row in order.tolist()
    ]
    return views, len(g) - len(views)


def _latest(end: Floats, of: Ints, count: int) -> Floats:
    """(count,) the largest known `end` of the rows that belong to each; NaN: none is known."""
    known = np.isfinite(end) & (of >= 0)
    latest = np.full(count, -np.inf)
    np.maximum.at(latest, of[known], end[known])
    return np.where(np.isfinite(latest), latest, np.nan)


def _request_ids(desk: "Desk", trajectory_ids: list[int]) -> Mapping[int, str]:
    wanted, found = set(trajectory_ids), {}
    for question in desk.questions.values():
        for execution in question.executions:
            if execution.spec.trajectory_id in wanted:
                found[execution.spec.trajectory_id] = question.public_id[:NAME_LENGTH]
    return found


def _prompt_id(desk: "Desk", group_id: int) -> str:
    group = desk.ledger.groups.get(group_id)
    return "" if group is None else group.prompt.prompt_id[:NAME_LENGTH]


def _age_s(age_s: float) -> float:
    """JSON knows no infinity: a replica that never reported is very old."""
    return min(max(age_s, 0.0), 1e6)


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _listed(column: Floats) -> list[float | None]:
    return [value if value == value else None for value in column.tolist()]
