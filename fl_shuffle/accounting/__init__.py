"""Shuffle-model privacy accounting: pure mathematics, usable without a federation.

NumPy and SciPy are all it needs. `laws` says what a report looks like to an accountant,
`engine` computes expectations of sums with certified error, `bounds` has one family of bounds a
module, `rounds` follows clients over many rounds, `attacks` has what is certainly lost, and
`queries` what can be asked. `guarantee` is the answer, `accountant` keeps a federation's
bill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.accountant import Accountant
    from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
    from fl_shuffle.accounting.guarantee import Guarantee, Status
    from fl_shuffle.accounting.queries.methods import bound, compare
    from fl_shuffle.accounting.queries.question import Question
    from fl_shuffle.accounting.reports import ClientClass

__all__ = [
    "Accountant",
    "ClientClass",
    "Guarantee",
    "LocalBudget",
    "Question",
    "Status",
    "bound",
    "compare",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.accountant": ("Accountant",),
        "fl_shuffle.accounting.guarantee": ("Guarantee", "Status"),
        "fl_shuffle.accounting.queries.question": ("Question",),
        "fl_shuffle.accounting.queries.methods": ("bound", "compare"),
        "fl_shuffle.accounting.reports": ("ClientClass",),
        "fl_shuffle.accounting.bounds.personal_budgets": ("LocalBudget",),
    },
)
