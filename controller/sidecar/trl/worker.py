"""`SteersmanRolloutWorker`: TRL's `RolloutWorkerProtocol` over a gateway, or over plain engines.

The prompt policy of the configuration chooses prompts; whole groups are asked for at the gateway,
which places and moves them over its engines; reward functions score them; the policy learns, gets
some more samples, and filters groups that teach nothing; the rest go into `rollout_buffer`.

*How far ahead.*  Samples in flight and in the buffer together are at most `max_inflight_tasks` (by
default what the trainer can use before it is too stale).  TRL's own worker bounds the two apart,
and so fills its buffer with samples that are dropped later.  A group that is too stale before it
has ended is abandoned, and its prompt begins again.

*Versions.*  A group has the version of the oldest weights that wrote any of it, as TRL counts: the
version at its start.  Segments, lag and weights are in each sample's `metrics`.

*Ends.*  Whatever goes wrong ends the worker's thread and is raised by `check_health`, which the
trainer calls whenever it waits: a gateway that is lost with `on_loss="stop"`, a request that is
refused, a reward function that fails.  All waits are bounded.

It runs in a thread of the trainer's process: it mostly waits.  Reward functions that compute a lot
belong into another process (make them asynchronous).  Conversations of several turns, tools and
environments are not rolled out here; TRL's own worker does that, with the gateway as its server.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steersman.controller.config import Config, load_config
from steersman.controller.sidecar.prompts.supply import Answers, PromptSupply, Verdict
from steersman.controller.sidecar.trl.client import Client
from steersman.controller.sidecar.trl.dataset import PromptData, Tokenizer
from steersman.controller.sidecar.trl.endpoints import Endpoints
from steersman.controller.sidecar.trl.rolling import Flight, GroupRoller, Tally
from steersman.controller.sidecar.trl.samples import RolloutSample
from steersman.controller.sidecar.trl.scoring import RewardFunction, Rewards
from steersman.controller.sidecar.trl.settings import RolloutSettings
from steersman.estimators.errors import InvalidInputError, SteersmanError

BEAT_S = 0.2
"""Between two looks at what is to do, if nothing ends."""
STOP_S = 15.0
"""For the thread to end; TRL gives its own worker as long."""
TELL_EVERY_S = 1.0
"""Between two reports to the trainer."""
MOST_REPORTS = 4096
"""In the metrics queue; a trainer that does not read them costs no more."""

log = logging.getLogger(__name__)


class _Buffer(queue.Queue[RolloutSample]):
    """The trainer's queue; it notes which groups the trainer has begun to take."""

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self.taken: deque[int] = deque()

    def _get(self) -> RolloutSample:  # called with the queue's lock held
        sample: RolloutSample = super()._get()
        self.taken.append(sample.group_id)
        return sample


class SteersmanRolloutWorker:
    """Give it to `AsyncGRPOTrainer(rollout_worker=...)`."""

    def __init__(
        self,
        endpoints: Endpoints,
        dataset: Any,
        reward_funcs: RewardFunction | Sequence[RewardFunction],
        processing_class: Tokenizer,
        args: Any,
        *,
        config: Config | Sequence[str] = (),
        drop_degenerate: bool = True,
        weigh_groups: bool = False,
    ) -> None:
        """
        Parameters
        ----------
        endpoints
            Where requests go; the same object as the weight transfer's.
        dataset, reward_funcs, processing_class, args
            As for `AsyncGRPOTrainer`: rows with a column `prompt`, its reward functions (any
            callables: nothing is pickled), its tokenizer and its `AsyncGRPOConfig`.
        config
            A configuration, or overrides of the default one ("prompts.name=prompt_value").  The
            prompt policy, the success estimator, the seed and the normaliser count here; the rest
            belongs to the gateway.
        drop_degenerate
            Whether groups whose rewards are all equal are left out, whatever the policy.
        weigh_groups
            Whether a group's advantages are multiplied by its weight, which makes the batch an
            estimate over all prompts alike; off: it is over the prompts as they were chosen.
        """
        if not isinstance(config, Config):
            config = load_config(None, [f"seed={getattr(args, 'seed', 0)}", *config], {})
        self.endpoints, self.config = endpoints, config
        self.settings = RolloutSettings.of(args)
        self._data = PromptData(dataset, processing_class, self.settings.chat_template_kwargs)
        self._roller = GroupRoller(
            self.settings,
            config,
            self._data,
            Rewards(reward_funcs, self.settings.request_timeout_s),
            weigh_groups=weigh_groups,
            version=lambda: self.model_version,
            judge=self._judged,
        )
        size, cap = self.settings.num_generations, self.settings.max_completion_length
        self.supply = PromptSupply(config, size, cap, drop_degenerate=drop_degenerate)
        self.supply.set_pool(self._data.prompt_ids)
        self.rollout_buffer: _Buffer = _Buffer(self.settings.queue_maxsize)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(MOST_REPORTS)
        self.model_version = 0
        self._earlier = 0
        """Versions of the run that this one resumes: trainers count from 1 again, beliefs about
        prompts go on."""
        self._flights: dict[asyncio.Task[list[RolloutSample] | None], Flight] = {}
        self._untaken: set[int] = set()
        """Groups that were delivered, of which the trainer has taken nothing yet."""
        self._expired = 0
        self._reported: dict[str, int] = {}
        self._told_s = self._beat_s = time.monotonic()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.RLock()
        """Around the books, which `state_dict` reads from another thread."""

    # TRL's protocol

    def start(self) -> None:
        """Begin producing."""
        if self._thread is not None:
            log.warning("the rollout worker is running already")
            return
        self._stopping.clear()
        self._failure, self._beat_s = None, time.monotonic()
        self._thread = threading.Thread(target=self._run, name="steersman-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; what was in flight begins again if the worker is started again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        thread.join(STOP_S)
        if thread.is_alive():
            log.warning("the rollout worker did not end within %.0f s", STOP_S)

    def update_model_version(self, model_version: int) -> None:
        """These weights are live now."""
        self.model_version = int(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the worker, or that it has not moved for so long."""
        if self._failure is not None:
            raise RuntimeError(f"the rollout worker has ended: {self._failure}") from self._failure
        idle_s = time.monotonic() - self._beat_s
        if self._thread is not None and idle_s > stale_after_s:
            raise RuntimeError(f"the rollout worker has not moved for {idle_s:.0f} s")

    # State

    def state_dict(self) -> dict[str, Any]:
        """What is known of prompts, and which were chosen and not taken by the trainer."""
        with self._lock:
            self._settle()
            return {"supply": self.supply.state_dict(), "weight_version": self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, before `start`: what was owed is rolled out first."""
        if self._thread is not None:
            raise InvalidInputError("the worker is running; load its state before it is started")
        self.supply.load_state_dict(dict(state["supply"]))
        self._earlier = max(int(state["weight_version"]) - 1, 0)
        self._untaken.clear()

    def counts(self) -> dict[str, int]:
        """Groups begun, revisits, accepted, filtered ... so far."""
        with self._lock:
            return {**self.supply.counts, "expired": self._expired}

    # The thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not isinstance(error, SteersmanError):
                log.exception("the rollout worker failed")
            self._failure = error

    async def _main(self) -> None:
        async with Client(self.endpoints) as client:
            self._roller.model = await client.model_name()
            try:
                while not self._stopping.is_set():
                    self._beat_s = time.monotonic()
                    with self._lock:
                        self._settle()
                        self._expire()
                        self._begin(client)
                    await self._wait()
                    self._report()
            finally:
                await self._abandon()

    def _begin(self, client: Client) -> None:
        """Groups for what room there is."""
        settings = self.settings
        while True:
            ahead = sum(flight.size for flight in self._flights.values())
            ahead += self.rollout_buffer.qsize()
            if ahead and ahead + settings.num_generations > settings.max_inflight_tasks:
                return
            now = self._now
            plan = self.supply.next(settings.groups_per_step, now, now, time.monotonic())
            if plan is None:
                return
            flight = Flight(plan, self.model_version, size=plan.size)
            self._flights[asyncio.create_task(self._roller.roll(client, flight))] = flight

    async def _wait(self) -> None:
        """Until a group has ended, or for a beat."""
        if not self._flights:
            await asyncio.sleep(BEAT_S)
            return
        done, _ = await asyncio.wait(
            self._flights, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            with self._lock:
                flight = self._flights.pop(task)
                made = task.result()
                number = flight.plan.number
                if not made:
                    self.supply.settle(number)
                    continue
                self._untaken.add(number)
            await self._deliver(made)

    async def _deliver(self, made: list[RolloutSample]) -> None:
        for sample in made:
            sample.enqueued_at = time.time()
            while not self._stopping.is_set():
                self._beat_s = time.monotonic()
                try:
                    self.rollout_buffer.put_nowait(sample)
                    break
                except queue.Full:
                    await asyncio.sleep(BEAT_S)

    def _settle(self) -> None:
        """The trainer has begun to take these groups: nothing is owed for them."""
        while self.rollout_buffer.taken:
            number = self.rollout_buffer.taken.popleft()
            if number in self._untaken:
                self._untaken.discard(number)
                self.supply.settle(number)

    def _expire(self) -> None:
        """Abandon what the trainer would drop when it has ended."""
        oldest = self.model_version - self.settings.max_staleness
        for task, flight in list(self._flights.items()):
            if flight.weight_version < oldest and not task.done():
                task.cancel()
                del self._flights[task]
                self._expired += 1
                self.supply.give_up([flight.plan.number])

    async def _abandon(self) -> None:
        tasks = list(self._flights)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with self._lock:
            self.supply.give_up(sorted(f.plan.number for f in self._flights.values()))
            self._flights.clear()

    def _judged(self, answers: Answers) -> Verdict:
        answers = replace(answers, weight_version=answers.weight_version + self._earlier)
        with self._lock:
            return self.supply.complete(answers, self._now, self._now)

    @property
    def _now(self) -> int:
        """The live version, counted through all runs."""
        return self.model_version + self._earlier

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        tally, self._roller.tally = self._roller.tally, Tally()
        since, counts = tally.counts, self.counts()
        report: dict[str, Any] = {
            "rollout/inflight": float(sum(f.size for f in self._flights.values())),
            "rollout/generated_tok_s": (float(since["tokens"]), now_s - self._told_s),
            "completions/mean_length": (float(since["tokens"]), float(since["samples"])),
            "steersman/reward_of_all": (tally.reward, float(since["rewarded"])),
            "steersman/direct_total": float(since["direct"]),
            "steersman/gateway_lost": float(self.endpoints.direct),
        }
        before = self._reported
        for name, count in counts.items():
            report[f"steersman/groups_{name}_total"] = float(count - before.get(name, 0))
        self._reported, self._told_s = counts, now_s
        with contextlib.suppress(queue.Full):
            self.metrics_queue.put_nowait(report)
