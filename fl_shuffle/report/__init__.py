"""Runs as one self-contained HTML page, recomputed from their ledgers."""

from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.page import write_report

__all__ = ["Policy", "write_report"]
