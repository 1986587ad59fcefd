"""Gaussian differential privacy: exact profile, conversions, and calibration of Gaussian noise.

A mechanism whose mean moves by at most `sensitivity` (l2) under replace-one and that adds
N(0, sigma^2 I) is mu-GDP with mu = sensitivity / sigma, exactly: its worst pair is N(0,1) against
N(mu,1) in any dimension (Dong, Roth, Su 2022). T rounds are sqrt(T) mu. Units: nats.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr, ndtri

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.round_off import INVERSE_ERROR
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_open_unit, require_real

NEWTON_NEAR = 1e-12
"""Newton's answer is tried so far above and below, relatively, before bisection."""
NEWTON_FAR = 1e-10
"""Where that fails, a single epsilon is tried so far: the profile is less exact for small ones."""
NEWTON_STEPS = 12
"""Newton's method converges in five: more steps mean that bisection is due."""
LAST_BITS = 2e-12
"""Inverses are searched this closely, relatively."""
PROFILE_ROUND_OFF = 1e-14
"""Inverses are taken at a delta smaller by this share, which covers the profile's round-off where
delta is nearly one. Where mu is small and epsilon nearly zero the profile is off by up to 6e-13 of
delta: epsilon may then be some 1e-15 nats too low."""
NEWTON_LAST_STEP = 1e-7
"""A smaller relative step of Newton's, from such starts, is the last: what it leaves is about its
square."""
FEW_MUS = 8
"""Up to this number, epsilons are found faster one by one than as arrays."""


MAX_MU = 1e150
"""Squares of larger ones overflow; the mechanism protects nothing long before."""
MAX_MU_EPSILON = 1e12
"""Of questions for a mu."""
_HALF_ROOT_PI = math.sqrt(0.5 * math.pi)
_ROOT_TWO = math.sqrt(2.0)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SHORT_STEP = 1e-3
"""Below it a difference of two Mills ratios loses digits and is expanded instead."""


def mills(x: FloatArray) -> FloatArray:
    """Return Mills' ratio (1 - Phi(x)) / phi(x); infinite below about -37."""
    result: FloatArray = _HALF_ROOT_PI * erfcx(x / _ROOT_TWO)
    return result


def mills_drop(x: FloatArray, step: FloatArray) -> FloatArray:
    """Return mills(x) - mills(x + step) for step >= 0, without cancellation for short steps.

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
    """Return the privacy profile of mu-GDP, elementwise on broadcast arrays; see
    `gaussian_delta`."""
    eps, m = np.asarray(epsilon, np.float64), np.asarray(mu, np.float64)
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
            delta = np.where(start >= -5.0, delta, ndtr(-start) - _tail(size, safe))
    delta = np.where((m > 0.0) & np.isfinite(eps), delta, 0.0)
    if np.any(eps < 0.0):
        # The pair is symmetric: delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
        delta = np.where(eps < 0.0, -np.expm1(-size) + np.exp(-size) * delta, delta)
    result: FloatArray = np.minimum(np.maximum(delta, 0.0), 1.0)
    return result


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the privacy profile of mu-GDP: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), in [0,
    1].

    Relative accuracy 2e-11 for epsilon up to 700 and results down to 1e-290, also for mu near 0;
    1e-9 beyond, for mu in the thousands, and for negative epsilon. Raises `InvalidValueError` for a
    negative mu.
    """
    require_real("epsilon", epsilon)
    return float(gaussian_profile(epsilon, require_real("mu", mu, minimum=0.0, maximum=MAX_MU)))


@lru_cache(maxsize=1024)
def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 at which mu-GDP gives `delta`, rounded up.

    Raises `InvalidValueError` for delta outside (0, 1) or a negative mu.
    """
    target = require_open_unit("delta", delta) * (1.0 - PROFILE_ROUND_OFF)
    require_real("mu", mu, minimum=0.0, maximum=MAX_MU)
    # One call of the profile confirms what Newton's method proposes; where it does not, all is
    # done as for many.
    near, far = NEWTON_NEAR, NEWTON_FAR
    shares = np.array([0.0, 1.0 - near, 1.0 + near, 1.0 - far, 1.0 + far])
    tried = _newton_epsilon(target, mu) * shares
    found = gaussian_profile(tried, mu).tolist()
    if found[0] <= target:
        return 0.0
    for below in (1, 3):
        if found[below] > target >= found[below + 1]:
            return float(tried[below + 1]) * (1.0 + INVERSE_ERROR)
    return float(_epsilons(target, np.array([mu]))[0])


def _newton_epsilon(delta: float, mu: float) -> float:
    """Return about where the profile is `delta`, by Newton's method on its logarithm; 0 if it
    fails."""
    log_delta = math.log(delta)
    # The profile is below its first term, Phi(mu/2 - eps/mu).
    # So this is above the root. The logarithm of the profile is falling and concave in epsilon
    # (it is an exponential convolved with a log-concave tail). So from there Newton's method
    # comes down to the root from above.
    epsilon = mu * (0.5 * mu - float(ndtri(delta)))
    for _ in range(NEWTON_STEPS if mu > 0.0 else 0):
        start = epsilon / mu - 0.5 * mu
        tail = _HALF_ROOT_PI * float(erfcx((start + mu) / _ROOT_TWO))
        gained = _HALF_ROOT_PI * float(erfcx(start / _ROOT_TWO)) - tail
        if not (0.0 < gained < math.inf and tail > 0.0):
            break
        log_profile = math.log(gained) - 0.5 * start * start - _LOG_ROOT_TWO_PI
        step = (log_profile - log_delta) * gained / tail
        epsilon += step
        if not 0.0 < epsilon < math.inf:
            break
        if abs(step) <= NEWTON_LAST_STEP * epsilon:
            return epsilon
    return 0.0


def gaussian_epsilons(delta: float, mu: ArrayLike) -> FloatArray:
    """Return `gaussian_epsilon` of every mu, elementwise; `delta` in (0, 1)."""
    values, inverse = np.unique(np.asarray(mu, dtype=np.float64), return_inverse=True)
    if values.size <= FEW_MUS:
        found = np.array([gaussian_epsilon(delta, mu) for mu in values.tolist()])
    else:
        found = _epsilons(delta * (1.0 - PROFILE_ROUND_OFF), values)
    return found[inverse.reshape(-1)]


def _epsilons(delta: float, values: FloatArray) -> FloatArray:
    """Return the epsilon of each mu, at exactly this delta."""
    result = np.zeros(values.shape)
    left = gaussian_profile(0.0, values) > delta
    m = values[left]
    # delta <= Phi(-z) <= e^(-z^2/2) at epsilon = mu^2/2 + mu z: here it is no larger than asked
    # for.
    high = 0.5 * m * m + m * (math.sqrt(-2.0 * math.log(delta)) + 1.0)
    found = _inverse(gaussian_profile, lambda eps, m: -_tail(eps, m), m, high, 0.0 * m, delta)
    result[left] = found * (1.0 + INVERSE_ERROR)
    return result


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-DP, rounded down (analytic calibration).

    Balle and Wang (ICML 2018): the profile grows with mu, so the root is unique.
    """
    return float(gaussian_mus(np.array([epsilon]), delta)[0])


def gaussian_mus(epsilon: ArrayLike, delta: ArrayLike) -> FloatArray:
    """Return `gaussian_mu` of every pair (epsilon, delta), elementwise on broadcast arrays."""
    epsilons, deltas = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    found = np.empty(epsilons.shape)
    for wanted in np.unique(deltas).tolist():
        same = deltas == wanted
        values, inverse = np.unique(epsilons[same], return_inverse=True)
        for value in values[~((values >= 0.0) & (values <= MAX_MU_EPSILON))].tolist():
            require_real("epsilon", value, minimum=0.0, maximum=MAX_MU_EPSILON)
        target = require_open_unit("delta", wanted) * (1.0 - PROFILE_ROUND_OFF)
        depth = math.sqrt(-2.0 * math.log(target))
        # At epsilon = 0 delta is below mu / sqrt(2 pi).
        # The first is the mu at which epsilon/mu - mu/2 = `depth`, so that Phi(-depth) bounds
        # delta.
        low = np.maximum(2.0 * values / (np.sqrt(depth * depth + 2.0 * values) + depth), target)
        while np.any(wide := gaussian_profile(values, low) > target):
            low = np.where(wide, 0.5 * low, low)
        high = 2.0 * low
        while np.any(short := gaussian_profile(values, high) <= target):
            high = np.where(short, 2.0 * high, high)
        mus = _inverse(lambda mu, eps: gaussian_profile(eps, mu), _vega, values, low, high, target)
        found[same] = (mus * (1.0 - INVERSE_ERROR))[inverse.reshape(-1)]
    return found


def _inverse(
    profile: Callable[[FloatArray, FloatArray], FloatArray],
    slope: Callable[[FloatArray, FloatArray], FloatArray],
    at: FloatArray,
    good: FloatArray,
    bad: FloatArray,
    delta: float,
) -> FloatArray:
    """Return where profile(x, `at`) crosses `delta`, elementwise: points at which it is no larger.

    It is not larger at `good`, and larger at `bad`. Newton's method on its logarithm proposes, with
    `slope` its derivative in x; the profile decides, and what Newton misses is bisected.
    """
    near, side = good.copy(), np.sign(good - bad)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(NEWTON_STEPS):
            value = profile(near, at)
            step = (math.log(delta) - np.log(value)) * value / slope(near, at)
            moved = np.isfinite(step) & (near + step > 0.0) & (near + step < MAX_MU)
            near = np.where(moved, near + step, near)
            if not np.any(np.abs(step) > NEWTON_LAST_STEP * near):
                break
    above, below = near * (1.0 + side * NEWTON_NEAR), near * (1.0 - side * NEWTON_NEAR)
    good = np.where(profile(above, at) <= delta, above, good)
    bad = np.where(profile(below, at) > delta, below, bad)
    # Among the smallest numbers their spacing is wider than that.
    last = sys.float_info.min
    while np.any(left := np.abs(good - bad) > LAST_BITS * np.maximum(good, bad) + last):
        middle = 0.5 * (good[left] + bad[left])
        holds = profile(middle, at[left]) <= delta
        good[left] = np.where(holds, middle, good[left])
        bad[left] = np.where(holds, bad[left], middle)
    return good


def _tail(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """Return minus the profile's derivative in epsilon: e^eps Phi(-eps/mu - mu/2)."""
    start = epsilon / mu - 0.5 * mu
    result: FloatArray = 0.5 * np.exp(-0.5 * start * start) * erfcx((start + mu) / _ROOT_TWO)
    return result


def _vega(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return the profile's derivative in mu: phi(eps/mu - mu/2)."""
    start = epsilon / mu - 0.5 * mu
    result: FloatArray = np.exp(-0.5 * start * start - _LOG_ROOT_TWO_PI)
    return result


def analytic_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """Return the smallest sigma that makes a report (epsilon0, delta0)-DP, rounded up."""
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    return sensitivity / gaussian_mu(epsilon0, delta0) * (1.0 + INVERSE_ERROR)


def sigmas_of(mus: FloatArray) -> FloatArray:
    """Return `analytic_sigma` at sensitivity 1 where `gaussian_mus` of the budgets is known."""
    return (1.0 / mus) * (1.0 + INVERSE_ERROR)


def classical_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """Return sensitivity sqrt(2 ln(1.25/delta0)) / epsilon0 (Dwork and Roth 2014).

    Proved for epsilon0 < 1; it stays conservative far beyond (at delta0 = 1e-5 it first fails near
    epsilon0 = 8.4), so it is offered for every epsilon0 at which the exact profile confirms it.

    Raises `NotApplicableError` where it does not give (epsilon0, delta0).
    """
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    return sensitivity * float(classical_sigmas(np.array([epsilon0]), delta0)[0])


def classical_sigmas(epsilon0: ArrayLike, delta0: ArrayLike) -> FloatArray:
    """Return `classical_sigma` of every (epsilon0, delta0) at sensitivity 1, elementwise.

    Raises what that raises for the first pair it refuses.
    """
    epsilons, deltas = np.broadcast_arrays(np.asarray(epsilon0, float), np.asarray(delta0, float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio: FloatArray = np.sqrt(2.0 * np.log(1.25 / deltas)) / epsilons
        good = np.isfinite(ratio) & (ratio > 0.0) & (deltas < 1.0)
        good[good] = gaussian_profile(epsilons[good], 1.0 / ratio[good]) <= deltas[good]
    for index in np.flatnonzero(~good)[:1]:
        epsilon, delta = float(epsilons.flat[index]), float(deltas.flat[index])
        require_real("epsilon0", epsilon, minimum=0.0, exclusive_minimum=True)
        require_open_unit("delta0", delta)
        raise NotApplicableError(
            f"the classical Gaussian formula does not give ({epsilon:g}, {delta:g})-DP; "
            "use the analytic calibration"
        )
    return ratio
