"""Excesses of a lognormal variable with mean one: X = e^(mu W - mu^2/2), W standard normal.

X is the likelihood ratio of two Gaussian reports whose means lie mu noise widths apart. Everything
is a sum of positive terms through Mills' ratio R(v) = (1 - Phi(v)) / phi(v), so values keep their
relative accuracy far out and for small mu.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile, mills
from fl_shuffle.accounting.tolerances import TOLERANCES

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def variance(mu: float) -> float:
    """Var X = e^(mu^2) - 1."""
    return math.expm1(mu * mu)


def tail(s: FloatArray, mu: float) -> FloatArray:
    """P(X > s) for s > 0."""
    result: FloatArray = ndtr(-0.5 * mu - np.log(s) / mu)
    return result


def excess(s: FloatArray, mu: float) -> FloatArray:
    """E(X - s)_+ for s > 0."""
    return gaussian_profile(np.log(s), mu)


def _second_difference(v: FloatArray, step: float) -> FloatArray:
    """R(v) - 2 R(v - step) + R(v - 2 step) > 0: Mills' ratio is convex."""
    if step >= TOLERANCES.lognormal_short_step:
        return mills(v) - 2.0 * mills(v - step) + mills(v - 2.0 * step)
    x = v - step
    square = x * x
    ratio = mills(x)
    second = (1.0 + square) * ratio - x
    fourth = ((square + 6.0) * square + 3.0) * ratio - (square + 5.0) * x
    result: FloatArray = step * step * (second + step * step / 12.0 * fourth)
    return result


def _edge(s: FloatArray, mu: float) -> tuple[FloatArray, FloatArray]:
    """The v with X(v) = s, and s^2 phi(v)."""
    v = np.log(s) / mu + 0.5 * mu
    return v, s * s * np.exp(-0.5 * v * v - _LOG_ROOT_TWO_PI)


def squared_excess(s: FloatArray, mu: float) -> FloatArray:
    """E(X - s)_+^2 for s > 0.

    For X(v) = s: s^2 phi(v) [R(v) - 2 R(v - mu) + R(v - 2 mu)]; below the median the complement.
    """
    s = np.asarray(s, dtype=np.float64)
    v, density = _edge(s, mu)
    above = density * _second_difference(np.maximum(v, -3.0), mu)
    below = (
        variance(mu)
        + (1.0 - s) ** 2
        - density * _second_difference(2.0 * mu - np.minimum(v, 3.0), mu)
    )
    result: FloatArray = np.where(v > 0.0, above, below)
    return result


def squared_deficit(s: FloatArray, mu: float) -> FloatArray:
    """E(s - X)_+^2 for s > 0."""
    s = np.asarray(s, dtype=np.float64)
    v, density = _edge(s, mu)
    below = density * _second_difference(2.0 * mu - np.minimum(v, 3.0), mu)
    above = variance(mu) + (1.0 - s) ** 2 - density * _second_difference(np.maximum(v, -3.0), mu)
    result: FloatArray = np.where(v > 0.0, above, below)
    return result
