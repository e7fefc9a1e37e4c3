"""What the adapter rests on, in TRL's own package: the names and fields that it uses."""

import dataclasses
import inspect
from typing import Any

import pytest
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing
from trl.generation import vllm_client, vllm_generation

from steersman.controller.sidecar.trl.samples import RolloutSample
from steersman.controller.sidecar.trl.settings import RolloutSettings
from steersman.controller.sidecar.trl.weights import FileWeightTransfer
from steersman.controller.sidecar.trl.worker import SteersmanRolloutWorker

pytestmark = pytest.mark.trainers


def methods(kind: type) -> dict[str, list[str]]:
    """Public methods and their parameters."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: list(inspect.signature(function).parameters)
        for name, function in found
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("protocol", "ours"),
    [
        (async_grpo_trainer.RolloutWorkerProtocol, SteersmanRolloutWorker),
        (async_grpo_trainer.WeightTransferProtocol, FileWeightTransfer),
    ],
)
def test_every_method_of_a_protocol_is_there_with_its_parameters(protocol: type, ours: Any) -> None:
    have = methods(ours)
    for name, parameters in methods(protocol).items():
        assert have[name] == parameters, name


def test_a_row_has_the_fields_of_trls_own() -> None:
    own = [field.name for field in dataclasses.fields(async_rollout_worker.RolloutSample)]
    assert [field.name for field in dataclasses.fields(RolloutSample)] == own


def test_settings_are_read_from_trls_arguments(tmp_path: Any) -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, num_generations=4,
        per_device_train_batch_size=8, gradient_accumulation_steps=2, report_to="none",
    )  # fmt: skip
    settings = RolloutSettings.of(args)
    assert (settings.samples_per_step, settings.num_generations) == (16, 4)
    assert settings.max_inflight_tasks == 16 * args.max_staleness
    assert settings.request_timeout_s == args.request_timeout
    assert settings.max_completion_length == args.max_completion_length


def test_the_client_of_server_mode_is_replaced_where_trl_looks_it_up() -> None:
    own = vllm_client.VLLMClient
    for name in (
        "_start_weight_update", "_finish_weight_update", "_get", "close_communicator",
    ):  # fmt: skip
        assert hasattr(own, name)
    generate = list(inspect.signature(own.generate).parameters)
    from steersman.controller.sidecar.trl.vllm_client import GatewayVLLMClient

    assert list(inspect.signature(GatewayVLLMClient.generate).parameters) == generate
    assert list(inspect.signature(own.update_named_params).parameters) == list(
        inspect.signature(GatewayVLLMClient.update_named_params).parameters
    )
    assert "VLLMClient(" in inspect.getsource(vllm_generation.VLLMGeneration._init_vllm)


def test_the_workers_state_is_written_beside_a_checkpoint(tmp_path: Any) -> None:
    from types import SimpleNamespace

    from support.trl_scene import FakeArguments, FakeTokenizer, rows, share_of_answer
    from transformers import TrainerCallback

    from steersman.controller.sidecar.trl.checkpoints import checkpoint_callback, load_worker
    from steersman.controller.sidecar.trl.endpoints import Endpoints

    def worker() -> SteersmanRolloutWorker:
        gateway = Endpoints("http://gateway:1")
        return SteersmanRolloutWorker(
            gateway, rows(8), share_of_answer, FakeTokenizer(), FakeArguments()
        )

    callback = checkpoint_callback(worker())
    assert isinstance(callback, TrainerCallback)
    state: Any = SimpleNamespace(global_step=20, is_world_process_zero=True)
    callback.on_save(SimpleNamespace(output_dir=str(tmp_path)), state, None)
    load_worker(worker(), tmp_path / "checkpoint-20")


def test_attention_in_plain_torch_is_that_of_a_sample_by_itself() -> None:
    import torch
    import torch.nn.functional as F
    from support.trl_signs import CpuFlash

    torch.manual_seed(0)
    rows = {"completion_mask": torch.tensor([0, 1, 1, 1]), "old_log_probs": torch.zeros(4)}
    samples = [
        {"input_ids": torch.tensor(ids), "advantage": 1.0, "group_id": 0, **rows}
        for ids in ([5, 6, 7, 8], [5, 6, 9, 8], [5, 3, 2, 1])
    ]
    row = packing.TreeRow()
    for sample in samples:
        row.add(sample)
    packed = row.pack()
    width, count = 8, len(packed["input_ids"])
    states = torch.randn(count, 2, width)
    index = packed["tree_kv_index"]
    out = CpuFlash.flash_attn_varlen_func(
        states, states[index], states[index],
        packed["tree_cu_seqlens_q"], packed["tree_cu_seqlens_k"],
        *packed["tree_max_seqlens"].tolist(),
    )  # fmt: skip
    order = {node: place for place, node in enumerate(_depth_first(row))}
    for nodes in row.sample_nodes:
        path = [order[node] for node in nodes]
        own = states[path].transpose(0, 1)
        want = F.scaled_dot_product_attention(own, own, own, is_causal=True).transpose(0, 1)
        assert torch.allclose(out[path], want, atol=1e-5)


def _depth_first(row: Any) -> list[int]:
    """Nodes in the order in which a row is packed."""
    stack, found = list(reversed(row.roots.values())), []
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(reversed(row.children[node].values()))
    return found
