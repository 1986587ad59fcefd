"""Bounds as their papers print them: GSPA, Echo of Neighbors, Renyi forms, closed forms.

Where a printed statement does not stand as it is, the caller's status says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.bounds.published.closed_form import (
        erlingsson2019_epsilon,
        feldman2022_epsilon,
        feldman2023_epsilon,
    )
    from fl_shuffle.accounting.bounds.published.echo_of_neighbors import echo_epsilon
    from fl_shuffle.accounting.bounds.published.gspa import gspa_epsilon, gspa_exact_curve, gspa_mu
    from fl_shuffle.accounting.bounds.published.renyi_closed_forms import (
        chen2024_rdp,
        girgis_lower_rdp,
        girgis_upper_rdp,
    )

__all__ = [
    "chen2024_rdp",
    "echo_epsilon",
    "erlingsson2019_epsilon",
    "feldman2022_epsilon",
    "feldman2023_epsilon",
    "girgis_lower_rdp",
    "girgis_upper_rdp",
    "gspa_epsilon",
    "gspa_exact_curve",
    "gspa_mu",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.bounds.published.echo_of_neighbors": ("echo_epsilon",),
        "fl_shuffle.accounting.bounds.published.gspa": (
            "gspa_epsilon",
            "gspa_exact_curve",
            "gspa_mu",
        ),
        "fl_shuffle.accounting.bounds.published.closed_form": (
            "erlingsson2019_epsilon",
            "feldman2022_epsilon",
            "feldman2023_epsilon",
        ),
        "fl_shuffle.accounting.bounds.published.renyi_closed_forms": (
            "chen2024_rdp",
            "girgis_lower_rdp",
            "girgis_upper_rdp",
        ),
    },
)
