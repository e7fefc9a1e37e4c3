"""The rollout side of verl's V1 trainers as a whole: loader, agent loops, buffer, engines."""

import random
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import ray
from omegaconf import OmegaConf, open_dict
from servers import trainer_config
from test_rollout import pytestmark as pytestmark
from test_rollout import router_file

PROMPTS, BATCH, SAMPLES = 24, 6, 4


def data_file(folder: Path) -> Path:
    """Prompts in the words of the engines' tokenizer, as verl's data sets are laid out."""
    import pandas

    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(3, 64)}" for _ in range(10)) for _ in range(PROMPTS)]
    rows = [
        {
            "data_source": "test",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": n},
        }
        for n, text in enumerate(texts)
    ]
    path = folder / "train.parquet"
    pandas.DataFrame(rows).to_parquet(path)
    return path


def configured(model: Path, folder: Path) -> Any:
    """verl's configuration with this project's keys."""
    loops = folder / "loops.yaml"
    loops.write_text("- {name: rewarded, _target_: rewarding.RewardedLoop}\n")
    config = trainer_config(model, Path(router_file(folder)))
    with open_dict(config):
        rollout = config.actor_rollout_ref.rollout
        rollout.agent.agent_loop_config_path = str(loops)
        rollout.agent.default_agent_loop = "rewarded"
        rollout.agent.num_workers = 2
        rollout.response_length, rollout.n, rollout.nnodes = 150, SAMPLES, 1
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
        config.data.train_files = config.data.val_files = str(data_file(folder))
        config.data.train_batch_size, config.data.dataloader_num_workers = BATCH, 0
        config.data.max_prompt_length, config.data.max_response_length = 64, 150
        config.data.steersman = {
            "group_size": SAMPLES,
            "config": {"prompts": {"name": "prompt_value"}},
        }
    return config


def submit(loader: Any, manager: Any, step: int) -> list[int]:
    """As `PPOTrainer._add_batch_to_generate` does; the rows that were chosen."""
    import transfer_queue as tq
    from verl.utils import tensordict_utils as tu

    rows = next(loader)
    rows["uid"] = np.array([str(uuid.uuid4()) for _ in rows["raw_prompt"]], dtype=object)
    batch = tu.get_tensordict(rows)
    tu.assign_non_tensor_data(batch, "global_steps", step)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in rows["uid"]]
    tq.kv_batch_put(keys=list(rows["uid"]), partition_id="train", tags=tags)
    manager.generate_sequences(batch)
    return [int(place) for place in rows["steersman_prompt"]]


def test_two_steps_of_a_trainer_with_chosen_prompts_and_moved_trajectories(
    engines: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    import transfer_queue as tq
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl.utils.import_utils import load_class_from_fqn, load_extern_object
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerManager

    config = configured(model, tmp_path)
    tq.init(config.transfer_queue)
    servers = LLMServerManager.create_empty(config)
    router = servers.global_load_balancer
    ray.get(router.add_servers.remote(engines))
    manager = load_class_from_fqn(
        "steersman.controller.sidecar.verl.manager.SteersmanAgentLoopManager"
    ).create(
        config=config,
        llm_client=servers.get_client(client_cls=FullyAsyncLLMServerClient),
        teacher_client=None,
        reward_loop_worker_handles=None,
    )
    ours = "pkg://steersman.controller.sidecar.verl.prompts"
    with open_dict(config):
        config.data.custom_cls = {"path": ours, "name": "SteersmanDataset"}
    dataset = create_rl_dataset(config.data.train_files, config.data, tokenizer_of(model), None)
    validation = create_rl_dataset(config.data.val_files, config.data, tokenizer_of(model), None)
    buffer = load_extern_object(ours, "SteersmanReplayBuffer")(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        poll_interval=0.2,
        refill_fn=lambda count: count,
    )

    def loading(rows: Any) -> Any:
        return StatefulDataLoader(
            dataset=rows,
            batch_size=BATCH,
            num_workers=0,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(config.data, rows),
        )

    made = loading(dataset)
    loader = iter(made)

    chosen, lengths = [], []
    for step in (1, 2):
        chosen.append(submit(loader, manager, step))
        batch, _ = buffer.sample(step, "train", BATCH)
        assert len(batch.keys) == BATCH * SAMPLES
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id="train", select_fields=["responses", "extra_fields"]
        )
        lengths += [len(ids) for ids in data["responses"]]
        infos = [dict(getattr(e, "data", e))["steersman"] for e in data["extra_fields"]]
        assert all(info["steered"] for info in infos)
        tq.kv_clear(partition_id="train", keys=batch.keys)
    status = ray.get(router.get_status.remote())["steersman"]
    state = made.state_dict()
    ray.kill(router)

    assert len(lengths) == 2 * BATCH * SAMPLES
    assert 0 < min(lengths) <= max(lengths) <= 150
    assert status["queued"] == status["answered"] == 2 * BATCH * SAMPLES
    assert status["moves"] > 0
    assert "steersman_prompt" not in validation[3]
    assert all(len(set(rows)) == BATCH for rows in chosen)
    learned = dataset._order.chooser.state_dict()["observed"]
    assert len(learned) == BATCH  # those of step 1 were learned when step 2 was chosen
    assert all(len(group[1]) == SAMPLES for group in learned)

    type(dataset).training = None  # another process goes on from the checkpoint
    again = create_rl_dataset(config.data.train_files, config.data, tokenizer_of(model), None)
    resumed = loading(again)
    resumed.load_state_dict(state)
    following = [int(place) for place in next(iter(resumed))["steersman_prompt"]]
    assert following == [int(place) for place in next(loader)["steersman_prompt"]]


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
