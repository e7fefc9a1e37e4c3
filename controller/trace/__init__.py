"""The trace: what happened, a record a line.  Replay, evaluation and reports read only this."""
