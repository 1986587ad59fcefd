"""Upper bounds for one shuffled round, one family a module.

Blanket bounds of a given randomizer, clone reductions of any, noise on a ball for vectors,
moments, Renyi divergences, personal budgets; `published` has formulas as printed. Each
docstring gives statement, source and neighbouring relation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.bounds.blanket import (
        blanket_delta,
        blanket_epsilon,
        largest_local_budget,
        smallest_cohort,
    )
    from fl_shuffle.accounting.bounds.clones import standard_clone
    from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
    from fl_shuffle.accounting.bounds.report_class import ReportClass
    from fl_shuffle.accounting.bounds.vector import VectorCurve

__all__ = [
    "LocalBudget",
    "ReportClass",
    "VectorCurve",
    "blanket_delta",
    "blanket_epsilon",
    "largest_local_budget",
    "smallest_cohort",
    "standard_clone",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.bounds.blanket": (
            "blanket_delta",
            "blanket_epsilon",
            "largest_local_budget",
            "smallest_cohort",
        ),
        "fl_shuffle.accounting.bounds.clones": ("standard_clone",),
        "fl_shuffle.accounting.bounds.personal_budgets": ("LocalBudget",),
        "fl_shuffle.accounting.bounds.report_class": ("ReportClass",),
        "fl_shuffle.accounting.bounds.vector": ("VectorCurve",),
    },
)
