"""The compiled core and the plain one agree to the last bit, in everything that can happen."""

from collections import Counter
from collections.abc import Sequence

import pytest
from support.simulated_world import Script

from steersman.mechanisms.simulated.core import SimulatedCore
from steersman.mechanisms.simulated.reference import ReferenceCore
from steersman.mechanisms.simulated.spec import EventKind

WORLDS, PER_TEST = 1000, 100
FIGURES = ("iterations", "busy_s", "sequences_run", "prefill_tokens", "preemptions")


class UsageScript(Script):
    """Looks at the compiled core's KV caches after every advance."""

    def advance(self, until_s: float, stop_on: Sequence[EventKind]) -> None:
        super().advance(until_s, stop_on)
        held = self.core.state().kv_tokens.tolist()
        for tokens, spec in zip(held, self.specs, strict=True):
            assert 0 <= tokens <= spec.kv_capacity_tokens


class WatchedScript(Script):
    """Looks at the reference's replicas after every advance."""

    def advance(self, until_s: float, stop_on: Sequence[EventKind]) -> None:
        super().advance(until_s, stop_on)
        for r, replica in enumerate(self.core.replicas):
            spec, now = replica.spec, self.core.replica_now(r)
            held = sum(t.given + now.written_by(t) for t in replica.running)
            assert now.kv == pytest.approx(held, rel=1e-9, abs=1e-6)
            assert len(replica.running) <= spec.max_num_seqs
            if len(replica.running) > 1:
                assert held <= spec.kv_capacity_tokens * (1 + 1e-9)
            if replica.waiting and replica.alive and not replica.paused:
                head = replica.waiting[0]
                fits = replica.kv + head.given + head.generated <= spec.admit_below_tokens
                full = len(replica.running) == spec.max_num_seqs
                assert full or (replica.running and not fits), "idle beside work that fits"


@pytest.mark.parametrize("first", range(0, WORLDS, PER_TEST))
def test_the_compiled_core_does_what_the_reference_does(first: int) -> None:
    seen: Counter[int] = Counter()
    for seed in range(first, first + PER_TEST):
        compiled = UsageScript(SimulatedCore(), seed)
        plain = WatchedScript(ReferenceCore(), seed)
        compiled.play()
        plain.play()
        assert compiled.events == plain.events, f"world {seed}"
        assert compiled.looks == plain.looks, f"world {seed}"
        state = compiled.core.state()
        for r in range(len(plain.core.replicas)):
            now = plain.core.replica_now(r)
            figures = [getattr(state, name)[r] for name in FIGURES]
            assert figures == [getattr(now, name) for name in FIGURES], f"world {seed}"
        seen.update(kind for _, kind, _, _ in compiled.events)
        ended = Counter(row for _, kind, row, _ in compiled.events if kind == EventKind.FINISHED)
        assert ended == dict.fromkeys(range(len(compiled.asked)), 1), "lost or doubled"
        assert compiled.core.generated_tokens().tolist() == compiled.asked
        assert compiled.core.inflight().sum() == 0
    assert all(seen[kind] > 10 for kind in EventKind), "the worlds are too tame"
