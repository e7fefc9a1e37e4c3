"""What is done to trajectories of a replay: in the core, the books and the intervals alike.

Each method takes rows that are in the right phase; `World` sees to that.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steersman.controller.replay._books import Books
from steersman.controller.replay.fleet import FleetPlan
from steersman.controller.replay.intervals import Intervals
from steersman.controller.replay.redraw import Redraw, Slots, same_length
from steersman.controller.replay.workload import SHARED, Asked
from steersman.estimators.lifecycle import Phase
from steersman.estimators.observation import NO_ROW, NO_VERSION, Floats, Ints
from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.spec import Trajectories

ON_A_REPLICA = (Phase.RUNNING, Phase.LEAVING)


class Hands:
    """Works on one fleet and its books."""

    def __init__(self, plan: FleetPlan, core: SimulatedCore, redraw: Redraw | None) -> None:
        self._plan, self._core, self._redraw = plan, core, redraw
        self.books, self.intervals = Books(), Intervals()
        self.weight_version = 0
        self.ended: list[Ints] = []
        """Rows that have ended and were not told yet."""

    def add(self, group: Ints, index: Ints, restarts: Ints, asked: Asked) -> Ints:
        """Samples for slots that exist."""
        n, turns = len(asked), asked.turns
        shared = {name: np.broadcast_to(getattr(asked, name), n) for name in SHARED}
        self.books.add(
            n,
            {
                "group": group, "index": index, "restarts": restarts, "length": asked.length,
                "prompt_tokens": asked.prompt_tokens, "cap": asked.max_new_tokens,
                "images": asked.images, "queued_s": np.full(n, self._core.now_s),
                "reward": asked.reward, **shared,
            },
        )  # fmt: skip
        return self._core.add(
            Trajectories(
                group=group,
                prompt_tokens=asked.prompt_tokens.astype(np.float64),
                encode_s=np.asarray(self._plan.image_encode_s * asked.images, dtype=np.float64),
                turns=turns.count,
                turn_tokens=turns.tokens,
                wait_s=turns.wait_s,
                extra_tokens=turns.extra_tokens,
            )
        )

    def place(self, rows: Ints, targets: Ints) -> None:
        """Submit waiting `rows` to the replicas `targets`."""
        self._core.submit(rows, targets)
        i, f = self.books.ints, self.books.floats
        i["phase"][rows], i["replica"][rows] = Phase.RUNNING, targets
        f["placed_s"][rows] = self._core.now_s
        self._begins(rows)
        self.intervals.begin(rows, targets, self._core.now_s, i["generated"][rows])

    def migrate(self, rows: Ints, targets: Ints) -> None:
        """Send running `rows` to `targets`; they arrive after the hand-over."""
        self.withdraw(rows, "migrated")
        arrives_s = self._core.now_s + self._plan.handover_s
        self._core.submit(rows, targets, at_s=arrives_s)
        i, f = self.books.ints, self.books.floats
        i["phase"][rows], i["target"][rows] = Phase.LEAVING, targets
        i["moves"][rows] += 1
        f["moved_s"][rows], f["arrives_s"][rows] = self._core.now_s, arrives_s
        f["placed_s"][rows] = np.nan
        self._begins(rows)
        self.intervals.begin(rows, targets, arrives_s, i["generated"][rows])

    def _begins(self, rows: Ints) -> None:
        """The present weights will write the first token of those of `rows` that have none."""
        i = self.books.ints
        fresh = rows[i["generated"][rows] == 0]
        i["version"][fresh] = self.weight_version

    def park(self, rows: Ints) -> None:
        """Put running or waiting `rows` off."""
        self.withdraw(rows[self.books.ints["phase"][rows] == Phase.RUNNING], "deferred")
        self.books.ints["phase"][rows] = Phase.PARKED
        self.books.ints["replica"][rows] = NO_ROW
        self.books.ints["deferred"][rows] += 1
        self.books.floats["moved_s"][rows] = self._core.now_s
        self.books.floats["placed_s"][rows] = np.nan

    def stop(self, rows: Ints) -> None:
        """End running or waiting `rows`: what they wrote is their answer."""
        self.withdraw(rows[self.books.ints["phase"][rows] == Phase.RUNNING], "stopped")
        self.books.floats["reward"][rows] = np.nan  # nobody knows what the part would have earned
        self._end(rows, "stopped")

    def withdraw(self, rows: Ints, ending: str) -> None:
        """Take `rows` from their replicas with what they wrote."""
        self.books.wrote(rows, self._core.abort(rows))
        self.close(rows, ending)

    def expire(self, phases: Sequence[Phase], max_lag: int | None) -> None:
        """Replace what is in one of `phases` and beyond the bound; None: there is no bound."""
        if max_lag is None:
            return
        i = self.books.ints
        old = (i["version"] != NO_VERSION) & (self.weight_version - i["version"] > max_lag)
        self.renew(np.flatnonzero(old & np.isin(i["phase"], phases)), "expired")

    def renew(self, rows: Ints, ending: str) -> None:
        """`rows` end without an answer; fresh samples wait in their slots."""
        if not len(rows):
            return
        i = self.books.ints
        self.withdraw(rows[np.isin(i["phase"][rows], ON_A_REPLICA)], ending)
        self._end(rows, ending)
        group, index, restarts = (i[name][rows] for name in ("group", "index", "restarts"))
        fresh = self._fresh(rows)
        self.add(group, index, restarts + 1, fresh)

    def _fresh(self, rows: Ints) -> Asked:
        """A sample for each slot of `rows`, with the prompt, cap and images that these had."""
        i = self.books.ints
        if self._redraw is None:
            drawn = same_length(i["length"][rows])
        else:
            key, restarts = self.books.group_ints["key"], i["restarts"][rows] + 1
            group, index = i["group"][rows], i["index"][rows]
            drawn = self._redraw(Slots(key[group], group, index, restarts))
        length = np.minimum(drawn.length, i["cap"][rows])
        return replace(
            drawn,
            length=length,
            turns=drawn.turns.reaching(length),
            prompt_tokens=i["prompt_tokens"][rows],
            max_new_tokens=i["cap"][rows],
            images=i["images"][rows],
        )

    def finish(self, rows: Ints, time_s: Floats) -> None:
        """What has written all that it writes."""
        if not len(rows):
            return
        self.books.ints["generated"][rows] = self.books.ints["length"][rows]
        capped = self.books.ints["length"][rows] >= self.books.ints["cap"][rows]
        for ending, some in (("truncated", capped), ("finished", ~capped)):
            self.intervals.end(
                rows[some], time_s[some], self.books.ints["length"][rows[some]], ending
            )
            self.books.end(rows[some], ending)
        self.ended.append(rows)

    def close(self, rows: Ints, ending: str) -> None:
        """The present attempts of `rows` are over."""
        written = self.books.ints["generated"][rows]
        self.intervals.end(rows, np.full(len(rows), self._core.now_s), written, ending)

    def _end(self, rows: Ints, ending: str) -> None:
        self.books.end(rows, ending)
        self.ended.append(rows)
