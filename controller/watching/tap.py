"""A trace that tells viewers of each record as it is written."""

import logging
from collections.abc import Callable

from steersman.controller.trace.records import Record
from steersman.controller.trace.writer import TraceWriter

log = logging.getLogger(__name__)


class TappedTrace(TraceWriter):
    """Writes to `inner`, then shows the record to each of the viewers.

    A viewer that fails is not shown anything more: seeing must never stop a run.
    """

    def __init__(self, inner: TraceWriter, *viewers: Callable[[Record], None]) -> None:
        super().__init__(None)
        self.inner, self.path, self.records = inner, inner.path, inner.records
        self._viewers = list(viewers)

    def write(self, record: Record) -> None:
        """Write it and show it."""
        self.inner.write(record)
        for viewer in self._viewers:
            try:
                viewer(record)
            except Exception:
                log.exception("a viewer of the trace failed; it is shown nothing more")
                self._viewers = [other for other in self._viewers if other is not viewer]

    def flush(self) -> None:
        """Write what is waiting."""
        self.inner.flush()

    def close(self) -> None:
        """Close `inner`.  Idempotent."""
        self.inner.close()
