"""Tail planner, version 1."""

import heapq
from dataclasses import dataclass

import numpy as np

from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Floats, Ints, Objective, Observation
from steersman.policies.contract import PlacementPolicy, Stateless
from steersman.policies.decision import Action, Decision
from steersman.policies.placement._load import Load


@dataclass
class TailPlanner(Stateless):
    backlog: int = 1
    hold: bool = True
    max_moves: int = 4
    min_gain_share: float = 0.05
    cooldown_s: float = 10.0
    handover_s: float = 0.5
    low: bool = True

    def decide(self, observation: Observation, forecast: Forecast, rng: np.random.Generator) -> list[Decision]:
        queued = observation.queued
        if len(queued):
            return self._admit(observation, forecast, queued)
        if self.max_moves:
            return self._moves(observation, forecast)
        return []

    def _admit(self, o: Observation, f: Forecast, queued: Ints) -> list[Decision]:
        r = o.replicas
        load = Load.of(o, f)
        room = np.where(r.alive, np.maximum(r.max_num_seqs, 1) + self.backlog - o.inflight(), 0)
        end = load.end_s
        mean = f.length.mean_remaining_tokens
        order = queued[np.lexsort((queued, -mean[queued]))]
        if self.hold:
            slots = np.maximum(r.max_num_seqs, 1)
            per_token = load.fixed_s / slots + load.per_sequence_s
            e = np.sort(end[r.alive]); pt = per_token[r.alive][np.argsort(end[r.alive])]
            # water filling
            W = mean[queued].sum()
            speed = np.cumsum(1/pt); base = np.cumsum(e/pt)
            level = (W + base)/speed
            k = np.searchsorted(np.r_[e[1:], np.inf] >= level, True)
            T = level[min(k, len(level)-1)]
            room = np.where(end > T, 0, room)
        rows = np.flatnonzero(room > 0)
        heap = [(float(end[x]), x) for x in rows.tolist()]
        heapq.heapify(heap)
        M, c = load.fixed_s.tolist(), load.per_sequence_s.tolist()
        longest, work, room = load.longest.tolist(), load.work.tolist(), room.tolist()
        out = []
        up = f.length.upper[order].tolist()
        for row, l, u in zip(order.tolist(), mean[order].tolist(), up):
            if not heap: break
            _, x = heap[0]
            out.append(Decision(int(o.trajectories.trajectory_id[row]), Action.PLACE, "tail_planner", "longest first", r.names[x], row=row))
            longest[x] = max(longest[x], u); work[x] += l; room[x] -= 1
            if room[x] > 0: heapq.heapreplace(heap, (M[x]*longest[x]+c[x]*work[x], x))
            else: heapq.heappop(heap)
        return out

    def _moves(self, o, f):
        t, r = o.trajectories, o.replicas
        load = Load.of(o, f)
        free = np.where(r.alive, r.max_num_seqs - o.inflight(), 0)
        run = o.running
        run = run[(o.now_s - t.moved_s[run]) >= self.cooldown_s]
        out = []
        M, c = load.fixed_s, load.per_sequence_s
        mean, up, low = f.length.mean_remaining_tokens, f.length.upper, f.length.remaining_tokens[:,0]
        pf = f.throughput.prefill_token_s
        for _ in range(self.max_moves):
            end = load.end_s
            s = int(np.argmax(np.where(r.alive, end, -1)))
            cand = run[t.replica_row[run] == s]
            dest = np.flatnonzero(free > 0); dest = dest[dest != s]
            if not len(cand) or not len(dest): break
            lng = np.where(cand == load.longest_row[s], load.second[s], load.longest[s])
            src_after = M[s]*lng + c[s]*(load.work[s]-mean[cand])
            tok = (t.prompt_tokens + t.generated_tokens)[cand]
            cost = self.handover_s + tok[:,None]*pf[dest]
            dst_after = M[dest]*np.maximum(load.longest[dest], up[cand][:,None]) + c[dest]*(load.work[dest]+mean[cand][:,None]) + cost
            gain = end[s] - np.maximum(src_after[:,None], dst_after)
            # lower quantile
            Ls = np.maximum(lng, low[cand]); 
            before = M[s]*Ls + c[s]*(load.work[s]-mean[cand]+low[cand])
            dlow = M[dest]*np.maximum(load.longest[dest], low[cand][:,None]) + c[dest]*(load.work[dest]+low[cand][:,None]) + cost
            glow = before[:,None] - np.maximum((M[s]*lng+c[s]*(load.work[s]-mean[cand]))[:,None], dlow)
            g = np.minimum(gain, glow) if self.low else gain
            k = int(np.argmax(g)); i, j = divmod(k, len(dest))
            if g[i,j] < self.min_gain_share*end[s] or g[i,j] < cost[i,j]: break
            row, d = int(cand[i]), int(dest[j])
            out.append(Decision(int(t.trajectory_id[row]), Action.MIGRATE, "tail_planner", "x", r.names[d], gain_s=float(g[i,j]), cost_s=float(cost[i,j]), row=row))
            load.work[s] -= mean[row]; load.work[d] += mean[row]
            load.longest[s] = lng[i]; load.longest[d] = max(load.longest[d], up[row])
            free[d] -= 1; free[s] += 1
            run = run[run != row]
        return out

PLUGIN: type[PlacementPolicy] = TailPlanner
