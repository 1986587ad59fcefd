"""What discrete Gaussian and discrete Laplace noise on a grid guarantee for one report.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020): whole
vectors plus independent discrete Gaussian noise of parameter s (P(x) proportional to
exp(-x^2/2s^2)) in each coordinate are rho-zCDP with rho = Delta^2/(2 s^2), Delta the l2
sensitivity; rho-zCDP is (epsilon, delta)-DP for the delta of `zcdp_delta`, theirs too. Discrete
Laplace noise of parameter t is (Delta/t)-DP for the l1 sensitivity Delta: the ratio of two of its
probabilities is at most exp(|difference|/t). Scales and sensitivities are in steps of the grid;
epsilons in nats; neighbors are whatever Delta is for.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import require_real

LOG_ORDERS = np.linspace(-12.0, 30.0, 100_001)
"""log(a - 1) of the orders that are tried: the logarithm of delta is smooth in it."""


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return an upper bound of delta for which rho-zCDP is (epsilon, delta)-DP.

    The infimum over orders a > 1 of exp((a-1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1); every order
    gives a bound. Raises `InvalidValueError` for rho or epsilon that are negative or not finite.
    """
    require_real("rho", rho, minimum=0.0)
    require_real("epsilon", epsilon, minimum=0.0)
    if rho == 0.0:
        return 0.0

    # With a - 1 = e^x: log delta(a) = (a - 1)(a rho - eps) + a log(1 - 1/a) - log(a - 1), and a
    # log(1 - 1/a) = -a log1p(1/(a - 1)) has no cancellation near a = 1.
    less = np.exp(LOG_ORDERS)  # a - 1
    orders = 1.0 + less
    found = float(
        np.min(less * (orders * rho - epsilon) - orders * np.log1p(1 / less) - LOG_ORDERS)
    )
    return min(1.0, math.exp(min(found, 0.0)) * ROUND_UP)


def discrete_gaussian_scale(epsilon: float, delta: float, sensitivity: float) -> int:
    """Return the smallest whole scale, in steps, of discrete Gaussian noise that is (epsilon,
    delta)-DP.

    In any dimension, for l2 `sensitivity` in steps, by zCDP. Raises `InvalidValueError`.
    """
    require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True)
    require_real("delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)

    def fits(scale: int) -> bool:
        # Rounded up: rho is a quotient of rounded numbers, and delta grows with it.
        rho = sensitivity * sensitivity / (2.0 * scale * scale)
        return zcdp_delta(rho * ROUND_UP, epsilon) <= delta

    high = 1
    while not fits(high):
        high *= 2
    # Both ends are less than half a step apart in the end. So no whole number that fits lies
    # below the ceiling of the good end.
    enough, _ = bisected(lambda scale: fits(math.ceil(scale)), high, high / 2, 0.4 / high)
    return math.ceil(enough)


def discrete_laplace_scale(epsilon: float, sensitivity: float) -> int:
    """Return the smallest whole scale, in steps, of discrete Laplace noise that is epsilon-DP, for
    l1 `sensitivity` in steps. Raises `InvalidValueError`."""
    require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    # The ratio of two probabilities is at most e^(sensitivity/t): t >= sensitivity/epsilon,
    # rounded up, and at least one step.
    return max(1, math.ceil(sensitivity / epsilon * ROUND_UP))
