"""Laplace noise on an l1-sensitive vector: the exact local profile.

Source: docs/research/proofs, section 1.

Coordinatewise Laplace noise of scale b on a mean that moves by at most `sensitivity` in l1 is
(sensitivity / b)-DP. Its worst pair in any dimension is the one-dimensional pair at that distance:
splitting a move over independent coordinates lowers every hockey-stick divergence. So the exact
profile of one report, and of T reports, is a computation on the line. `ratio` = sensitivity / b.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.limits import MAX_COMPOSED
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.round_off import ROUND_UP, UNIT
from fl_shuffle.errors import InvalidValueError, require_integer, require_real

LAPLACE_PAIR_NODES = 1500
"""Points of the exact one-round profile that the composed pair connects."""
LAPLACE_MAX_RATIO = 500.0
"""Larger local budgets count as no protection at all."""
LAPLACE_CLOSE = 6e-5
"""An epsilon of several rounds is found this closely, relatively."""


def laplace_profile(epsilon: ArrayLike, ratio: float) -> FloatArray:
    """Return the exact delta of one Laplace report, elementwise.

    Parameters
    ----------
    epsilon : array_like
        In nats; negative values are allowed.
    ratio : float
        Sensitivity over the noise scale.

    Returns
    -------
    ndarray
        1 - e^((epsilon - ratio)/2) for |epsilon| <= ratio.

    Notes
    -----
    Source: docs/research/proofs, section 1. Neighbors: replace-one, in any dimension (l1).
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    # 1 - e^((eps - ratio)/2), also for -ratio <= eps < 0: no other form is needed there.
    inside = -np.expm1(0.5 * (np.minimum(eps, ratio) - ratio))
    # Below -ratio the losses are all above eps: delta = 1 - e^eps.
    result: FloatArray = np.where(eps >= -ratio, inside, -np.expm1(np.minimum(eps, 0.0)))
    return result


def laplace_delta(epsilon: ArrayLike, ratio: float, rounds: int = 1) -> FloatArray:
    """Return an upper bound on the divergence of several Laplace reports, elementwise.

    Parameters
    ----------
    epsilon : array_like
        In nats, at least 0.
    ratio : float
        Sensitivity over the noise scale.
    rounds : int, default 1
        Number of reports.

    Returns
    -------
    ndarray
        delta; zero from rounds * ratio on (pure differential privacy).

    Raises
    ------
    InvalidValueError
        For a value out of range.

    Notes
    -----
    Exact for one round; for more, the composed worst pair (docs/research/proofs, section 1).
    Direction of error: rounded up, by about 1e-5 relative in epsilon.
    """
    r, times = _checked(ratio, rounds)
    budget = np.asarray(epsilon, dtype=np.float64)
    if not bool(np.all(budget >= 0.0)):
        raise InvalidValueError("epsilon", epsilon, "must be >= 0")
    if times == 1:
        found = laplace_profile(budget, r)
    elif r > LAPLACE_MAX_RATIO:
        found = np.ones_like(budget)
    else:
        found = Composition([(local_pair(r), times)]).profile(budget).reshape(budget.shape)
    # The pair's chords and its round-off would leave something beyond the largest loss.
    return np.where(budget < r * times, found, 0.0)


def laplace_epsilon(delta: float, ratio: float, rounds: int = 1) -> float:
    """Return the smallest epsilon >= 0 of several Laplace reports at `delta`, rounded up.

    Parameters
    ----------
    delta : float
        In [0, 1).
    ratio : float
        Sensitivity over the noise scale.
    rounds : int, default 1
        Number of reports.

    Returns
    -------
    float
        In nats, never above rounds * ratio.

    Raises
    ------
    InvalidValueError
        For a value out of range.
    """
    target = require_real("delta", delta, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    r, times = _checked(ratio, rounds)
    pure = r * times
    if target == 0.0 or r > LAPLACE_MAX_RATIO or pure == 0.0:
        return pure
    if times == 1:
        # Where hardly anything is left of a large budget its last digits count.
        # delta = 1 - e^((eps - ratio)/2), solved for eps.
        left = pure * (1.0 + 4.0 * UNIT) + 2.0 * math.log1p(-target)
        return max(0.0, min(pure, left * ROUND_UP))
    composed = Composition([(local_pair(r), times)])
    high = min(pure, composed.epsilon(target))

    def holds(epsilon: float) -> bool:
        return composed.delta(epsilon) <= target

    # The direct inverse may be loose for few rounds; delta itself is not, and every step is
    # certified.
    near = high * (1.0 - LAPLACE_CLOSE)
    good, bad = (near, 0.0) if holds(near) else (high, near)
    return bisected(holds, good, bad, LAPLACE_CLOSE)[0]


def _checked(ratio: float, rounds: int) -> tuple[float, int]:
    r = require_real("ratio", ratio, minimum=0.0, maximum=1e12)
    return r, require_integer("rounds", rounds, minimum=1, maximum=MAX_COMPOSED)


def local_pair(ratio: float) -> DominatingPair:
    """Return the dominating pair of one Laplace report."""
    grid = np.linspace(0.0, ratio, LAPLACE_PAIR_NODES) if ratio > 0.0 else np.zeros(1)
    return DominatingPair.from_curve(grid, laplace_profile(grid, ratio))
