"""Gaussian differential privacy: exact profile, conversions, and calibration of Gaussian noise.

A mechanism whose mean moves by at most `sensitivity` (l2) under replace-one and that adds
N(0, sigma^2 I) is mu-GDP with mu = sensitivity / sigma, exactly: its worst pair is N(0,1) against
N(mu,1) in any dimension (Dong, Roth, Su 2022). T rounds are sqrt(T) mu. Units: nats.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr, ndtri

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_open_unit, require_real

NEWTON_NEAR = 1e-12
"""Newton's answer is tried so far above and below, relatively, before bisection."""
NEWTON_STEPS = 12
"""Newton's method converges in five: more steps mean that bisection is due."""
LAST_BITS = 2e-12
"""Inverses are searched this closely, relatively."""
INVERSE_SAFETY = 1e-10
"""Relative safety added to every inverse: above round-off, below anything that matters."""
NEWTON_LAST_STEP = 1e-7
"""A smaller relative step of Newton's, from such starts, is the last: what it leaves is about its
square."""

FloatArray = NDArray[np.float64]

MAX_MU = 1e150
"""Squares of larger ones overflow; the mechanism protects nothing long before."""
_HALF_ROOT_PI = math.sqrt(0.5 * math.pi)
_ROOT_TWO = math.sqrt(2.0)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SHORT_STEP = 1e-3
"""Below it a difference of two Mills ratios loses digits and is expanded instead."""


def mills(x: FloatArray) -> FloatArray:
    """Mills' ratio (1 - Phi(x)) / phi(x); infinite below about -37."""
    result: FloatArray = _HALF_ROOT_PI * erfcx(x / _ROOT_TWO)
    return result


def mills_drop(x: FloatArray, step: FloatArray) -> FloatArray:
    """mills(x) - mills(x + step) for step >= 0, without cancellation for short steps.

    Mills' ratio R satisfies R' = xR - 1, so for a short step the midpoint value of -R' times the
    step is used with the third-derivative correction; the next term is below 1e-14 relative.
    """
    if np.all(step >= _SHORT_STEP):
        return mills(x) - mills(x + step)
    middle = x + 0.5 * step
    ratio = mills(middle)
    first = 1.0 - middle * ratio
    inverse = 1.0 / (1.0 + middle * middle)
    # (x^2 + 2) - (x^3 + 3x) R cancels for large x: there it is about (6/x^2 - 42/x^4) (1 - x R).
    far = first * inverse * (6.0 - 36.0 * inverse)
    third = np.where(middle < 30.0, (middle**2 + 2.0) - (middle**3 + 3.0 * middle) * ratio, far)
    short = step * (first + step**2 / 24.0 * third)
    short = np.where(middle > 1e3, step * inverse * (1.0 - 2.0 * inverse), short)
    result: FloatArray = np.where(step < _SHORT_STEP, short, mills(x) - mills(x + step))
    return result


def gaussian_profile(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """The privacy profile of mu-GDP, elementwise on broadcast arrays; see `gaussian_delta`."""
    eps, m = np.asarray(epsilon, np.float64), np.asarray(mu, np.float64)
    eps, m = np.broadcast_arrays(eps, m)
    if np.any(np.isnan(eps)):
        raise InvalidValueError("epsilon", math.nan, "must not be NaN")
    if not np.all((m >= 0.0) & (m <= MAX_MU)):
        bad = m[~((m >= 0.0) & (m <= MAX_MU))]
        raise InvalidValueError("mu", float(bad[0]), f"must be in [0, {MAX_MU:g}]")
    safe = np.where(m > 0.0, m, 1.0)
    size = np.abs(eps)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        start = size / safe - 0.5 * safe
        # phi(start) = e^eps phi(start + mu) exactly, which turns the difference of two tails into
        # a difference of Mills ratios: nothing of size e^eps ever appears.
        density = np.exp(-0.5 * start * start - _LOG_ROOT_TWO_PI)
        delta = density * mills_drop(np.maximum(start, -5.0), safe)
        if np.any(start < -5.0):
            lesser = 0.5 * np.exp(-0.5 * start * start) * erfcx((start + safe) / _ROOT_TWO)
            delta = np.where(start >= -5.0, delta, ndtr(-start) - lesser)
    delta = np.where((m > 0.0) & np.isfinite(eps), delta, 0.0)
    if np.any(eps < 0.0):
        # The pair is symmetric: delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
        delta = np.where(eps < 0.0, -np.expm1(-size) + np.exp(-size) * delta, delta)
    result: FloatArray = np.clip(delta, 0.0, 1.0)
    return result


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The privacy profile of mu-GDP: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), in [0, 1].

    Relative accuracy 2e-11 for epsilon up to 700 and results down to 1e-290, also for mu near 0;
    1e-9 beyond, for mu in the thousands, and for negative epsilon. Raises `InvalidValueError` for a
    negative mu.
    """
    require_real("epsilon", epsilon)
    require_real("mu", mu, minimum=0.0, maximum=MAX_MU)
    return _profile(epsilon, mu)


def _profile(epsilon: float, mu: float) -> float:
    """`gaussian_profile` of two plain floats, where inverses spend their time."""
    if mu > 0.0 and epsilon >= 0.0:
        start = epsilon / mu - 0.5 * mu
        if start < -5.0:
            return float(ndtr(-start)) - _lesser_tail(start, mu)
        if mu >= _SHORT_STEP:
            drop = float(erfcx(start / _ROOT_TWO)) - float(erfcx((start + mu) / _ROOT_TWO))
            return 0.5 * math.exp(-0.5 * start * start) * drop
        if start < 30.0:
            middle = epsilon / mu
            ratio = _HALF_ROOT_PI * float(erfcx(middle / _ROOT_TWO))
            third = (middle * middle + 2.0) - (middle**3 + 3.0 * middle) * ratio
            drop = mu * (1.0 - middle * ratio + mu * mu / 24.0 * third)
            return math.exp(-0.5 * start * start - _LOG_ROOT_TWO_PI) * drop
    return float(gaussian_profile(epsilon, mu))


def _lesser_tail(start: float, mu: float) -> float:
    """e^eps Phi(-start - mu), eps = mu start + mu^2/2: e^eps phi(start + mu) is phi(start)."""
    return 0.5 * math.exp(-0.5 * start * start) * float(erfcx((start + mu) / _ROOT_TWO))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon >= 0 at which mu-GDP gives `delta`, rounded up.

    Raises `InvalidValueError` for delta outside (0, 1) or a negative mu.
    """
    target = require_open_unit("delta", delta)
    return _gaussian_epsilon(target, require_real("mu", mu, minimum=0.0, maximum=MAX_MU))


@lru_cache(maxsize=1 << 12)
def _gaussian_epsilon(delta: float, mu: float) -> float:
    """Kept: a round asks several times, of the reports' own noise above all."""
    if mu == 0.0 or _profile(0.0, mu) <= delta:
        return 0.0
    high = 0.5 * mu * mu + mu * (math.sqrt(-2.0 * math.log(delta)) + 1.0)
    good, bad = high, 0.0
    near = _newton_epsilon(delta, mu, high)
    if near is not None:
        # Seen to hold a little above, and not to hold a little below: nothing rests on Newton.
        above, below = near * (1.0 + NEWTON_NEAR), near * (1.0 - NEWTON_NEAR)
        if _profile(above, mu) <= delta:
            good = above
        if _profile(below, mu) > delta:
            bad = below
    root, _ = bisected(lambda epsilon: _profile(epsilon, mu) <= delta, good, bad, LAST_BITS)
    return root * (1.0 + INVERSE_SAFETY)


def _newton_epsilon(delta: float, mu: float, high: float) -> float | None:
    """About where the profile is `delta`, by Newton's method on its logarithm from above."""
    # The profile is below its first term, Phi(mu/2 - eps/mu).
    target, epsilon = math.log(delta), min(high, mu * (0.5 * mu - float(ndtri(delta))))
    for _ in range(NEWTON_STEPS):
        value = _profile(epsilon, mu)
        slope = _lesser_tail(epsilon / mu - 0.5 * mu, mu)  # minus d delta / d eps
        if not (value > 0.0 and slope > 0.0):
            return None
        step = (math.log(value) - target) * value / slope
        epsilon += step
        if not 0.0 < epsilon < math.inf:
            return None
        if abs(step) <= NEWTON_LAST_STEP * epsilon:
            return epsilon
    return None


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP, rounded down (analytic calibration).

    Balle and Wang (ICML 2018): the profile grows with mu, so the root is unique.
    """
    require_real("epsilon", epsilon, minimum=0.0, maximum=1e12)
    require_open_unit("delta", delta)
    high = 1.0
    while _profile(epsilon, high) <= delta:
        high *= 2.0
    low = 0.5 * high
    while _profile(epsilon, low) > delta:
        high, low = low, 0.5 * low
    root, _ = bisected(lambda mu: _profile(epsilon, mu) <= delta, low, high, LAST_BITS)
    return root * (1.0 - INVERSE_SAFETY)


def analytic_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """The smallest sigma that makes a report (epsilon0, delta0)-DP, rounded up."""
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    return sensitivity / gaussian_mu(epsilon0, delta0) * (1.0 + INVERSE_SAFETY)


def classical_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """sensitivity sqrt(2 ln(1.25/delta0)) / epsilon0 (Dwork and Roth 2014).

    Proved for epsilon0 < 1; it stays conservative far beyond (at delta0 = 1e-5 it first fails near
    epsilon0 = 8.4), so it is offered for every epsilon0 at which the exact profile confirms it.

    Raises `NotApplicableError` where it does not give (epsilon0, delta0).
    """
    require_real("epsilon0", epsilon0, minimum=0.0, exclusive_minimum=True)
    require_open_unit("delta0", delta0)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    ratio = math.sqrt(2.0 * math.log(1.25 / delta0)) / epsilon0
    if gaussian_delta(epsilon0, 1.0 / ratio) > delta0:
        raise NotApplicableError(
            f"the classical Gaussian formula does not give ({epsilon0:g}, {delta0:g})-DP; "
            "use the analytic calibration"
        )
    return sensitivity * ratio
