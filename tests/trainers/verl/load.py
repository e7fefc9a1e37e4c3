"""A load of requests as agent loops send them, and what came of it."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 120.0
"""For a load of ten seconds, on a machine that is busy with other things."""


@dataclass(frozen=True)
class Request:
    """One trajectory."""

    request_id: str
    prompt_ids: list[int]
    max_tokens: int


def requests(count: int, seed: int = 0, group_size: int = 4) -> list[Request]:
    """Groups of samples of one prompt, with lengths that differ."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(3, 64) for _ in range(12)] for _ in range(count // group_size)]
    return [
        Request(f"{seed}-{n}", prompts[n // group_size], draw.randrange(60, 240))
        for n in range(count)
    ]


@dataclass(frozen=True)
class Outcome:
    """Of a load."""

    outputs: list[Any]
    seconds: float

    @property
    def tokens(self) -> int:
        """Written and delivered."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def moves(self) -> list[int]:
        """Of each trajectory."""
        return [output.extra_fields["steersman"].get("moves", 0) for output in self.outputs]

    def __str__(self) -> str:
        return f"{len(self.outputs)} answers, {self.tokens} tokens in {self.seconds:.1f} s"


async def play(client: Any, load: Sequence[Request]) -> Outcome:
    """All at once, greedy and to their last token."""
    started_s = time.monotonic()
    playing = asyncio.gather(
        *(
            client.generate(
                request.request_id,
                prompt_ids=list(request.prompt_ids),
                sampling_params={
                    "temperature": 0.0,
                    "ignore_eos": True,
                    "logprobs": True,
                    "max_tokens": request.max_tokens,
                },
            )
            for request in load
        )
    )
    outputs = await asyncio.wait_for(playing, PATIENCE_S)
    return Outcome(outputs, time.monotonic() - started_s)
