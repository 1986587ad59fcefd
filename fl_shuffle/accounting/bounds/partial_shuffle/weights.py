"""Weights of the random swap where only a local profile is known: their law, and m.

docs/proofs.md, section 11, (A): w = min(Z, zeta) in the law whose E(t - w)_+ is known from the
profile, and the largest m that a sum of N such weights falls below with little expectation. Small
weights decide, and sums of positive terms keep their relative accuracy.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    PARTIAL_SHUFFLE_MAX_EXPONENT,
    PARTIAL_SHUFFLE_ROUND_OFF,
)
from fl_shuffle.accounting.engine.tilted_moments import TINY
from fl_shuffle.accounting.laws.amplification import FloatArray

SWAP_ROUND_OFF = 1e-9
"""Covers the round-off of a weight's log moment, relative to its exponent, and that of x."""
SWAP_MAX_RATE = 60.0
"""Larger rates, in units of one over a weight's deviation, would overflow."""
SWAP_LEAST_LEVEL = 1.1
"""x - log x has its minimum 1: below this level no rate keeps the goal."""
SWAP_FIXED_POINT_STEPS = 40
"""Any x is valid: x = level + log x comes near the best one in so many steps."""
SWAP_EXPONENT_ROUND_OFF = 1e-12
"""Covers the round-off of an exponent, relative to its parts."""
FACTORS = np.geomspace(0.2, 3.0, 24)
"""Rates tried in the exponential inequality, around the normal approximation's."""


def spread_atoms(values: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray]:
    """min(Z, last value), spread to `values` (from 0 up), for E(t - Z)_+ <= `below` there.

    `below` may be off by a billionth, or have underflown. E(t - w)_+ of the result is the chords of
    larger numbers, all sums of positive terms: nowhere smaller than that of min(Z, last value).
    """
    below = below * (1.0 + PARTIAL_SHUFFLE_ROUND_OFF)
    below[1:] = np.maximum(below[1:], TINY)
    chances = np.diff(below) / np.diff(values)
    chances = np.clip(np.maximum.accumulate(chances), 0.0, 1.0)
    return values, np.append(chances, 1.0) - np.append(0.0, chances)


def floor_of_sum(
    values: FloatArray, probabilities: FloatArray, count: int, log_goal: float
) -> tuple[float, float] | None:
    """m, and a bound on E(1 - S/m)_+ near e^`log_goal`, S a sum of `count` such weights."""
    mean = float(probabilities @ values)
    spread = math.sqrt(float(probabilities @ (values - mean) ** 2))
    rates = FACTORS * math.sqrt(2.0 * max(-log_goal, 1.0) / count) / spread
    most = min(SWAP_MAX_RATE / spread, PARTIAL_SHUFFLE_MAX_EXPONENT)
    rates = np.unique(np.minimum(rates, most))
    # log E e^(-rate (w - 1)), with round-off; then of e^(-rate S).
    each = np.log1p(np.expm1(-np.multiply.outer(rates, values - 1.0)) @ probabilities)
    log_moment = count * (each + SWAP_ROUND_OFF * rates * spread - rates)
    return largest_m(rates, log_moment, log_goal)


def largest_m(
    rates: FloatArray, log_moments: FloatArray, log_goal: float
) -> tuple[float, float] | None:
    """m, and a bound on E(1 - S/m)_+ near e^`log_goal`, if log E e^(-rate S) <= `log_moments`.

    With x = rate m it is at most e^(x + log_moment - 1)/x: the largest x that keeps the goal. None
    where no rate does.
    """
    level = log_goal - log_moments + 1.0
    good = np.isfinite(level) & (level > SWAP_LEAST_LEVEL)
    if not np.any(good):
        return None
    rates, log_moments, x = rates[good], log_moments[good], level[good]
    for _ in range(SWAP_FIXED_POINT_STEPS):
        x = level[good] + np.log(x)
    best = int(np.argmax(x / rates))
    most = float(x[best]) * (1.0 - SWAP_ROUND_OFF)
    exponent = most + float(log_moments[best]) - 1.0 + SWAP_EXPONENT_ROUND_OFF * (most + 1.0)
    return most / float(rates[best]), max(math.exp(exponent) / most, TINY)
