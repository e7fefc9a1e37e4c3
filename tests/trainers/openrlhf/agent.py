"""The executor of examples/attach_openrlhf.py, and what its engine needs on a machine without GPUs.

It is loaded in the engine's actor before the engine is made.  Engines are forked, not spawned,
which saves half a minute each.
"""

import os
from typing import Any

import vllm.utils.system_utils as system_utils
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.engine.arg_utils import AsyncEngineArgs

from steersman.controller.sidecar.openrlhf import Steered

_plain = AsyncEngineArgs.create_engine_config


def _create(*arguments: Any, **named: Any) -> Any:
    config = _plain(*arguments, **named)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return config


system_utils.is_in_ray_actor = lambda: False
AsyncEngineArgs.create_engine_config = _create


class AgentExecutor(Steered, SingleTurnAgentExecutor):
    """No reward is asked for."""
