"""Where to put the line of integration: the saddle point of the tilted sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.privacy_loss import AtomicLaw


def saddle_point(law: AtomicLaw, classes: Sequence[tuple[float, int]]) -> float:
    """The theta minimising log H(E e^(theta L)) - 2 log theta; any theta > 0 is valid."""
    gammas = np.array([gamma for gamma, _ in classes])
    counts = np.array([float(count) for _, count in classes])
    values, probabilities = law.values, law.probabilities

    def slope(theta: float) -> float:
        """theta times the derivative: increasing in theta."""
        if theta * values[-1] > 600.0:
            return math.inf
        weighted = probabilities * np.exp(theta * values)
        first = float(weighted @ values)
        excess = float(probabilities @ np.expm1(theta * values))
        masses = gammas / (1.0 + gammas * excess)
        return theta * first * (float(counts @ masses) + 1.0 / (1.0 + excess)) - 2.0

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
