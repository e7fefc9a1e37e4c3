"""The agent loop manager: verl's own, with our client in place of its.

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=\\
        steersman.controller.sidecar.verl.manager.SteersmanAgentLoopManager

verl calls `create(config=, llm_client=, ...)`; everything else is inherited: `AgentLoopManagerTQ`
for the V1 trainers, `AgentLoopManager` for the legacy ones (`SteersmanLegacyAgentLoopManager`).
"""

from typing import Any

from steersman.controller.sidecar.verl.version import check_version

check_version()

from verl.experimental.agent_loop import AgentLoopManager  # noqa: E402

from steersman.controller.sidecar.verl.client import SteersmanLLMServerClient  # noqa: E402


class SteersmanLegacyAgentLoopManager(AgentLoopManager):  # type: ignore[misc]
    """For trainers before V1."""

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, SteersmanLLMServerClient.wrapping(llm_client), *args, **kwargs)


def __getattr__(name: str) -> Any:
    """The V1 manager needs TransferQueue, which legacy trainers run without."""
    if name != "SteersmanAgentLoopManager":
        raise AttributeError(name)
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

    class SteersmanAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
        """For V1 trainers: sync, colocate_async, separate_async."""

        def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any) -> None:
            wrapped = SteersmanLLMServerClient.wrapping(llm_client)
            super().__init__(config, wrapped, *args, **kwargs)

    globals()[name] = SteersmanAgentLoopManager
    return SteersmanAgentLoopManager
