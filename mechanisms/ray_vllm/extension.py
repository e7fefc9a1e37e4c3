"""What runs inside vLLM's worker process: loading pushed weights, and control of its drafts.

`model.load_weights` straight from an extension, as most training code does it, fails on CPU: the
linear layers' weights were packed for oneDNN and freed.  `reload_weights` of the model runner
undoes and redoes the packing.
"""

import os
from typing import Any

import torch
from safetensors.torch import load_file

from steersman.estimators.errors import SteersmanError
from steersman.mechanisms.ray_vllm.sampling_repair import ensure_exact, skip_idle_verifier
from steersman.mechanisms.ray_vllm.seed_repair import rewind_by_state

if hasattr(torch.cpu, "_init_amx"):
    # vLLM picks AMX attention kernels by what the CPU can do, but a process must first ask the
    # kernel for the tile registers; otherwise a bfloat16 engine dies of an illegal instruction.
    torch.cpu._init_amx()


class SteersmanExtension:
    """Mixed into vLLM's worker; its methods are reached through `collective_rpc`."""

    model_runner: Any
    rank: int

    def steersman_load(self, path: str) -> int:
        """Load the weights in a safetensors file; answers their number."""
        weights = load_file(path)
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        return len(weights)

    def steersman_prepare(self) -> str:
        """Mend what would end the engine; to be called before the first request.

        Answers why that cannot be done, or "".
        """
        if self.model_runner.device.type == "cpu":
            try:
                rewind_by_state(self.model_runner)
            except AttributeError as error:
                return f"seeded requests with long prompts may end it: {error}"
        return ""

    def steersman_arm(self, counters: str) -> str:
        """Let the proposer draft if the verifier is exact, counting into the file `counters`.

        Answers why it may not, or "".  To be called before the first request.
        """
        from steersman.mechanisms.ray_vllm.draft_counters import DraftCounters

        proposer = self.model_runner.drafter
        proposer.watch(self.model_runner)
        try:
            skip_idle_verifier(self.model_runner)
        except AttributeError as error:
            return f"vLLM's model runner is not built as expected: {error}"
        if fault := self.steersman_verifier_fault():
            return fault
        if self.rank == 0:  # ranks propose alike; the drafts of the first are taken
            descriptor = os.open(counters, os.O_RDWR)
            try:
                proposer.counters = DraftCounters.shared(descriptor, proposer.max_draft_tokens)
            finally:
                os.close(descriptor)
        proposer.arm()
        return ""

    def steersman_verifier_fault(self) -> str:
        """What keeps drafts from being verified exactly in this process, or ""."""
        return ensure_exact(self.model_runner.device)

    def steersman_attach(self, store: str) -> str:
        """Draft from the host's store too; answers why not, or ""."""
        from steersman.mechanisms.drafting.store import DraftStore

        try:
            self.model_runner.drafter.attach(DraftStore.attach(store))
        except (SteersmanError, OSError) as error:
            return str(error)
        return ""

    def steersman_draft(self, default: int, commanded: dict[str, int]) -> None:
        """Tokens to draft: by default, and for the attempts with a number of their own."""
        self.model_runner.drafter.instruct(default, commanded)
