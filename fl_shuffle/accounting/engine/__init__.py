"""E(sum)_+ with certified error: the numbers under every bound.

The stop-loss transform of a random number of independent terms by Fourier integral, saddle
point and convex rounding; compositions of many rounds on a lattice; searches on monotone curves.
Numerical error only pushes an upper bound up and a lower bound down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.engine.composition import Composition
    from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
    from fl_shuffle.accounting.engine.dp_accounting_export import to_dp_accounting
    from fl_shuffle.accounting.engine.stop_loss import DeltaBound, amplified_delta

__all__ = ["Composition", "DeltaBound", "DominatingPair", "amplified_delta", "to_dp_accounting"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.engine.composition": ("Composition",),
        "fl_shuffle.accounting.engine.dominating_pairs": ("DominatingPair",),
        "fl_shuffle.accounting.engine.dp_accounting_export": ("to_dp_accounting",),
        "fl_shuffle.accounting.engine.stop_loss": ("DeltaBound", "amplified_delta"),
    },
)
