"""The HTML report of a run, or of an evaluation."""

from trainer.report.page import write_report

__all__ = ["write_report"]
