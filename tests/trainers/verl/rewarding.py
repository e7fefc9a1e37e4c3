"""verl's single-turn agent loop with a reward of its own: no reward workers run in the tests."""

from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class RewardedLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """An even last token is worth 1."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        output.reward_score = float(output.response_ids[-1] % 2 == 0)
        return output
