"""Certified one-round curves: followed, turned into dominating pairs, composed with themselves."""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.dominating_pairs import LATTICE_MAX_LOSS, DominatingPair
from fl_shuffle.accounting.numerics.stop_loss import DeltaCurve

EQUAL_ROUNDS_NODES_PER_SPREAD = 64.0
"""Points of the one-round curve per spread of its privacy loss, over very many rounds: chords
between them add less than 1e-4 of epsilon, and each point can cost 50 ms."""
EQUAL_ROUNDS_LEAST_SPREAD = 1e-12
"""A smaller spread counts as this one: nearer points of a curve are one in doubles."""
EQUAL_ROUNDS_FEWER = 20.0
"""T rounds do with this / sqrt(T) fewer points per spread: they need them further out."""
EQUAL_ROUNDS_DENSE = 2.1
"""Points are evenly dense over this many spreads ..."""
EQUAL_ROUNDS_DEEPEST = 5.0
"""... and this / sqrt(T) more over T rounds: where delta is decided each round's loss lies out by
its share of the whole's deviation."""
ROUND_NODES_PER_SD = 6.0
"""Points of a round's curve per standard deviation of its privacy loss, near zero (0.1% in
epsilon)."""
ROUND_NEAR_SDS = 3.0
"""Within this many standard deviations, the points are that dense; beyond, half as dense: a
composition of many rounds has little there."""
ROUND_DENSE_SDS = 4.0
"""Beyond this many standard deviations, the points thin out ..."""
ROUND_THIN_SHARE = 0.7
"""... by half after this multiple of the points of a standard deviation near zero."""
ROUND_PATIENCE = 3
"""After this number of points without a smaller certified value, the next ones are further out."""
ROUND_MAX_STALLED = 8
"""This number of points without a smaller certified value ends the curve; the rest is certain
loss."""
ROUND_LOCAL_POINTS = 16
"""Points of the local curve within a long step, where it is the smaller one."""
ROUND_ENOUGH_DELTA = 1e-11
"""Below this the curve is no longer computed but bounded by its last value and the local one: less
than .005% of epsilon over up to 10^4 rounds at delta = 1e-6 (1e-10: 2% there)."""
ROUND_FLOOR_DELTA = 1e-16
"""A curve is followed down to here; the rest is counted as certain loss."""


def compose_equal_rounds(curve: DeltaCurve, local_epsilon: float, rounds: int) -> Composition:
    """Return the composition of `rounds` rounds, each bounded by `curve` in both directions.

    `curve(epsilon)` must be an upper bound on every round's delta whatever the earlier rounds
    released; at `local_epsilon` (nats) and beyond it is zero. The curve is evaluated at 160 to 300
    budgets, all on one grid, which is also the composition's, and interpolated upwards: epsilon
    exceeds that of the curve itself by less than 1e-4 of its value (docs/research/proofs, 6).
    """
    at_zero = curve(0.0).delta
    if at_zero == 0.0 or local_epsilon == 0.0:
        return Composition([(DominatingPair.from_curve([0.0], [at_zero]), rounds)])
    spread = min(max(2.51 * at_zero, EQUAL_ROUNDS_LEAST_SPREAD), local_epsilon)
    finest = spread / (EQUAL_ROUNDS_NODES_PER_SPREAD - EQUAL_ROUNDS_FEWER / math.sqrt(rounds))
    # The curve may have a breakpoint at the local epsilon: a point of the grid.
    last = math.ceil(local_epsilon / finest)
    grid = local_epsilon / last
    # Where delta is decided a round's loss is tilted by its share of the whole's deviation.
    dense = (EQUAL_ROUNDS_DENSE + EQUAL_ROUNDS_DEEPEST / math.sqrt(rounds)) * spread
    places, stride = list(range(min(last, math.ceil(dense / grid)) + 1)), 2
    while places[-1] < last:
        # Beyond that the points thin out, by half for every half deviation.
        count = max(1, math.ceil(0.5 * spread / (stride * grid)))
        places += range(places[-1] + stride, places[-1] + stride * count + 1, stride)
        stride *= 2
    # They may have run past the breakpoint: it is a point itself, and nothing lies beyond.
    at = np.unique(np.minimum(places, last))
    epsilons = grid * at.astype(np.float64)
    epsilons[-1] = max(float(epsilons[-1]), local_epsilon)
    deltas = np.array([curve(float(epsilon)).delta for epsilon in epsilons])
    return Composition([(DominatingPair.from_curve(epsilons, deltas, grid=grid), rounds)])


def shuffled_pair(curve: OneRoundCurve, *, per_sd: float = ROUND_NODES_PER_SD) -> DominatingPair:
    """Return a one-round curve's dominating pair, from points that follow it down to
    `ROUND_FLOOR_DELTA`.

    Points are `per_sd` to a standard deviation near zero, half as many further out, then thin out.
    They end earlier where the engine can certify no smaller value; what is left there counts as
    certain loss. Long steps far out take in the local curve on the way, where that is the smaller
    one already.
    """
    mu = curve.predicted_mu
    # Powers of two: batches that are much alike share their points, and so the work; and all points
    # lie on the composition's grid, which then loses nothing.
    # About `per_sd` points to a standard deviation mu of the loss.
    finest = step = 2.0 ** math.floor(math.log2(mu / per_sd))
    thin_after = max(1, round(ROUND_THIN_SHARE * per_sd))
    thinned = 0
    epsilons = [0.0]
    deltas = [curve.certified(0.0)]
    stalled = 0
    while deltas[-1] > ROUND_FLOOR_DELTA and epsilons[-1] < LATTICE_MAX_LOSS - step:
        if epsilons[-1] >= ROUND_NEAR_SDS * mu and step == finest:
            step *= 2.0
        if epsilons[-1] >= ROUND_DENSE_SDS * mu:
            thinned += 1
            step *= 2.0 if thinned % thin_after == 0 else 1.0
        ahead = epsilons[-1] + step
        # The true curve falls, so the last value and the local curve hold there, too.
        local = curve.local_delta(ahead)
        if local < deltas[-1]:
            # Where the local curve takes over within a long step its points cost nothing.
            between = finest * np.unique(
                np.linspace(epsilons[-1], ahead, ROUND_LOCAL_POINTS) // finest
            )
            for at in between[1:-1].tolist():
                if (value := curve.local_delta(at)) < deltas[-1]:
                    epsilons.append(at)
                    deltas.append(value)
        epsilons.append(ahead)
        known = min(deltas[-1], local)
        if known < ROUND_ENOUGH_DELTA:
            deltas.append(known)
        else:
            deltas.append(min(deltas[-1], curve.certified(ahead)))
        stalled = stalled + 1 if deltas[-1] == deltas[-2] else 0
        if stalled == ROUND_MAX_STALLED:
            break
        if stalled >= ROUND_PATIENCE:
            # The curve jumps a little where its free parameters do: look further out.
            step *= 2.0
    return DominatingPair.from_curve(epsilons, deltas, grid=finest)
