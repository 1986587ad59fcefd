"""Where to put the line of integration: the saddle point of the tilted sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.engine.tilted_moments import TiltedMoments, class_arrays
from fl_shuffle.accounting.laws.amplification import AtomicLaw


def tilt_at_saddle_point(law: AtomicLaw, classes: Sequence[tuple[float, int]]) -> float:
    """The theta minimising log H(E e^(theta L)) - 2 log theta; any theta > 0 is valid."""
    gammas, counts = class_arrays(classes)
    values, probabilities = law.values, law.probabilities

    def slope(theta: float) -> float:
        """theta times the derivative: increasing in theta."""
        if theta * values[-1] > 600.0:
            return math.inf
        exponent = theta * values
        growth = np.exp(exponent)
        # Its round-off is of no interest here.
        value, excess = float(probabilities @ growth), float(probabilities @ np.expm1(exponent))
        moment = TiltedMoments(value, excess, 0.0, 0.0)
        first = float((probabilities * growth) @ values)
        return theta * first * moment.derivative(gammas, counts) - 2.0

    share = float(counts @ gammas) + 1.0
    mean = share * float(probabilities @ values)
    variance = share * float(probabilities @ values**2)
    guess = (-mean + math.sqrt(mean * mean + 8.0 * variance)) / (2.0 * variance)
    low = high = guess
    while slope(low) > 0.0:
        low *= 0.5
    while slope(high) < 0.0:
        high *= 2.0
    for _ in range(200):
        if high <= low * 1.01:
            break
        middle = math.sqrt(low * high)
        if slope(middle) > 0.0:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def expected_positive_draws(
    law: AtomicLaw, classes: Sequence[tuple[float, int]], theta: float
) -> float:
    """Expected number of positive draws after tilting by `theta`."""
    positive = law.values > 0.0
    mass = float(law.probabilities[positive] @ np.exp(theta * law.values[positive]))
    return mass * TiltedMoments.of(law, theta).share(classes)


def tilt_for_rare_draws(law: AtomicLaw, classes: Sequence[tuple[float, int]]) -> float:
    """The theta to use when outcomes without a positive draw are left out.

    Roughly minimises the weight of outcomes with one positive draw, over a logarithmic grid.
    """
    best = (math.inf, 0.0)
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        theta = factor / float(law.values[-1])
        draws = expected_positive_draws(law, classes, theta)
        total = TiltedMoments.of(law, theta).log_total(classes)
        best = min(best, (total + math.log(draws) - 2.0 * math.log(theta), theta))
    return best[1]
