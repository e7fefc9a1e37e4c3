"""One rank of a trainer (`python -m support.sampled_ranks MEETING-FILE RANKS RANK`).

Each rank learns only the rewards of the prompts it had; `observe_ranks` gathers them.
"""

import json
import sys

import torch.distributed
from support.sampled_training import Indices, chooser, reward, say
from torch.utils.data import DataLoader

from steersman.controller.prompts.torch_sampler import PromptSampler, RewardedGroup

IDS = [f"p{i}" for i in range(23)]


def main(meeting: str, ranks: int, rank: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", world_size=ranks, rank=rank
    )
    sampler = PromptSampler(chooser(), IDS, prompts_per_draw=4)
    epochs: list[list[int]] = []
    for epoch in range(2):
        taken: list[int] = []
        loader = DataLoader(Indices(len(IDS)), batch_size=2, sampler=sampler, num_workers=0)
        for version, batch in enumerate(loader, 1 + 10 * epoch):
            groups = [
                RewardedGroup(IDS[i], [reward(i, version * 8 + k) for k in range(4)])
                for i in batch.tolist()
            ]
            sampler.observe_ranks(groups, version)
            taken += batch.tolist()
        epochs.append(taken)
    state = json.dumps(sampler.state_dict(), default=lambda value: value.tolist())
    say({"epochs": epochs, "state": state})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
