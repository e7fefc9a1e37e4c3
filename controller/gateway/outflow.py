"""What a streaming client is still to be sent, in the order in which it is to be sent."""

from steersman.controller.gateway.asked import relayed
from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.info import info_of
from steersman.controller.gateway.question import Question
from steersman.controller.gateway.reply import Reply
from steersman.mechanisms.http_vllm.ask import Answer


class Outflow:
    """Of one question that is streamed; whoever sends takes what is due at each of its news."""

    def __init__(self, question: Question, desk: Desk) -> None:
        self._question, self._desk = question, desk
        form = question.form
        self._form = form if question.asks[0].dialect is not None else None
        """None: bytes are passed on as they are."""
        self._told = [False] * len(question.asks)
        self.begun = False
        """Something was taken: it is a stream."""
        self.over = False
        """All of it was taken."""

    def instead(self) -> Reply | None:
        """An answer in one piece, which it is if it ended before there was a stream.

        To be asked once there are news.
        """
        question = self._question
        if self.begun:
            return None
        if question.failure is not None:
            return relayed(question.failure)
        if self._form is None and question.finished.is_set() and not question.passed:
            return relayed(question.asks[0].answer or Answer(502, b""))
        return None

    def take(self) -> bytes:
        """The events that are due; perhaps none."""
        question, form = self._question, self._form
        events: list[bytes] = []
        self.begun = True
        while question.passed:
            events.append(question.passed.popleft())
        while form is not None and question.written:
            index, delta = question.written.popleft()
            events += form.chunk(question, index, delta, not self._told[index])
            self._told[index] = True
        if question.finished.is_set():
            events += self._last()
            self.over = True
        return b"".join(events)

    def _last(self) -> list[bytes]:
        question, form = self._question, self._form
        if question.failure is not None:
            told = question.failure.body.replace(b"\n", b" ")
            return [b"data: " + told + b"\n\ndata: [DONE]\n\n"]
        if form is None:
            return []
        if question.told.info:
            question.info = info_of(question, self._desk.pace.weight_version)
        return form.closing(question)
