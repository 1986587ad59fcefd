"""Laplace reports of which only the sum leaves: a Gaussian sum, but for rare mixing variables.

Laplace noise of scale b is Gaussian noise of variance 2 b^2 E, E exponential. With all E known to
the adversary a round is Gaussian with parameter at most

    mu_i = (shift_i + bad_i g_i) / sqrt(w)

(`shift_i` in l1), except with probability `SUM_RARE`: w bounds the variance of every coordinate
(Chernoff), and on at most bad_i coordinates the client's own E is so small that its rounded report
moves by one more step of its grid (docs/research/proofs, section 15). Relation: replace-one.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle._internal.arrays import Counts, Vector
from fl_shuffle.accounting.report_grid import GRID_SMOOTHING
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_UP

SUM_RARE = 1e-12
"""Added to delta for every sum of Laplace reports: the rare cases that are given up. Smaller would
count less noise, larger would be felt at small deltas."""


def laplace_sum_mu(
    scale: Vector,
    shift: Vector,
    grid: Vector,
    present: Counts,
    *,
    dimension: int,
    honest: int | None = None,
) -> Vector:
    """Return the Gaussian parameter of one sum of Laplace reports, per class of clients.

    Parameters
    ----------
    scale : ndarray, shape (classes,)
        Laplace scale b of a report in the sum, weights included.
    shift : ndarray, shape (classes,)
        How far replacing one unit moves a report's mean (l1).
    grid, present, honest
        As for `sum_mu`.
    dimension : int
        Number of coordinates.

    Returns
    -------
    ndarray, shape (classes,)
        mu, but for probability `SUM_RARE`; infinite where the client's own guarantee is all that
        counts.

    Notes
    -----
    Statement: mu = (shift + m g)/sqrt(w). Source: docs/research/proofs, section 15. Neighbors:
    replace-one. Direction of error: rounded up.
    """
    arrived = int(present.sum())
    honest = arrived if honest is None else min(honest, arrived)
    levels = np.unique(grid[present > 0])
    mu = np.full(len(scale), math.inf)
    for own in levels:
        members = (grid == own) & (present > 0)
        for coarsest in levels[levels >= own]:
            variance = _sure_variance(
                scale, grid, present, float(own), float(coarsest), dimension, honest
            )
            if variance > 0.0:
                small = float(_small(scale[members], float(coarsest)).max())
                # In a bad coordinate the own noise is revealed, and the rounded report moves by one
                # more step.
                far = _bad_coordinates(small, dimension) * float(own)
                found = (shift[members] + far) / math.sqrt(variance) * ROUND_UP
                mu[members] = np.minimum(mu[members], found)
    # About where the client's own noise alone is worth as much.
    return np.where(mu < shift / scale, mu, math.inf)


def _small(scale: Vector, coarsest: float) -> Vector:
    """Return how likely it is that the noise of one coordinate does not bridge the grid."""
    # p = P(2 b^2 E < q) = 1 - e^(-q/(2 b^2)) with q = 4 c^2 G^2.
    result: Vector = -np.expm1(-2.0 * (GRID_SMOOTHING * coarsest / scale) ** 2)
    return result


def _sure_variance(
    scale: Vector,
    grid: Vector,
    present: Counts,
    own: float,
    coarsest: float,
    dimension: int,
    honest: int,
) -> float:
    """Return the variance that every coordinate has, counting grids up to `coarsest`.

    0 if none is sure. For a client on the grid `own`: it also needs one honest report on a grid no
    coarser than its own that bridges the coarsest, in every coordinate.
    """
    rare = math.log(0.25 * SUM_RARE / dimension)
    fine = (grid <= own) & (present > 0)
    # The first condition of section 15, d prod_F p_j <= rho/4, with as few honest reports in F as
    # can be, each with the largest p.
    fine_honest = max(1, honest - int(present[~fine].sum()))
    least = float(np.log(_small(scale[fine], coarsest).max()))
    if fine_honest * least > rare:
        return 0.0
    counted = (grid <= coarsest) & (present > 0)
    # The second condition: as few honest reports in C as can be, of the smallest scales.
    number = max(1, honest - int(present[(~counted)].sum()))
    order = np.argsort(scale[counted], kind="stable")
    values = 2.0 * scale[counted][order] ** 2
    upto = np.cumsum(present[counted][order])
    counts = np.diff(np.minimum(upto, number), prepend=0).astype(np.float64)
    # w + |C| q = (ln(rho/4d) + sum over C of ln(1 + 2 b^2 theta))/theta: Chernoff's bound, the
    # largest over a ladder of theta. `paid` is |C| q.
    paid = 4.0 * (GRID_SMOOTHING * coarsest) ** 2 * number
    best = 0.0
    for rate in np.geomspace(0.1, 1e6, 61) / float(values @ counts):
        best = max(best, (rare + float(np.log1p(rate * values) @ counts)) / float(rate))
    return (best * ROUND_DOWN - paid) * ROUND_DOWN


def _bad_coordinates(small: float, dimension: int) -> int:
    """Return a number that coordinates with a small own E do not exceed.

    They do with a quarter of `SUM_RARE` at most.
    """
    rare, mean = math.log(0.25 * SUM_RARE), small * dimension
    if mean > 5.0:
        # (mean)^k / k! <= (e mean / k)^k, which is e^-k from k = e^2 mean on.
        return min(dimension, math.ceil(max(math.exp(2.0) * mean, -rare)))
    # The third condition: (d p)^(m + 1)/(m + 1)! <= rho/4.
    bad = 0
    while (bad + 1) * math.log(mean) - math.lgamma(bad + 2) > rare:
        bad += 1
    return min(bad, dimension)
