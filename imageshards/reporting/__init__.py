"""Writes the page that shows a dataset to people, for `imageshards report`."""

from imageshards.reporting.page import try_report, write_report

__all__ = ["try_report", "write_report"]
