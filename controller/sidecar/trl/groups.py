"""Whole groups for a synchronous trainer: all prompts of a step at once, each n times."""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from steersman.controller.sidecar.trl.client import Client, run
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.samples import Answer, answers_of
from steersman.mechanisms.execution import mixed_seed


def roll_out(
    endpoints: Endpoints,
    prompts: Sequence[Sequence[int]],
    n: int,
    fields: Mapping[str, Any],
    *,
    step: int,
    weight_version: int,
) -> list[list[Answer]]:
    """`n` samples of each prompt (token ids), in the prompts' order.

    `fields` are those of the request (`max_tokens`, `temperature` ...); a `seed` among them is
    mixed with the step and the prompt's place.  All prompts run side by side, as one group each.
    """

    async def work(client: Client) -> list[list[Answer]]:
        model = await client.model_name()

        async def one(place: int, prompt: Sequence[int]) -> list[Answer]:
            body = {**fields, "model": model, "prompt": list(prompt), "n": n, "logprobs": 0}
            if body.get("seed") is not None:
                # with one seed for all, prompts would share their luck
                body["seed"] = mixed_seed(body["seed"], step, place)
            told = {
                "prompt": prompt_name(prompt),
                "group": f"trl-{step}-{place}",
                "step": step,
                "weight_version": weight_version,
            }
            reply = await client.complete(body | {"return_token_ids": True}, told)
            return answers_of(reply.body, weight_version, reply.at)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*each)) for each in enumerate(prompts)]
        return [task.result() for task in tasks]

    try:
        return run(endpoints, work)
    except BaseExceptionGroup as errors:  # the first says why
        raise errors.exceptions[0] from None


def prompt_name(prompt: Sequence[int]) -> str:
    """Equal prompts have one name, in every step."""
    return blake2b(",".join(map(str, prompt)).encode(), digest_size=12).hexdigest()
