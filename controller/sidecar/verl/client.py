"""The client that verl's agent loops use in place of its own: each call under the controller.

It stands in for `LLMServerClient` (trainer_mode sync) and `FullyAsyncLLMServerClient`
(colocate_async, separate_async) alike; `manager` puts it there.  To be imported where verl is.
"""

from typing import Any

from verl.utils import normalize_token_ids
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from steersman.controller.sidecar.leases.line import Line
from steersman.controller.sidecar.verl.direct import Direct
from steersman.controller.sidecar.verl.generation import Asked, Generation, budget_of
from steersman.estimators.errors import InvalidInputError


class SteersmanLLMServerClient(FullyAsyncLLMServerClient):  # type: ignore[misc]
    """Goes where verl's client would go: it is pickled into each agent loop worker."""

    def __init__(
        self,
        config: Any,
        load_balancer_handle: Any = None,
        only_hybrid: bool = False,
        resumable: bool = True,
        **kwargs: Any,
    ) -> None:
        """`resumable`: it stands in for the client that resumes, whose conventions it keeps."""
        super().__init__(config, load_balancer_handle, only_hybrid, **kwargs)
        check_rollout(config.actor_rollout_ref.rollout)
        self._resumable = resumable
        self._line: Line | None = None
        self._direct = Direct()

    @classmethod
    def wrapping(cls, client: LLMServerClient) -> "SteersmanLLMServerClient":
        """In place of `client`, on the same router."""
        return cls(
            client.config,
            client._load_balancer,
            only_hybrid=getattr(client, "_only_hybrid", False),
            resumable=isinstance(client, FullyAsyncLLMServerClient),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_line": None}

    @rollout_trace_op  # type: ignore[untyped-decorator]
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """As verl's: token ids in, token ids out.

        `extra_fields["steersman"]` of the answer tells how it came about.
        """
        kwargs.pop("mm_processor_output", None)  # SGLang's
        passed = {"image_data": image_data, "video_data": video_data, **kwargs}
        if not passed.get("priority"):
            passed.pop("priority", None)
        if audio_data is not None:
            passed["audio_data"] = audio_data
        if mm_processor_kwargs:
            passed["mm_processor_kwargs"] = mm_processor_kwargs
        prompt_ids = normalize_token_ids(prompt_ids)
        rollout = self.config.actor_rollout_ref.rollout
        key, budget = budget_of(sampling_params, len(prompt_ids), rollout, self._resumable)
        asked = Asked(
            session=str(request_id),
            prompt_ids=prompt_ids,
            sampling=sampling_params,
            limit_key=key,
            budget=budget,
            resumes=self._resumes(),
            passed=passed,
        )
        generation = Generation(asked, self._my_line(), self._direct, TokenOutput)
        partial, info = await generation.run()
        output = partial.output(TokenOutput, self._resumable)
        output.extra_fields["steersman"] = info
        return output

    def _resumes(self) -> bool:
        legacy = getattr(self.config, "async_training", None)
        return legacy is None or bool(legacy.partial_rollout)

    def _my_line(self) -> Line:
        import asyncio

        if self._line is None or self._line.loop is not asyncio.get_running_loop():
            self._line = Line(self._load_balancer)
        return self._line


def check_rollout(rollout: Any) -> None:
    """Refuse a rollout whose requests cannot be told apart or aborted."""
    name = getattr(rollout, "name", "vllm")
    if name != "vllm":
        raise InvalidInputError(
            f"actor_rollout_ref.rollout.name is {name}; Steersman's client steers vllm only"
        )
    if getattr(rollout, "full_determinism", False):
        raise InvalidInputError(
            "actor_rollout_ref.rollout.full_determinism fixes which engine writes what; "
            "Steersman's client moves trajectories: switch one of them off"
        )
    disaggregation = getattr(rollout, "disaggregation", None)
    if disaggregation is not None and getattr(disaggregation, "enabled", False):
        raise InvalidInputError(
            "actor_rollout_ref.rollout.disaggregation renames requests inside the engines, so "
            "that they cannot be aborted: Steersman's client does not work with it"
        )
