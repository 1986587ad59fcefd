"""What discrete Gaussian and discrete Laplace noise on a grid guarantee for one report.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020): whole
vectors plus independent discrete Gaussian noise of parameter s (P(x) proportional to
exp(-x^2/2s^2)) in each coordinate are rho-zCDP with rho = Delta^2/(2 s^2), Delta the l2
sensitivity; rho-zCDP is (epsilon, delta)-DP for the delta of `zcdp_delta`, theirs too. Discrete
Laplace noise of parameter t is (Delta/t)-DP for the l1 sensitivity Delta: the ratio of two of its
probabilities is at most exp(|difference|/t). Scales and sensitivities are in steps of the grid;
epsilons in nats; neighbours are whatever Delta is for.
"""

from __future__ import annotations

import math

from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import require_integer, require_real


def zcdp_delta(rho: float, epsilon: float) -> float:
    """An upper bound of delta for which rho-zCDP is (epsilon, delta)-DP.

    The infimum over orders a > 1 of exp((a-1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1); every order
    gives a bound. Raises `InvalidValueError` for rho or epsilon that are negative or not finite.
    """
    require_real("rho", rho, minimum=0.0)
    require_real("epsilon", epsilon, minimum=0.0)
    if rho == 0.0:
        return 0.0

    def log_delta(log_order: float) -> float:
        less = math.exp(log_order)  # a - 1
        order = 1.0 + less
        power = less * (order * rho - epsilon)
        return power - order * math.log1p(1.0 / less) - log_order

    # The logarithm is convex in the order up to slowly varying terms: look everywhere, then nearby.
    places = [-12.0 + 0.25 * index for index in range(169)]
    best = min(places, key=log_delta)
    low, high = best - 0.25, best + 0.25
    for _ in range(60):
        third = (high - low) / 3.0
        if log_delta(low + third) < log_delta(high - third):
            high -= third
        else:
            low += third
    found = min(log_delta(0.5 * (low + high)), log_delta(best))
    return min(1.0, math.exp(min(found, 0.0)) * (1.0 + TOLERANCES.discrete_noise_rounding))


def discrete_gaussian_scale(epsilon: float, delta: float, sensitivity: float) -> int:
    """The smallest whole scale, in steps, of discrete Gaussian noise that is (epsilon, delta)-DP.

    In any dimension, for l2 `sensitivity` in steps, by zCDP. Raises `InvalidValueError`.
    """
    require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True)
    require_real("delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)

    def fits(scale: int) -> bool:
        rho = sensitivity * sensitivity / (2.0 * scale * scale)
        return zcdp_delta(rho * (1.0 + TOLERANCES.discrete_noise_rounding), epsilon) <= delta

    high = 1
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def discrete_laplace_scale(epsilon: float, sensitivity: float) -> int:
    """The smallest whole scale, in steps, of discrete Laplace noise that is epsilon-DP, for l1
    `sensitivity` in steps. Raises `InvalidValueError`."""
    require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True)
    require_real("sensitivity", sensitivity, minimum=0.0, exclusive_minimum=True)
    return max(1, math.ceil(sensitivity / epsilon * (1.0 + TOLERANCES.discrete_noise_rounding)))


def discrete_gaussian_delta(epsilon: float, sensitivity: int, scale: int) -> float:
    """The exact delta of one coordinate, `sensitivity` in whole steps, rounded up.

    Their formula for one dimension, P[x > e s^2/D - D/2] - exp(e) P[x > e s^2/D + D/2], summed to
    50 digits. For scales up to some thousands of steps; in several dimensions it is a lower bound
    of delta only.
    """
    require_real("epsilon", epsilon, minimum=0.0)
    require_integer("sensitivity", sensitivity, minimum=1)
    require_integer("scale", scale, minimum=1)
    import mpmath  # the accountant alone does without it

    with mpmath.workdps(50):
        weight = [mpmath.exp(-mpmath.mpf(x * x) / (2 * scale * scale)) for x in range(40 * scale)]
        total = 2 * mpmath.fsum(weight) - weight[0]

        def beyond(edge: mpmath.mpf) -> mpmath.mpf:
            first = int(mpmath.floor(edge)) + 1
            if first > 0:
                return mpmath.fsum(weight[first:]) / total
            return 1 - mpmath.fsum(weight[1 - first :]) / total

        middle = mpmath.mpf(epsilon) * scale * scale / sensitivity
        half = mpmath.mpf(sensitivity) / 2
        delta = beyond(middle - half) - mpmath.exp(epsilon) * beyond(middle + half)
        return max(0.0, float(delta) * (1.0 + TOLERANCES.discrete_noise_rounding))
