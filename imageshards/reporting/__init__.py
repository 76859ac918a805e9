"""A page and contact sheets that show a data set to people."""

from imageshards.reporting.page import try_report, write_report

__all__ = ["try_report", "write_report"]
