"""Prompt choice for verl >= 0.9.1: a data set that lets a policy pick, a buffer that tells rewards.

    data.custom_cls.path=pkg://steersman.controller.sidecar.verl.prompts
    data.custom_cls.name=SteersmanDataset
    data.dataloader_num_workers=0
    +data.steersman.group_size=8                       # = actor_rollout_ref.rollout.n
    trainer.v1.sampler.custom_sampler.path=pkg://steersman.controller.sidecar.verl.prompts
    trainer.v1.sampler.custom_sampler.name=SteersmanReplayBuffer       # or ...Async

verl 0.9.1 has no curriculum sampler any more, so the data set redirects: whatever index the loader
asks for, the row that comes is the one that the policy wants next (`data.steersman.config` is this
project's configuration; its `prompts` section names the policy).  Each row carries how many samples
it is to get (`__rollout_n__`, which verl's worker honours) and its number, by which the buffer
tells the rewards of every finished group, also of those that verl's own filter then drops.  What
verl refills (`refill_fn`) it takes from the same loader, so that refills are chosen as well.

Both live in the driver; the loader's checkpoint holds what was learned and what was drawn.  A
policy's token caps have no effect: verl cuts every response at its own length.  If the policy
fails, rows come in the loader's order.
"""

import logging
from collections import defaultdict
from typing import Any

from steersman.controller._layers import Given
from steersman.controller.config import load_config
from steersman.controller.prompts.building import chooser_of
from steersman.controller.prompts.order import PromptOrder
from steersman.controller.sidecar.verl.version import check_version
from steersman.estimators.errors import InvalidInputError, UnknownNameError

check_version()

import transfer_queue as tq  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402

PROMPT = "steersman_prompt"
"""Field of a row that names it: its place in the data set."""
KEYS = ("group_size", "config")
"""Of the section `data.steersman`."""

log = logging.getLogger(__name__)


class SteersmanDataset(RLHFDataset):  # type: ignore[misc]
    """The training set redirects; the validation set, which verl makes after it, does not."""

    training: "SteersmanDataset | None" = None
    """The one of this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order: PromptOrder | None = None
        self._fixed_size = 0
        if SteersmanDataset.training is None:
            SteersmanDataset.training = self
            self._order = self._new_order()

    def _new_order(self) -> PromptOrder:
        config = self.config
        if config.get("dataloader_num_workers", 0):
            raise InvalidInputError(
                f"data.dataloader_num_workers is {config.dataloader_num_workers}; valid: 0, since "
                "workers would choose prompts without knowing their rewards"
            )
        ours = plain(config.get("steersman") or {})
        for key in ours:
            if key not in KEYS:
                raise UnknownNameError("key in data.steersman:", key, KEYS)
        size = ours.get("group_size")
        if not isinstance(size, int) or size < 1:
            raise InvalidInputError(
                f"data.steersman.group_size is {size}; valid: the number in "
                "actor_rollout_ref.rollout.n, 1 or more"
            )
        self._fixed_size = size
        settings = load_config(Given(ours.get("config") or {}, "data.steersman.config"))
        return PromptOrder(
            chooser_of(settings, size, int(config.get("max_response_length", 1024))),
            range(len(self)),
            prompts_per_draw=int(config.train_batch_size),
            endless=True,
        )

    def __getitem__(self, item: int) -> dict[str, Any]:
        place, size = item, self._fixed_size
        if self._order is not None:
            try:
                chosen = self._taken(self._order)
                if chosen is not None:
                    place, size = chosen, self._order.terms(chosen).size
            except Exception:
                log.exception("the prompt policy failed; prompts come in the loader's order")
                self._order = None
        row: dict[str, Any] = super().__getitem__(place)
        if self._fixed_size:
            row["__rollout_n__"], row[PROMPT] = size, place
        return row

    def _taken(self, order: PromptOrder) -> int | None:
        """The next prompt, which does not come again before its group has ended.

        Groups that fail never end here: once too few prompts are left, all may come again.
        """
        if order.chooser.available < int(self.config.train_batch_size):
            order.chooser.release()
        chosen = order.take()
        if chosen is not None:
            order.chooser.withhold([chosen])
        return chosen

    def observe(
        self, place: int, rewards: list[float], weight_version: int, tokens: list[int]
    ) -> None:
        """A group of the row at `place` has ended."""
        if (order := self._order) is not None:
            order.weight_version = max(order.weight_version, weight_version)
            order.chooser.observe(place, rewards, weight_version, tokens)
            order.chooser.release([place])

    def state_dict(self) -> dict[str, Any]:
        """For the loader's checkpoint."""
        return {} if self._order is None else self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if self._order is not None and state:
            self._order.load_state_dict(state)


class _Telling:
    """Mixed into verl's buffers: each finished group's rewards are told once."""

    finished_keys: dict[str, set[str]]
    partitions: dict[str, dict[str, dict[str, Any]]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        extra = plain(kwargs.get("sampler_kwargs") or {})
        # verl keeps its filter's settings from buffers that are not its own
        super().__init__(*args, **{**kwargs, **extra})
        self._told: set[str] = set()

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Any:
        """verl asks this of every snapshot, before anything is dropped."""
        if partition_id != "val" and SteersmanDataset.training is not None:
            self._tell(SteersmanDataset.training, global_steps, partition_id)
        return super()._terminal_eviction_reasons(global_steps, partition_id)  # type: ignore[misc]

    def _tell(self, dataset: SteersmanDataset, global_steps: int, partition_id: str) -> None:
        finished = self.finished_keys[partition_id]
        self._told &= finished
        tags = self.partitions[partition_id]
        keys = [key for key in tags if key.split("_")[0] in finished - self._told]
        self._told |= finished
        if not keys:
            return
        data = tq.kv_batch_get(
            keys=keys, partition_id=partition_id, select_fields=["rm_scores", PROMPT]
        )
        last: dict[tuple[str, str], tuple[int, float, int]] = {}
        scored = zip(keys, list(data["rm_scores"]), list(data[PROMPT]), strict=True)
        for key, scores, place in scored:
            uid, session, _ = key.split("_")
            row = int(getattr(place, "data", place))
            # of a trajectory in several pieces the last has the reward of the whole
            last[uid, session] = row, float(scores.sum()), int(tags[key]["response_len"])
        groups: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
        for (uid, _), sample in last.items():
            groups[uid].append(sample)
        for samples in groups.values():
            places, rewards, tokens = (list(column) for column in zip(*samples, strict=True))
            dataset.observe(int(places[0]), rewards, global_steps, [int(t) for t in tokens])


class SteersmanReplayBuffer(_Telling, ReplayBuffer):  # type: ignore[misc]
    """For trainer_mode sync.  `trainer.v1.sampler.sampler_kwargs` may hold verl's filter settings
    (filter_groups_metric, train_batch_size, gen_batch_size, max_inflight_gen_batches)."""


class SteersmanReplayBufferAsync(_Telling, ReplayBufferAsync):  # type: ignore[misc]
    """For colocate_async and separate_async."""


def plain(section: Any) -> dict[str, Any]:
    """A section of verl's configuration as a dict."""
    found = OmegaConf.to_container(section) if OmegaConf.is_config(section) else section
    if not isinstance(found, dict):
        raise InvalidInputError(f"{section!r:.60} is no section; valid: keys and values")
    return {str(key): value for key, value in found.items()}
