"""One self-contained HTML page that compares runs, made from their traces and nothing else."""

from steersman.controller.report.page import write_report
from steersman.controller.report.reading import summarize
from steersman.controller.report.summary import RunSummary

__all__ = ["RunSummary", "summarize", "write_report"]
