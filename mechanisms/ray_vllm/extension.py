"""What runs inside vLLM's worker process: loading pushed weights.

`model.load_weights` straight from an extension, as most training code does it, fails on CPU: the
linear layers' weights were packed for oneDNN and freed.  `reload_weights` of the model runner
undoes and redoes the packing.
"""

from typing import Any

import torch
from safetensors.torch import load_file

if hasattr(torch.cpu, "_init_amx"):
    # vLLM picks AMX attention kernels by what the CPU can do, but a process must first ask the
    # kernel for the tile registers; otherwise a bfloat16 engine dies of an illegal instruction.
    torch.cpu._init_amx()


class SteersmanExtension:
    """Mixed into vLLM's worker; its methods are reached through `collective_rpc`."""

    model_runner: Any

    def steersman_load(self, path: str) -> int:
        """Load the weights in a safetensors file; answers their number."""
        weights = load_file(path)
        self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        return len(weights)
