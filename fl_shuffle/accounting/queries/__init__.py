"""What can be asked of the accountant, and how every bound answers.

`bound_query` validates a question once; `methods` is the list of everything that answers it, a
line each; the other modules turn the bounds of a family into guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.queries.bound_query import BoundQuery
    from fl_shuffle.accounting.queries.methods import (
        METHODS,
        Method,
        applicable_methods,
        bound,
        compare,
    )

__all__ = ["METHODS", "BoundQuery", "Method", "applicable_methods", "bound", "compare"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.queries.bound_query": ("BoundQuery",),
        "fl_shuffle.accounting.queries.methods": (
            "METHODS",
            "Method",
            "applicable_methods",
            "bound",
            "compare",
        ),
    },
)
