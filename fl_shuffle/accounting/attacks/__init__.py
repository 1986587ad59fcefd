"""Lower bounds: what a chosen dataset or a computed attack certainly loses.

Every number here is reached by an adversary; its numerical error is subtracted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
    from fl_shuffle.accounting.attacks.likelihood_ratio import attack_epsilon

__all__ = ["attack_epsilon", "lower_bound_delta", "lower_bound_epsilon"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.attacks.chosen_datasets": (
            "lower_bound_delta",
            "lower_bound_epsilon",
        ),
        "fl_shuffle.accounting.attacks.likelihood_ratio": ("attack_epsilon",),
    },
)
