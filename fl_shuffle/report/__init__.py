"""Runs as one self-contained HTML page, recomputed from their ledgers.

The names below are loaded when they are first asked for: a table of a run needs no page.
"""

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.report.meaning import Policy
    from fl_shuffle.report.page import write_report

__all__ = ["Policy", "write_report"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.report.meaning": ("Policy",),
        "fl_shuffle.report.page": ("write_report",),
    },
)
