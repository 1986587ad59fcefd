"""The smallest Gaussian trade-off curve below a proven one: a guarantee as Gaussian DP.

A mechanism is mu-GDP but for `rare` if, for every epsilon >= 0 and both orders of the neighbors,

    delta(epsilon) <= delta_mu(epsilon) + rare.                                              (*)

Then its trade-off function is f >= G_mu - rare. Proof: at type I error a, f is the supremum over
epsilon >= 0 of 0 and of the lines 1 - delta(epsilon) - e^epsilon a and
e^-epsilon (1 - delta(epsilon) - a) (Dong, Roth, Su 2022, Proposition 2.12, for a symmetric f). By
(*) a line of the first kind is at most `rare` below that of G_mu, and one of the second kind at
most e^-epsilon `rare`.

Why `rare` must not be zero: a proven curve of shuffled reports has some mass of certain loss, if
only from numerical cuts. delta_mu falls to zero, so no finite mu is above such a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.gaussian_mechanism import MAX_MU, gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_OFF

COVER_NODES = 256
"""Cells of the proven curve: 4 times as many lower mu by less than 0.1%."""
COVER_STEPS = 60
"""Halvings of the interval of mu: to below its round-off."""


class GaussianCover(NamedTuple):
    """A guarantee as Gaussian DP.

    Attributes
    ----------
    mu : float
        Parameter of the Gaussian trade-off function G_mu; infinite if there is none.
    rare : float
        The trade-off function is at least G_mu - `rare`.
    """

    mu: float
    rare: float


def smallest_cover(
    profile: Callable[[ArrayLike], FloatArray], epsilon: float, rare: float
) -> GaussianCover:
    """Return the smallest mu for which a proven curve is certainly mu-GDP but for `rare`.

    Parameters
    ----------
    profile : callable
        Upper bounds on delta at each of some epsilons >= 0, for both orders of the neighbors.
    epsilon : float
        A proven epsilon (nats) at delta = `rare`.
    rare : float
        The probability that is given up, in (0, 1).

    Returns
    -------
    GaussianCover
        mu is rounded up; infinite where `epsilon` is, or no mu is known to be enough.

    Notes
    -----
    Neighbors: those of `profile`. Both curves are convex in x = e^epsilon. So on a cell the proven
    one is below the chord of its upper bounds, and delta_mu is above its tangent at the middle. Two
    lines are compared at the ends of the cell. From `epsilon` on (*) holds for every mu, because
    delta is at most `rare` there.
    """
    if not math.isfinite(epsilon):
        return GaussianCover(math.inf, rare)
    nodes = np.linspace(0.0, epsilon, COVER_NODES + 1)
    most = np.minimum.accumulate(np.asarray(profile(nodes), dtype=np.float64)) - rare
    most[-1] = min(float(most[-1]), 0.0)
    if most[0] <= 0.0:
        return GaussianCover(0.0, rare)
    middle = 0.5 * (nodes[:-1] + nodes[1:])
    # x - x_middle, in units of x_middle, at both ends of each cell.
    left, right = -np.expm1(nodes[:-1] - middle), np.expm1(nodes[1:] - middle)

    def covers(mu: float) -> bool:
        # d delta_mu / dx = -Phi(-epsilon/mu - mu/2), times x_middle.
        slope = np.exp(middle + log_ndtr(-middle / mu - 0.5 * mu))
        # The profile is rounded up, by less than a share of `ROUND_OFF`.
        value = gaussian_profile(middle, mu) * (1.0 - 2.0 * ROUND_OFF)
        first = value + left * slope * (1.0 - ROUND_OFF)
        last = value - right * slope * (1.0 + ROUND_OFF)
        return bool(np.all(first >= most[:-1]) and np.all(last >= most[1:]))

    low, high = 0.0, 1e-6
    while not covers(high):
        low, high = high, 2.0 * high
        if high > MAX_MU:
            return GaussianCover(math.inf, rare)
    for _ in range(COVER_STEPS):
        tried = 0.5 * (low + high)
        low, high = (low, tried) if covers(tried) else (tried, high)
    # The last accepted one, whatever lies between.
    return GaussianCover(high, rare)
