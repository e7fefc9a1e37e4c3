"""`steersman serve --ray`: a running fleet's replicas behind the gateway."""

import asyncio
import json
import signal
import sys

import aiohttp
import pytest
from engine.test_attempts import GREEDY, end_of, ended, first, request
from support.processes import LISTENING

from steersman.mechanisms.ray_vllm.fleet import RayVllmFleet

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


async def test_replicas_on_ray_answer_over_http_what_they_answer_over_ray(
    fleet: RayVllmFleet,
) -> None:
    prompts = [[3, 4, n] for n in range(5, 13)]
    direct = [fleet.start(first(fleet), request(prompt, 60, GREEDY)) for prompt in prompts]
    await ended(*direct)
    names = [info.name for info in fleet.replicas if fleet.is_alive(info.name)]
    options = ["--namespace", fleet.namespace, "--port=0", "--json", "--replicas", *names]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LISTENING, "serve", "--ray", fleet.address, *options),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        told = json.loads(await process.stdout.readline())
        assert list(told["engines"]) == names
        sampling = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True, "logprobs": 0}

        async with aiohttp.ClientSession(told["url"]) as client:

            async def answer(prompt: list[int]) -> list[int]:
                body = {"token_ids": prompt, "sampling_params": sampling}
                async with client.post("/inference/v1/generate", json=body) as response:
                    assert response.status == 200
                    (choice,) = (await response.json())["choices"]
                    assert len(choice["logprobs"]["content"]) == 60
                    return list(choice["token_ids"])

            answers = await asyncio.gather(*(answer(prompt) for prompt in prompts))
        assert answers == [end_of(attempt).tokens for attempt in direct]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert all(fleet.is_alive(name) for name in names)
