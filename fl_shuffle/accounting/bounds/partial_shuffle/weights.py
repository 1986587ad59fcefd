"""Weights of the random swap: their distribution where only a local profile is known, and m.

docs/research/proofs, section 11, (A): w = min(Z, zeta) in the distribution whose E(t - w)_+ is
known from the profile, and the largest m that a sum of N weights falls below with little
expectation. Small weights decide, and sums of positive terms keep their relative accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    PARTIAL_SHUFFLE_MAX_EXPONENT,
)
from fl_shuffle.accounting.numerics.tilted_moments import TINY
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_OFF, ROUND_UP, UNIT

SWAP_MAX_RATE = 60.0
"""Larger rates, in units of one over a weight's deviation, would overflow."""
SWAP_LEAST_LEVEL = 1.1
"""x - log x has its minimum 1: below this level no rate keeps the goal."""
SWAP_FIXED_POINT_STEPS = 40
"""Any x is valid: x = level + log x comes near the best one in this number of steps."""
FACTORS = np.geomspace(0.15, 4.0, 30)
"""Rates tried in the exponential inequality, around the normal approximation's."""


def spread_atoms(values: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a distribution of the weight w = min(Z, last value) on given values.

    Parameters
    ----------
    values : ndarray, shape (n,)
        From 0 up.
    below : ndarray, shape (n,)
        Upper bounds on E(t - Z)_+ at these. They may be off by a billionth, or have underflown.

    Returns
    -------
    tuple of ndarray
        Values and probabilities.

    Notes
    -----
    E(t - w)_+ of the result is the chords of larger numbers, all sums of positive terms: nowhere
    smaller than that of min(Z, last value). Source: docs/research/proofs, section 11, (A).
    """
    below = below * ROUND_UP
    below[1:] = np.maximum(below[1:], TINY)
    # E(t - Z)_+ has the slope P(Z < t): the slopes of its chords are the distribution function of
    # the atoms. It must not fall, and slopes raised to a running maximum only raise the transform.
    chances = np.diff(below) / np.diff(values)
    chances = np.clip(np.maximum.accumulate(chances), 0.0, 1.0)
    return values, np.append(chances, 1.0) - np.append(0.0, chances)


def floor_of_sum(
    groups: Sequence[tuple[FloatArray, FloatArray, int]], log_goal: float
) -> tuple[float, float] | None:
    """Return m, and a bound on E(1 - S/m)_+ near e^`log_goal`; None where no rate keeps the goal.

    Parameters
    ----------
    groups : sequence of (ndarray, ndarray, int)
        Values, probabilities, and number of independent weights, whose sum is S.
    log_goal : float
        Logarithm of what the expectation may be.

    Returns
    -------
    tuple of float or None
        The largest m found, and the bound.

    Notes
    -----
    Statement: with x = tau m the expectation is at most e^(x - 1)/x prod (E e^(-tau w))^n, so the
    largest m = x/tau that keeps the goal serves. Source: docs/research/proofs, section 11, (A).
    Direction of error: the bound is raised, m is lowered.
    """
    variance = sum(n * float(p @ (v - p @ v) ** 2) for v, p, n in groups)
    if not variance > 0.0:
        # Weights all alike to the last digit: of hardly any noise, or of nothing but noise.
        return None
    count = sum(n for _, _, n in groups)
    spread = math.sqrt(variance / count)
    most = min(SWAP_MAX_RATE / spread, PARTIAL_SHUFFLE_MAX_EXPONENT)
    rates = FACTORS * math.sqrt(2.0 * max(-log_goal, 1.0) / variance)
    rates = np.unique(np.minimum(rates, most))
    log_moments = np.zeros_like(rates)
    for v, p, n in groups:
        # About one: nothing cancels where weights hardly vary.
        each = np.log1p(np.expm1(-np.multiply.outer(rates, v - 1.0)) @ p)
        log_moments += n * (each - rates + ROUND_OFF * rates * spread + 16.0 * UNIT * (1.0 + rates))
    level = log_goal - log_moments + 1.0
    good = np.isfinite(level) & (level > SWAP_LEAST_LEVEL)
    if not np.any(good):
        return None
    rates, log_moments, level = rates[good], log_moments[good], level[good]
    x = level
    # e^(x - 1)/x prod (E e^(-tau w))^n = e^log_goal is x - log x = level, with x = tau m.
    for _ in range(SWAP_FIXED_POINT_STEPS):
        x = level + np.log(x)
    best = int(np.argmax(x / rates))
    most = float(x[best]) * ROUND_DOWN
    exponent = most + float(log_moments[best]) - 1.0 + ROUND_OFF * (most + 1.0)
    # It is an expectation of a number in [0, 1].
    return most / float(rates[best]), max(math.exp(min(exponent, math.log(most))) / most, TINY)
