"""Many identical rounds of a certified one-round curve."""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bounds.clones import Curve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.tolerances import TOLERANCES


def compose_equal_rounds(curve: Curve, local_epsilon: float, rounds: int) -> Composition:
    """The composition of `rounds` rounds, each bounded by `curve` in both directions.

    `curve(epsilon)` must be an upper bound on every round's delta whatever the earlier rounds
    released; at `local_epsilon` (nats) and beyond it is zero. The curve is evaluated at 400 to 750
    budgets, all on one lattice, which is also the composition's, and interpolated upwards: epsilon
    exceeds that of the curve itself by less than 1e-5 of its value (docs/proofs.md, 6).
    """
    at_zero = curve(0.0).delta
    if at_zero == 0.0 or local_epsilon == 0.0:
        return Composition([(DominatingPair.from_curve([0.0], [at_zero]), rounds)])
    spread = min(2.51 * at_zero, local_epsilon)
    finest = spread / (
        TOLERANCES.equal_rounds_nodes_per_spread - TOLERANCES.equal_rounds_fewer / math.sqrt(rounds)
    )
    # The curve may have a kink at the local epsilon: a point of the lattice.
    last = math.ceil(local_epsilon / finest)
    grid = local_epsilon / last
    # Where delta is decided a round's loss is tilted by its share of the whole's deviation.
    dense = (
        TOLERANCES.equal_rounds_dense + TOLERANCES.equal_rounds_deepest / math.sqrt(rounds)
    ) * spread
    reach = min(
        local_epsilon, max(dense, TOLERANCES.equal_rounds_spreads * spread + 0.5 * spread * spread)
    )
    places = [np.arange(min(last, math.ceil(dense / grid)) + 1)]
    stride = 2
    while places[-1][-1] < min(last, math.ceil(reach / grid)):
        # Beyond that the points thin out, by half for every half deviation.
        count = max(1, math.ceil(0.5 * spread / (stride * grid)))
        places.append(places[-1][-1] + stride * np.arange(1, count + 1))
        stride *= 2
    start = int(places[-1][-1])
    tail = start + np.ceil(
        (last - start) * np.linspace(0.0, 1.0, TOLERANCES.equal_rounds_tail_points + 1) ** 2
    )
    places = [*places, tail.astype(np.int64)] if last > start else places
    # The thinned points may have run past the kink: it is a point itself, and nothing lies beyond.
    at = np.unique(np.minimum(np.concatenate(places), last))
    epsilons = grid * at.astype(np.float64)
    epsilons[-1] = max(float(epsilons[-1]), local_epsilon)
    deltas = np.array([curve(float(epsilon)).delta for epsilon in epsilons])
    return Composition([(DominatingPair.from_curve(epsilons, deltas, grid=grid), rounds)])
