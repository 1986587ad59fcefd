"""A run as one self-contained HTML page, recomputed from its ledger."""

from fl_shuffle.report.page import write_report

__all__ = ["write_report"]
