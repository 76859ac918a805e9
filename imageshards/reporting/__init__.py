"""A page that shows a data set to people."""

from imageshards.reporting.page import try_report, write_report

__all__ = ["try_report", "write_report"]
