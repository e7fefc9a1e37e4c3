"""When to look ahead, and when the answer is seen.

Asked at the first tick at which something waits and the policy wants it (`LooksAhead`), at least
`every_s` after the last time.  The answer is in the first observation taken at least `delay_s`
later, once; if the step is over by then, in none.  So it is an input of a decision like any other:
it is recorded with the observation, and the same observations give the same decisions.

In virtual time (`InlineHorizon`) it is computed at once and held back until then.  Beside a live
loop (`HorizonThread`) a thread computes it, and it is seen when it is there as well as due.  The
simulator is imported, and the thread started, when the first question is asked.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from steersman.controller.config import HorizonConfig
from steersman.estimators.forecast import Forecast
from steersman.estimators.observation import Advice, Observation
from steersman.policies.adaptive.plans import Plan
from steersman.policies.contract import LooksAhead, PlacementPolicy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """What `look_ahead` is asked."""

    observation: Observation
    forecast: Forecast
    plans: Sequence[Plan]
    scenarios: int

    def answer(self) -> Advice | None:
        """Compute it."""
        # numba and the simulator, which most runs do not need
        from steersman.controller.horizon.ahead import look_ahead

        return look_ahead(self.observation, self.forecast, self.plans, self.scenarios)


class Schedule:
    """The times, without saying who computes; one question at a time."""

    def __init__(self, policy: PlacementPolicy, config: HorizonConfig) -> None:
        self._policy = policy if config.every_s > 0 and isinstance(policy, LooksAhead) else None
        self._config = config
        self._asked_s = float("-inf")

    def question(self, observation: Observation, forecast: Forecast) -> Question | None:
        """To be asked at this tick, or None; whoever asks it must not have one open."""
        due = observation.now_s - self._asked_s >= self._config.every_s
        if self._policy is None or not due or not len(observation.queued):
            return None
        plans = tuple(self._policy.plans)
        if not plans:
            return None
        self._asked_s = observation.now_s
        return Question(observation, forecast, plans, self._config.scenarios)

    def is_due(self, observation: Observation) -> bool:
        """Whether the last question's answer may be seen."""
        return observation.now_s - self._asked_s >= self._config.delay_s

    def switch_off(self) -> None:
        """No more questions."""
        self._policy = None


class InlineHorizon:
    """For virtual time."""

    def __init__(self, policy: PlacementPolicy, config: HorizonConfig) -> None:
        self._schedule = Schedule(policy, config)
        self._open = False
        self._answer: Advice | None = None

    def advised(self, observation: Observation) -> Observation:
        """With the answer that is due, if any."""
        if not self._open or not self._schedule.is_due(observation):
            return observation
        self._open = False
        return with_advice(observation, self._answer)

    def look(self, observation: Observation, forecast: Forecast) -> None:
        """After the decision of a tick."""
        if self._open:
            return
        if question := self._schedule.question(observation, forecast):
            self._open, self._answer = True, question.answer()


class HorizonThread:
    """Beside a live loop; never raises and never waits.

    A look ahead that fails is logged, and the last: a bug stays a bug.  One that hangs leaves its
    thread, a daemon, alone.
    """

    def __init__(self, policy: PlacementPolicy, config: HorizonConfig) -> None:
        self._schedule = Schedule(policy, config)
        self._inbox: queue.SimpleQueue[tuple[Question, Future[Advice | None]] | None] = (
            queue.SimpleQueue()
        )
        self._pending: Future[Advice | None] | None = None
        self._thread: threading.Thread | None = None

    def advised(self, observation: Observation) -> Observation:
        """With the answer that is due and there, if any."""
        pending = self._pending
        if pending is None or not pending.done() or not self._schedule.is_due(observation):
            return observation
        self._pending = None
        if error := pending.exception():
            self._failed(error)
            return observation
        return with_advice(observation, pending.result())

    def look(self, observation: Observation, forecast: Forecast) -> None:
        """After the decision of a tick."""
        if self._pending is not None:
            return
        try:
            question = self._schedule.question(observation, forecast)
        except Exception as error:  # the policy's `plans`
            self._failed(error)
            return
        if question is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="steersman-horizon", daemon=True
            )
            self._thread.start()
        self._pending = Future()
        self._inbox.put((question, self._pending))

    def close(self) -> None:
        """No more questions; the thread ends when it has answered the present one, if any."""
        self._schedule.switch_off()
        self._inbox.put(None)

    def _failed(self, error: BaseException) -> None:
        log.error("looking ahead failed and is switched off", exc_info=error)
        self._schedule.switch_off()

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            question, answer = item
            try:
                answer.set_result(question.answer())
            except BaseException as error:
                answer.set_exception(error)


def with_advice(observation: Observation, advice: Advice | None) -> Observation:
    """The observation with advice about its own step."""
    if advice is None or advice.step != observation.trainer.step:
        return observation
    return replace(observation, advice=advice)
