"""A page and contact sheets that show a data set to people."""

from beam_pipeline.report.page import write_report

__all__ = ["write_report"]
