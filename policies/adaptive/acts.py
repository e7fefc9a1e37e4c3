"""What was found, as decisions with reasons that a person understands."""

from steersman.estimators.observation import Ints, Observation
from steersman.policies.adaptive.putting_off import PuttingOff
from steersman.policies.adaptive.relief import Move
from steersman.policies.adaptive.sparing import Coin
from steersman.policies.decision import Action, Decision, place


def placements(
    observation: Observation, rows: Ints, target: Ints, policy: str, reason: str
) -> list[Decision]:
    """Waiting rows and their replicas; -1: none yet."""
    return [
        place(observation, row, to, policy, reason)
        for row, to in zip(rows.tolist(), target.tolist(), strict=True)
        if to >= 0
    ]


def migration(observation: Observation, move: Move, policy: str) -> Decision:
    """Isolation, if it leaves its pool."""
    replicas = observation.replicas
    names, pools = replicas.names, replicas.pools
    elsewhere = pools[move.source] != pools[move.target]
    return Decision(
        int(observation.trajectories.trajectory_id[move.row]),
        Action.ISOLATE if elsewhere else Action.MIGRATE,
        policy,
        f"{names[move.source]} would end {move.behind_s:.1f} s after the mean replica; moving this"
        f" one to {names[move.target]} takes {move.cost_s:.1f} s, and all end {move.gain_s:.1f} s"
        " sooner",
        names[move.target],
        gain_s=move.gain_s,
        cost_s=move.cost_s,
        row=move.row,
    )


def deferrals(
    observation: Observation, found: PuttingOff, step_groups: int, policy: str
) -> list[Decision]:
    """Of everything that is put off; the step has `step_groups`."""
    reason = (
        f"{found.groups} of the step's {step_groups} groups would hold it up for"
        f" {found.gain_s:.1f} s; in the next step they cost {found.cost_s:.1f} s"
    )
    ids, gain_s, cost_s = observation.trajectories.trajectory_id, found.gain_s, found.cost_s
    return [
        Decision(int(ids[row]), Action.DEFER, policy, reason, gain_s=gain_s, cost_s=cost_s, row=row)
        for row in found.rows.tolist()
    ]


def coin_fell(observation: Observation, coin: Coin, policy: str) -> Decision:
    """One side or the other."""
    return Decision(
        int(observation.trajectories.trajectory_id[coin.row]),
        Action.CONTINUE if coin.keep else Action.STOP,
        policy,
        coin.reason,
        propensity=coin.propensity,
        gain_s=coin.gain_s,
        row=coin.row,
    )
