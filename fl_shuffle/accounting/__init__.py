"""Shuffle-model privacy accounting: pure mathematics, usable without a federation.

It needs NumPy and SciPy alone. `distributions` describes reports, `numerics` computes expectations
of sums with certified error, `bounds` has one family of bounds per module, `rounds` follows clients
over many rounds, `lower_bounds` has what an attack reaches, and `queries` answers questions.
`guarantee` is the answer, and `accountant` tracks what a federation spends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle._internal.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.accountant import Accountant
    from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
    from fl_shuffle.accounting.client_classes import ClientClass
    from fl_shuffle.accounting.guarantee import Guarantee, Status
    from fl_shuffle.accounting.queries.methods import bound, compare
    from fl_shuffle.accounting.queries.query import BoundQuery

__all__ = [
    "Accountant",
    "BoundQuery",
    "ClientClass",
    "Guarantee",
    "LocalBudget",
    "Status",
    "bound",
    "compare",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.accountant": ("Accountant",),
        "fl_shuffle.accounting.guarantee": ("Guarantee", "Status"),
        "fl_shuffle.accounting.queries.query": ("BoundQuery",),
        "fl_shuffle.accounting.queries.methods": ("bound", "compare"),
        "fl_shuffle.accounting.client_classes": ("ClientClass",),
        "fl_shuffle.accounting.bounds.personal_budgets": ("LocalBudget",),
    },
    renamed={"Question": "BoundQuery"},
)
