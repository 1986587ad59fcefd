"""E e^(theta L), in two forms: neither theta near zero nor a tiny value loses digits.

And where to put the line of integration: the saddle point of the tilted sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.round_off import UNIT

TINY = 1e-300
"""Keeps divisors and the arguments of logarithms away from zero."""


@dataclass(frozen=True)
class TiltedMoments:
    """M = E e^(theta L) as `value` = M and `excess` = M - 1, each a sum without cancellation.

    The generating function of one report is 1 - gamma + gamma M (`blend`).
    """

    value: float
    excess: float
    relative_error: float
    """Round-off of `value`, with half an ulp in every atom and probability, relative to it."""
    absolute_error: float
    """The same for `excess`, absolute."""

    @classmethod
    def of(cls, law: AtomicDistribution, theta: float) -> TiltedMoments:
        """Return the moment of `law` at `theta`; theta * largest value must be below 700."""
        exponent = theta * law.values
        growth = np.exp(exponent)
        rise = np.expm1(exponent)
        value = float(law.probabilities @ growth)
        terms = law.values.size + 8.0
        # The exponent theta v is off by a unit of itself, and so is e^(theta v) by |theta v|
        # units.
        drift = float(law.probabilities @ (np.abs(exponent) * growth))
        return cls(
            value=value,
            excess=float(law.probabilities @ rise),
            relative_error=UNIT * (terms + 2.0 * drift / value),
            absolute_error=UNIT * (terms * float(law.probabilities @ np.abs(rise)) + 2.0 * drift),
        )

    @property
    def log(self) -> float:
        """log M."""
        # Near theta = 0 all digits of log M are in M - 1.
        return math.log1p(self.excess) if abs(self.excess) < 0.5 else math.log(self.value)

    def blend(self, gammas: FloatArray) -> FloatArray:
        """Return 1 - gamma + gamma M for every class."""
        if abs(self.excess) < 0.5:
            return 1.0 + gammas * self.excess
        return (1.0 - gammas) + gammas * self.value

    def log_blend(self, gammas: FloatArray) -> FloatArray:
        """Return the logarithm of `blend`."""
        result: FloatArray
        if abs(self.excess) < 0.5:
            result = np.log1p(gammas * self.excess)
        else:
            result = np.log((1.0 - gammas) + gammas * self.value)
        return result

    def log_total(self, classes: Sequence[tuple[float, int]]) -> float:
        """Return the log of M prod_c (1 - gamma_c + gamma_c M)^n_c: the moment of the whole sum."""
        gammas, counts = class_arrays(classes)
        return self.log + float(counts @ self.log_blend(gammas))

    def share(self, classes: Sequence[tuple[float, int]]) -> float:
        """Return the derivative of `log_total` with respect to M."""
        return self.derivative(*class_arrays(classes))

    def derivative(self, gammas: FloatArray, counts: FloatArray) -> float:
        """Return `share` of classes that are arrays already."""
        return 1.0 / self.value + float(counts @ (gammas / self.blend(gammas)))

    def log_total_error(self, classes: Sequence[tuple[float, int]]) -> float:
        """Return the round-off of `log_total`."""
        gammas, counts = class_arrays(classes)
        if abs(self.excess) < 0.5:
            return self.absolute_error * self.share(classes)
        return (self.relative_error + 4.0 * UNIT) * (1.0 + float(np.sum(counts[gammas > 0.0])))


def class_arrays(classes: Sequence[tuple[float, int]]) -> tuple[FloatArray, FloatArray]:
    """Return blanket classes as arrays (gammas, counts)."""
    return (
        np.array([gamma for gamma, _ in classes], dtype=np.float64),
        np.array([float(count) for _, count in classes], dtype=np.float64),
    )


def tilt_at_saddle_point(law: AtomicDistribution, classes: Sequence[tuple[float, int]]) -> float:
    """Return the theta minimizing log H(E e^(theta L)) - 2 log theta; any theta > 0 is valid."""
    gammas, counts = class_arrays(classes)
    values, probabilities = law.values, law.probabilities

    def slope(theta: float) -> float:
        """Return theta times the derivative: increasing in theta."""
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
    # Squares of e^400 would overflow: the guess is made in units of the largest value.
    unit = float(np.max(np.abs(values)))
    mean = share * float(probabilities @ (values / unit))
    variance = share * float(probabilities @ (values / unit) ** 2)
    # For normal terms theta (mean + variance theta) = 2.
    guess = (-mean + math.sqrt(mean * mean + 8.0 * variance)) / (2.0 * variance) / unit
    # The log of a moment is convex, so doubling and halving the guess bracket the only zero.
    low = high = guess
    while slope(low) > 0.0:
        low *= 0.5
    while slope(high) < 0.0:
        high *= 2.0
    ends = bisected(lambda theta: slope(theta) > 0.0, high, low, 0.01)
    return 0.5 * sum(ends)
