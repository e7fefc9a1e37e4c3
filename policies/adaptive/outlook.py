"""The fleet and everything unfinished, in scenarios: what plans are compared on."""

from dataclasses import dataclass, replace

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, Bools, Floats, Ints, Observation
from steersman.policies.adaptive._ends import Load, Model, Rows, end_s, loads
from steersman.policies.adaptive.contexts import Contexts
from steersman.policies.adaptive.draws import scenarios

DRAWS, FEWEST, MOST = 80_000, 8, 32
"""Lengths drawn per tick, and scenarios that this makes: 32 up to 2,500 trajectories, 8 for 10,000,
whose replicas are averages over a hundred anyway."""
TRIALS = 500_000
"""Ends computed for one plan, at most, unless two scenarios are more: some 10 ms."""
FASTEST_ITERATION_S = 1e-6


@dataclass(frozen=True)
class Outlook:
    """n rows of the observation; ended ones have nothing left."""

    model: Model
    rows: Rows
    load: Load
    """Of what is on replicas or on its way to them."""
    final: Floats
    """(n,) tokens of context that each is expected to end with."""

    @classmethod
    def of(cls, observation: Observation, forecast: Forecast, contexts: Contexts) -> "Outlook":
        """As observed and forecast."""
        t, groups = observation.trajectories, len(observation.groups)
        unfinished = np.flatnonzero(t.phase != Phase.ENDED)
        count = int(np.clip(DRAWS // max(len(unfinished), 1) // 2 * 2, FEWEST, MOST))
        length = np.zeros((count, len(t)))
        length[:, unfinished] = scenarios(observation, forecast, unfinished, count)
        context = contexts.now(observation)
        rows = Rows(
            length=length,
            chain=length * contexts.stretch,
            context=context,
            prompt=t.prompt_tokens.astype(np.float64),
            group=t.group_row,
            growth=contexts.growth,
        )
        here = np.where(t.phase != Phase.ENDED, observation.destination_row, NO_ROW)
        load = loads(rows, here, len(observation.replicas), groups)
        mean = forecast.length.mean_remaining_tokens
        return cls(_model(observation, forecast), rows, load, context + contexts.growth * mean)

    def thinned(self, trials: int) -> "Outlook":
        """With so few scenarios that `trials` of a row on a replica stay affordable."""
        scenarios = self.rows.length.shape[0]
        most = max(2, TRIALS // max(trials, 1) // 2 * 2)
        if scenarios <= most:
            return self
        half, first = scenarios // 2, np.arange(most // 2)
        chosen = np.concatenate((first, half + first))  # antithetic pairs
        r, load = self.rows, self.load
        rows = r._replace(
            length=np.ascontiguousarray(r.length[chosen]),
            chain=np.ascontiguousarray(r.chain[chosen]),
        )
        fewer = load._replace(
            longest=load.longest[chosen],
            second=load.second[chosen],
            total=load.total[chosen],
            area=load.area[chosen],
        )
        return replace(self, rows=rows, load=fewer)

    def only(self, open_: Bools, speed_up: float) -> "Outlook":
        """With nothing new for other replicas, and all times multiplied: others' idleness helps."""
        m = self.model
        faster = m._replace(
            fixed_s=speed_up * m.fixed_s,
            sequence_s=speed_up * m.sequence_s,
            token_s=speed_up * m.token_s,
            prefill_token_s=speed_up * m.prefill_token_s,
            open=open_ & m.alive,
        )
        return replace(self, model=faster)

    def last_s(self, load: Load) -> Floats:
        """(S,) when the last replica would have ended."""
        return np.asarray(end_s(self.model, load).max(axis=1))


def _model(observation: Observation, forecast: Forecast) -> Model:
    f, r = forecast.throughput, observation.replicas
    return Model(
        fixed_s=np.maximum(f.fixed_s, FASTEST_ITERATION_S),
        # slices of a table: strided, for which everything would be compiled again
        sequence_s=np.ascontiguousarray(f.sequence_s),
        token_s=np.ascontiguousarray(f.token_s),
        prefill_token_s=np.ascontiguousarray(f.prefill_token_s),
        slots=np.maximum(r.max_num_seqs, 1).astype(np.float64),
        capacity=np.where(f.kv_capacity_tokens > 0, f.kv_capacity_tokens, np.inf),
        alive=r.alive,
        open=r.alive,
        by_name=np.argsort(r.name_rank),
    )


def free_slots(observation: Observation, open_: Bools) -> Ints:
    """(r,) trajectories that each replica's batch has a slot for; 0 of those that are not open."""
    free = np.maximum(observation.replicas.max_num_seqs, 1) - observation.inflight()
    return np.where(open_, np.maximum(free, 0), 0)
