"""The inverses of the Gaussian profile for many clients at once: epsilon of mu, and mu of epsilon.

Newton's method proposes, the profile decides: every value was seen to hold, one by one, and what
Newton misses is bisected. Results agree with those of `gaussian_mechanism` to 1e-11, relatively.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx

from fl_shuffle.accounting.laws.gaussian_mechanism import (
    INVERSE_SAFETY,
    MAX_MU,
    NEWTON_LAST_STEP,
    NEWTON_NEAR,
    NEWTON_STEPS,
    classical_sigma,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_profile,
)

FEW_INVERSES = 64
"""Up to so many distinct values are inverted one by one."""

FloatArray = NDArray[np.float64]
Slope = Callable[[FloatArray, FloatArray], FloatArray]

_ROOT_TWO = math.sqrt(2.0)
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


def gaussian_epsilons(delta: float, mu: ArrayLike) -> FloatArray:
    """`gaussian_epsilon` of every mu, elementwise; `delta` in (0, 1)."""
    values, inverse = _distinct(mu)
    if values.size <= FEW_INVERSES:
        return np.array([gaussian_epsilon(delta, float(value)) for value in values])[inverse]

    def newton(start: FloatArray, at: FloatArray) -> FloatArray:
        return _newton(start, lambda eps: gaussian_profile(eps, at), lambda eps: -_tail(eps, at),
                       np.full(at.shape, math.log(delta)))  # fmt: skip

    result = np.zeros(values.shape)
    left = np.flatnonzero(gaussian_profile(0.0, values) > delta)
    if left.size:
        mus = values[left]
        high = 0.5 * mus * mus + mus * (math.sqrt(-2.0 * math.log(delta)) + 1.0)
        found = newton(high, mus)
        found *= 1.0 + NEWTON_NEAR
        good = np.isfinite(found)
        good[good] = gaussian_profile(found[good], mus[good]) <= delta
        found[good] *= 1.0 + INVERSE_SAFETY
        for index in np.flatnonzero(~good):
            found[index] = gaussian_epsilon(delta, float(mus[index]))
        result[left] = found
    return result[inverse]


def gaussian_mus(epsilon: ArrayLike, delta: ArrayLike) -> FloatArray:
    """`gaussian_mu` of every pair (epsilon, delta), elementwise on broadcast arrays."""
    pairs = np.stack(np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float)))
    found = np.empty(pairs.shape[1:])
    for target in np.unique(pairs[1]).tolist():
        same = pairs[1] == target
        found[same] = _mus(pairs[0][same], target)
    return found


def _mus(epsilon: FloatArray, delta: float) -> FloatArray:
    values, inverse = _distinct(epsilon)
    if values.size <= FEW_INVERSES or not (values[0] > 0.0 and 0.0 < delta < 1.0):
        return np.array([gaussian_mu(float(value), delta) for value in values])[inverse]

    def newton(start: FloatArray, at: FloatArray) -> FloatArray:
        return _newton(start, lambda mu: gaussian_profile(at, mu), lambda mu: _vega(at, mu),
                       np.full(at.shape, math.log(delta)))  # fmt: skip

    depth = math.sqrt(-2.0 * math.log(delta))
    low = 2.0 * values / (np.sqrt(depth * depth + 2.0 * values) + depth)
    found = newton(low, values)
    found *= 1.0 - NEWTON_NEAR
    good = np.isfinite(found)
    good[good] = gaussian_profile(values[good], found[good]) <= delta
    found[good] *= 1.0 - INVERSE_SAFETY
    for index in np.flatnonzero(~good):
        found[index] = gaussian_mu(float(values[index]), delta)
    return found[inverse]


def analytic_sigmas(epsilon0: ArrayLike, delta0: ArrayLike) -> FloatArray:
    """`analytic_sigma` of every (epsilon0, delta0) at sensitivity 1, elementwise."""
    return sigmas_of(gaussian_mus(epsilon0, delta0))


def sigmas_of(mus: FloatArray) -> FloatArray:
    """`analytic_sigmas` where `gaussian_mus` of the same budgets is known."""
    return (1.0 / mus) * (1.0 + INVERSE_SAFETY)


def classical_sigmas(epsilon0: ArrayLike, delta0: ArrayLike) -> FloatArray:
    """`classical_sigma` of every (epsilon0, delta0) at sensitivity 1, elementwise.

    Raises what that raises for the first pair it refuses.
    """
    epsilons, deltas = np.broadcast_arrays(np.asarray(epsilon0, float), np.asarray(delta0, float))
    known, inverse = np.unique(deltas, return_inverse=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.array(
            [
                math.sqrt(2.0 * math.log(1.25 / delta)) if 0.0 < delta < 1.0 else math.nan
                for delta in known.tolist()
            ]
        )
        ratio: FloatArray = factors[inverse.reshape(-1)] / epsilons
        good = np.isfinite(ratio) & (ratio > 0.0)
        good[good] = gaussian_profile(epsilons[good], 1.0 / ratio[good]) <= deltas[good]
    for index in np.flatnonzero(~good):
        # At the edge the scalar formula decides, and says why not.
        ratio[index] = classical_sigma(float(epsilons[index]), float(deltas[index]), 1.0)
    return ratio


def _distinct(values: ArrayLike) -> tuple[FloatArray, NDArray[np.int64]]:
    found, inverse = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    return found, inverse.reshape(-1)


def _newton(
    start: FloatArray,
    profile: Callable[[FloatArray], FloatArray],
    slope: Callable[[FloatArray], FloatArray],
    target: FloatArray,
) -> FloatArray:
    """Where log profile = `target`, by Newton's method on the logarithm; NaN where it fails."""
    found = start.copy()
    for _ in range(NEWTON_STEPS):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = profile(np.where((found > 0.0) & (found < MAX_MU), found, 1.0))
            step = (target - np.log(value)) * value / slope(found)
            found = np.where(np.isfinite(step) & (found + step > 0.0), found + step, np.nan)
            if not np.any(np.abs(step) > NEWTON_LAST_STEP * found):
                break
    return found


def _tail(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """Minus the profile's derivative in epsilon: e^eps Phi(-eps/mu - mu/2)."""
    start = epsilon / mu - 0.5 * mu
    result: FloatArray = 0.5 * np.exp(-0.5 * start * start) * erfcx((start + mu) / _ROOT_TWO)
    return result


def _vega(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """The profile's derivative in mu: phi(eps/mu - mu/2)."""
    start = epsilon / mu - 0.5 * mu
    result: FloatArray = np.exp(-0.5 * start * start) / _ROOT_TWO_PI
    return result
