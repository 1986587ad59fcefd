"""How many of the other reports come from the blanket, and how that weighs into delta.

With M the number of the n - 1 other reports drawn from the blanket (Poisson-binomial), the bound is

    delta = sum_m w_m E(S_{m+1})_+,    w_m = P(M = m) / (m + 1),    S_j = sum of j iid copies of L.

All engines need is the generating function H(u) = sum_m w_m u^(m+1) at u = E[e^(sL)]. Each class
below evaluates it after exponential tilting by theta: with M0 = E[e^(theta L)] and
y = E_theta[e^(ikL)] - 1, `evaluate(y)` returns H(M0 (1 + y)) / e^log_scale.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fl_shuffle._internal.arrays import ComplexArray, FloatArray
from fl_shuffle.accounting.numerics.tilted_moments import TINY, TiltedMoments, class_arrays
from fl_shuffle.accounting.round_off import ROUND_OFF, UNIT

MOST_TERMS = 1 << 13
"""Of a window of the distribution of M: a wider one is made coarser."""
DECAY_LEAST_SQUARE = 1e-12
"""Squared moduli count as no smaller where they are turned into angles: near a right angle half of
the digits would be lost."""


class TiltedTransform(NamedTuple):
    """Values of the tilted generating function, relative to e^log_scale."""

    values: ComplexArray
    magnitude: FloatArray
    """Sum of the moduli of the terms added up: round-off is proportional to it."""


def complex_log1p(z: ComplexArray) -> ComplexArray:
    """Return log(1 + z) with error of a few units in the last place of |z|."""
    squared = 2.0 * z.real + z.real**2 + z.imag**2
    with np.errstate(divide="ignore"):
        modulus = 0.5 * np.log1p(np.maximum(squared, -1.0))
    result: ComplexArray = modulus + 1j * np.arctan2(z.imag, 1.0 + z.real)
    return result


def _power(z: ComplexArray, exponent: float) -> ComplexArray:
    """Return (1 + z)^exponent; part by part, because -infinity times a complex number is NaN."""
    logarithm = complex_log1p(z)
    result: ComplexArray = np.exp(exponent * logarithm.real + 1j * (exponent * logarithm.imag))
    return result


class TiltedCounts(ABC):
    """H after tilting: classes of n_c reports with tilted masses r_c.

    Everything is relative to e^`log_scale`.
    """

    log_scale: float
    """log of the factor taken out of H."""
    total: float
    """H(M0) / e^log_scale, the total tilted weight."""
    missing = 0.0
    """Upper bound on E(S)_+ weight left out, relative to e^log_scale / (e theta)."""
    width = 1
    """Terms added up for one value of H."""
    excess = 0.0
    """`evaluate` may exceed the truth by this share of itself."""
    zero_atom = 0.0
    """Weight of a fictitious atom at S = 0 that `evaluate` includes; to be subtracted."""

    def __init__(self, gammas: FloatArray, counts: FloatArray, moment: TiltedMoments) -> None:
        self.counts = counts
        self.masses = gammas * moment.value / moment.blend(gammas)
        self.log_factor = float(counts @ moment.log_blend(gammas))

    @abstractmethod
    def evaluate(self, y: ComplexArray) -> TiltedTransform:
        """Return H(M0 (1 + y)) / e^log_scale."""

    @abstractmethod
    def decay(self, y: ComplexArray) -> FloatArray:
        """Return R with |evaluate(y)| <= e^(-R^2/2)."""

    def sensitivity(self, y: ComplexArray) -> FloatArray:
        """Return sum_c n_c r_c / |1 + r_c y|: how an error in y moves the log of the product."""
        total = np.ones(y.shape, dtype=np.float64)
        for count, mass in zip(self.counts, self.masses, strict=True):
            total += count * mass / np.maximum(np.abs(1.0 + mass * y), TINY)
        return total


class BinomialCounts(TiltedCounts):
    """One class, large mean: H(u) = ((1 - gamma + gamma u)^n - (1 - gamma)^n) / (n gamma).

    Here n counts the differing client too; this is Su, Cheng and Wang 2025, Theorem 4.
    """

    total = 1.0

    def __init__(self, gamma: float, others: int, moment: TiltedMoments) -> None:
        n = others + 1.0
        super().__init__(np.array([gamma]), np.array([n]), moment)
        self.log_scale = self.log_factor - math.log(n * gamma)
        # `evaluate` leaves (1 - gamma)^n in H: the case without a report, as if it were an atom at
        # S = 0.
        empty = n * math.log1p(-gamma) if gamma < 1.0 else -math.inf
        self.zero_atom = math.exp(empty - self.log_factor)

    def evaluate(self, y: ComplexArray) -> TiltedTransform:
        """Return (1 + r y)^n."""
        power = _power(self.masses[0] * y, float(self.counts[0]))
        return TiltedTransform(power, np.abs(power))

    def decay(self, y: ComplexArray) -> FloatArray:
        """Return R = sqrt(n) a, a = arccos |1 + r y|; Lipschitz with the sd of the sum.

        a is an angle in L^2, between one and e^(ikX): it moves by at most that between one and
        e^(ihX), which is at most h times the sd of X. And cos a <= e^(-a^2/2).
        """
        mass = self.masses[0]
        missing = -2.0 * mass * y.real - mass * mass * (y.real**2 + y.imag**2)
        angle = np.arcsin(np.sqrt(np.clip(missing, 0.0, 1.0 - DECAY_LEAST_SQUARE)))
        result: FloatArray = math.sqrt(self.counts[0]) * angle
        return result


class ExplicitCounts(TiltedCounts):
    """Any classes: H by Horner's rule over a window of the distribution of M.

    Where the window is wide, each class's number is rounded down to multiples of a step first:
    fewer reports never hide better.
    """

    def __init__(self, gammas: FloatArray, counts: FloatArray, moment: TiltedMoments) -> None:
        super().__init__(gammas, counts, moment)
        # Round-off can move a mass of one above it; a smaller mass never hides better.
        masses = np.minimum(self.masses, 1.0)
        window = 20.0 * math.sqrt(float(np.sum(counts * masses * (1.0 - masses))))
        self._step = max(1, math.ceil(window / MOST_TERMS))
        lost = 0.0 if self._step == 1 else 2.0 * counts.size * self._step
        self._mean = max(float(np.sum(counts * masses)) - lost, 0.0)
        self.log_scale = self.log_factor + moment.log
        law, first, self.missing = poisson_binomial(counts, masses, self._step)
        self.excess = ROUND_OFF + 8.0 * UNIT * window
        multiples = self._step * (first + np.arange(law.size))
        # w_m = P(M = m)/(m + 1), raised by what round-off of the window may have lost.
        self._weights = (1.0 + self.excess) * law / (multiples + 1.0)
        self._first = self._step * first
        self.width = law.size
        self.total = float(np.sum(self._weights))
        self.excess *= 2.0

    def decay(self, y: ComplexArray) -> FloatArray:
        """Return R with R^2 = E[M] (1 - |1 + y|^2): |H| <= E|1 + y|^M <= e^(-R^2/2).

        The product bound would be wrong here: H keeps the small counts, which decay slowly. What
        is rounded down costs |1 + y|^(-c), c = classes times step: at most e^(2c (1 - |1 + y|))
        where |1 + y| >= 1/2.
        """
        square = np.maximum(-2.0 * y.real - (y.real**2 + y.imag**2), 0.0)
        if self._step > 1:
            square = np.minimum(square, 0.75)
        result: FloatArray = np.sqrt(self._mean * square)
        return result

    def evaluate(self, y: ComplexArray) -> TiltedTransform:
        """Return sum_m w_m (1+y)^(m+1); Horner's rule loses two units in the last place a step."""
        unit = 1.0 + y if self._step == 1 else _power(y, float(self._step))
        total = np.full(y.shape, self._weights[-1], dtype=np.complex128)
        for weight in self._weights[-2::-1]:
            total *= unit
            total += weight
        shift = _power(y, self._first + 1.0)
        size = np.abs(shift) * (self.total * (2.0 + 0.05 * self._weights.size))
        return TiltedTransform(total * shift, size)


def _binomial(count: int, mass: float) -> tuple[FloatArray, int, float]:
    """Return a window of the binomial distribution, its first value, and the mass outside.

    The last is an upper bound. By ratios of neighbors outwards from the mode, then normalized:
    relative error a few hundred units in the last place, for any count.
    """
    if mass >= 1.0:
        return np.ones(1), count, 0.0
    reach = 16.0 + 10.0 * math.sqrt(count * mass * (1.0 - mass))
    low = max(0, math.floor(count * mass - reach))
    high = min(count, math.ceil(count * mass + reach))
    mode = min(max(math.floor((count + 1) * mass), low), high)
    odds = mass / (1.0 - mass)
    above = np.arange(mode, high, dtype=np.float64)
    below = np.arange(mode, low, -1, dtype=np.float64)
    up = np.cumprod((count - above) / (above + 1.0) * odds)
    down = np.cumprod(below / ((count - below + 1.0) * odds)) if odds > 0.0 else np.zeros(0)
    law = np.concatenate([down[::-1], [1.0], up])
    law /= float(np.sum(law))
    missing = 0.0
    if high < count:
        # Ratios of neighbors fall outwards, so the mass outside is at most a geometric series.
        ratio = (count - high) / (high + 1.0) * odds
        missing += float(law[-1]) * ratio / (1.0 - ratio)
    if low > 0:
        ratio = low / ((count - low + 1.0) * odds)
        missing += float(law[0]) * ratio / (1.0 - ratio)
    return law, low, missing


def poisson_binomial(
    counts: FloatArray, masses: FloatArray, step: int = 1
) -> tuple[FloatArray, int, float]:
    """Return a window of the distribution of a sum of independent binomials.

    Parameters
    ----------
    counts, masses : ndarray, shape (classes,)
        Numbers and probabilities.
    step : int, default 1
        Each binomial is rounded down to multiples of `step`, in which values are given.

    Returns
    -------
    tuple of ndarray, int, and float
        The distribution, its first value, and a bound on the mass outside.
    """
    law = np.ones(1)
    first = 0
    missing = 0.0
    for count, mass in zip(counts, masses, strict=True):
        part, low, outside = _binomial(int(count), float(mass))
        missing += outside
        if step > 1:
            places = (low + np.arange(part.size)) // step
            low = low // step
            part = np.bincount(places - low, part).astype(np.float64)
        law = np.convolve(law, part)
        first += low
        heavy = np.flatnonzero(law > 1e-22)
        missing += float(law[: heavy[0]].sum() + law[heavy[-1] + 1 :].sum())
        law = law[heavy[0] : heavy[-1] + 1]
        first += int(heavy[0])
    return law, first, missing


def tilted_counts(classes: Sequence[tuple[float, int]], moment: TiltedMoments) -> TiltedCounts:
    """Return the cheaper representation (classes: gamma > 0, count > 0)."""
    gammas, counts = class_arrays(classes)
    if len(classes) == 1 and (counts[0] + 1.0) * gammas[0] >= 1.0:
        return BinomialCounts(float(gammas[0]), int(counts[0]), moment)
    return ExplicitCounts(gammas, counts, moment)
