"""Certified one-round curves: followed, turned into dominating pairs, composed with themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fl_shuffle.accounting.bounds.clones import Curve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.tolerances import TOLERANCES

if TYPE_CHECKING:
    from fl_shuffle.accounting.bounds.partial_shuffle.profile_curve import ProfileCurve
    from fl_shuffle.accounting.bounds.vector import VectorCurve


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


def shuffled_pair(
    curve: VectorCurve | ProfileCurve,
    *,
    per_sd: float = TOLERANCES.round_nodes_per_sd,
    near: float = TOLERANCES.round_near_sds,
    dense: float = TOLERANCES.round_dense_sds,
    floor: float = TOLERANCES.round_floor_delta,
    thin_after: int | None = None,
) -> DominatingPair:
    """A one-round curve's dominating pair, from the points of `followed`."""
    epsilons, deltas, grid = followed(
        curve, per_sd=per_sd, near=near, dense=dense, floor=floor, thin_after=thin_after
    )
    return DominatingPair.from_curve(epsilons, deltas, grid=grid)


def followed(
    curve: VectorCurve | ProfileCurve,
    *,
    per_sd: float,
    near: float,
    dense: float,
    floor: float,
    thin_after: int | None = None,
) -> tuple[list[float], list[float], float]:
    """Follow a one-round curve down to `floor`: epsilons, deltas, and the grid the former lie on.

    Points are `per_sd` to a standard deviation up to `near` of them, half as many up to `dense`,
    then thin out, by half after every `thin_after` of them. It stops earlier where the engine can
    certify no smaller value; what is left there counts as certain loss.

    Long steps far out take in the local curve on the way, where that is the smaller one already.
    Beyond `round_far_sds` standard deviations a looser curve will do, and is many times cheaper
    where few blanket reports are expected.
    """
    curve.delta(2.0 * curve.predicted_mu)
    loose = curve.loosened(TOLERANCES.round_far_relative_error)
    mu = curve.predicted_mu
    # Powers of two: batches that are much alike share their points, and so the work; and all points
    # lie on the composition's lattice, which then loses nothing.
    finest = step = 2.0 ** math.floor(math.log2(mu / per_sd))
    if thin_after is None:
        thin_after = max(1, round(TOLERANCES.round_thin_share * per_sd))
    thinned = 0
    epsilons = [0.0]
    deltas = [curve.delta(0.0)]
    stalled = 0
    while deltas[-1] > floor and epsilons[-1] < TOLERANCES.lattice_max_loss - step:
        if near < dense and epsilons[-1] >= near * mu and step == finest:
            step *= 2.0
        if epsilons[-1] >= dense * mu:
            thinned += 1
            step *= 2.0 if thinned % thin_after == 0 else 1.0
        ahead = epsilons[-1] + step
        # The true curve falls, so the last value and the local curve hold there, too.
        local = curve.local_delta(ahead)
        if local < deltas[-1]:
            # Where the local curve takes over within a long step its points cost nothing.
            between = finest * np.unique(
                np.linspace(epsilons[-1], ahead, TOLERANCES.round_local_points) // finest
            )
            for at in between[1:-1].tolist():
                if (value := curve.local_delta(at)) < deltas[-1]:
                    epsilons.append(at)
                    deltas.append(value)
        epsilons.append(ahead)
        known = min(deltas[-1], local)
        if known < TOLERANCES.round_enough_delta:
            deltas.append(known)
        else:
            close = ahead < TOLERANCES.round_far_sds * mu
            deltas.append(min(deltas[-1], (curve if close else loose).delta(ahead)))
        stalled = stalled + 1 if deltas[-1] == deltas[-2] else 0
        if stalled == TOLERANCES.round_max_stalled:
            break
        if stalled >= TOLERANCES.round_patience:
            # The curve jumps a little where its free parameters do: look further out.
            step *= 2.0
    return epsilons, deltas, finest
