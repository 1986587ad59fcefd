"""Gaussian differential privacy: exact profile, conversions, and calibration of Gaussian noise.

A mechanism whose mean moves by at most `sensitivity` (l2) under replace-one and that adds
N(0, sigma^2 I) is mu-GDP with mu = sensitivity / sigma, exactly: its worst pair is N(0,1) against
N(mu,1) in any dimension (Dong, Roth, Su 2022). T rounds are sqrt(T) mu. Units: nats.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fl_shuffle.errors import NotApplicableError, require_real

# Relative safety added to every inverse: far above round-off, far below anything that matters.
SAFETY = 1e-9


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The privacy profile of mu-GDP: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), in [0, 1].

    Computed from log-probabilities; the difference of the two nearly equal terms at small mu is
    taken through expm1, so the result is accurate to about 1e-12 relative wherever it is not zero.
    """
    require_real("epsilon", epsilon)
    if require_real("mu", mu, minimum=0.0) == 0.0:
        return max(0.0, -math.expm1(epsilon))
    first = float(log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    if second >= first:
        return 0.0
    return min(1.0, math.exp(first) * -math.expm1(second - first))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon >= 0 at which mu-GDP gives `delta`, rounded up.

    Raises `InvalidValueError` for delta outside (0, 1) or a negative mu.
    """
    _open_unit("delta", delta)
    require_real("mu", mu, minimum=0.0, maximum=1e150)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2.0
    root = brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, high, xtol=1e-300, rtol=1e-14)
    epsilon = float(root)
    while gaussian_delta(epsilon, mu) > delta:
        epsilon = epsilon * (1.0 + SAFETY) + 1e-300
    return epsilon


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP, rounded down (analytic calibration).

    Balle and Wang (ICML 2018): the profile grows with mu, so the root is unique.
    """
    require_real("epsilon", epsilon, minimum=0.0)
    _open_unit("delta", delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2.0 * high
    root = brentq(lambda m: gaussian_delta(epsilon, m) - delta, low, high, xtol=1e-300, rtol=1e-14)
    mu = float(root)
    while gaussian_delta(epsilon, mu) > delta:
        mu *= 1.0 - SAFETY
    return mu


def analytic_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """The smallest sigma that makes a report (epsilon0, delta0)-DP, rounded up."""
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    return sensitivity / gaussian_mu(epsilon0, delta0) * (1.0 + SAFETY)


def classical_sigma(epsilon0: float, delta0: float, sensitivity: float) -> float:
    """sensitivity sqrt(2 ln(1.25/delta0)) / epsilon0 (Dwork and Roth 2014).

    Proved for epsilon0 < 1; it stays conservative far beyond (it first fails near epsilon0 = 8), so
    it is offered for every epsilon0 at which its exact profile confirms it.

    Raises `NotApplicableError` where it does not give (epsilon0, delta0).
    """
    require_real("epsilon0", epsilon0, minimum=0.0, exclusive_minimum=True)
    _open_unit("delta0", delta0)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    ratio = math.sqrt(2.0 * math.log(1.25 / delta0)) / epsilon0
    if gaussian_delta(epsilon0, 1.0 / ratio) > delta0:
        raise NotApplicableError(
            f"the classical Gaussian formula does not give ({epsilon0:g}, {delta0:g})-DP; "
            "use the analytic calibration"
        )
    return sensitivity * ratio


def true_local_epsilon(sensitivity: float, sigma: float, delta: float) -> float:
    """The exact epsilon at `delta` of one report with this noise, rounded up."""
    require_real("sensitivity", sensitivity, minimum=0.0)
    require_real("sigma", sigma, minimum=0.0, exclusive_minimum=True)
    return gaussian_epsilon(delta, sensitivity / sigma)


def _open_unit(name: str, value: float) -> None:
    require_real(
        name, value, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
