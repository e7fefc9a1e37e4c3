"""OpenRLHF: its engine actors, steered from inside by their agent executors.

OpenRLHF hands each prompt, with all of its samples, to the engine that had the fewest requests when
the batch began.  All that it lets others bring is an agent executor (`--train.agent_func_path`),
which runs inside the engine's actor.  That is enough: an executor may ask any engine for tokens,
since executors of different engines can call each other.

    # agent.py
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from steersman.controller.sidecar.openrlhf import Steered

    class AgentExecutor(Steered, SingleTurnAgentExecutor):
        pass
"""

from steersman.controller.sidecar.openrlhf.executor import Steered

__all__ = ["Steered"]
