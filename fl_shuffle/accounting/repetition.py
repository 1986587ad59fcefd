"""Many identical rounds of a certified one-round curve."""

from __future__ import annotations

import numpy as np

from fl_shuffle.accounting.clones import Curve
from fl_shuffle.accounting.composition import Composition, DominatingPair

NODES_PER_SPREAD = 14
SPREADS = 9.0
MAX_NODES = 240


def composed(curve: Curve, local_epsilon: float, rounds: int) -> Composition:
    """The composition of `rounds` rounds, each bounded by `curve` in both directions.

    `curve(epsilon)` must be an upper bound on every round's delta whatever the earlier rounds
    released; at `local_epsilon` (nats) and beyond it is zero. The curve is evaluated at up to 240
    budgets and interpolated upwards.
    """
    at_zero = curve(0.0).delta
    if at_zero == 0.0 or local_epsilon == 0.0:
        return Composition([(DominatingPair.from_curve([0.0], [at_zero]), rounds)])
    spread = min(2.51 * at_zero, local_epsilon)
    reach = min(local_epsilon, SPREADS * spread + 0.5 * spread * spread)
    count = min(MAX_NODES, max(8, int(np.ceil(reach / spread * NODES_PER_SPREAD))))
    inner = np.linspace(0.0, reach, count + 1)
    tail = reach + (local_epsilon - reach) * np.linspace(0.0, 1.0, 13)[1:] ** 2
    grid = np.unique(np.concatenate([inner, tail]))
    deltas = np.array([curve(float(epsilon)).delta for epsilon in grid])
    return Composition([(DominatingPair.from_curve(grid, deltas), rounds)])
