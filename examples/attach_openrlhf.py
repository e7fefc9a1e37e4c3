"""OpenRLHF: `--train.agent_func_path examples/attach_openrlhf.py`.

Every engine's samples are then placed on, and moved between, all of them.  The reward is whatever
`--reward.remote_url` would name: a file with `reward_func`, or a URL.
"""

from openrlhf.utils.agent import SingleTurnAgentExecutor

from steersman.controller.sidecar.openrlhf import Steered


class AgentExecutor(Steered, SingleTurnAgentExecutor):  # type: ignore[misc]
    """OpenRLHF's own executor for one turn, on all engines."""

    def __init__(self) -> None:
        super().__init__(remote_rm_url="reward.py")
