"""A page that shows what a run learned, and where it still errs."""

from trainer.report.page import write_report

__all__ = ["write_report"]
