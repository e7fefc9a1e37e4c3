"""Seeded requests whose prompt is read in parts, on an engine without a GPU.

While a prompt is read in parts vLLM samples a token for it in every iteration, throws it away, and
sets the request's generator back by an offset.  Generators on CPU have none: with vLLM 0.32 the
engine ends ("CPU Generator does not use offset"), and with it all that it runs.  A burst of long
prompts is enough.

So the state from before the draw is put back, and vLLM is not shown the generators that it would
set back itself.  A seeded answer is then the same in whatever parts its prompt was read.
"""

from typing import Any

import numpy as np


def rewind_by_state(runner: Any) -> None:
    """Have a model runner set the generators of discarded samples back by their states.

    Raises `AttributeError` if it is not built as this needs it.
    """
    sample, book = runner._sample, runner._bookkeeping_sync

    def discarded() -> list[int]:
        batch = runner.input_batch
        rows = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
        return [row for row in rows if row in batch.generators]

    def sampled(*given: Any, **named: Any) -> Any:
        generators = runner.input_batch.generators
        before = {row: generators[row].get_state() for row in discarded()} if generators else {}
        answer = sample(*given, **named)
        for row, state in before.items():
            generators[row].set_state(state)
        return answer

    def booked(*given: Any, **named: Any) -> Any:
        batch = runner.input_batch
        everyone, rows = batch.generators, set(discarded()) if batch.generators else set()
        batch.generators = {row: g for row, g in everyone.items() if row not in rows}
        try:
            return book(*given, **named)
        finally:
            batch.generators = everyone

    runner._sample, runner._bookkeeping_sync = sampled, booked
