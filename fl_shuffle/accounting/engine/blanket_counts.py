"""How many of the other reports come from the blanket, and how that weighs into delta.

With M the number of the n - 1 other reports drawn from the blanket (Poisson-binomial), the bound is

    delta = sum_m w_m E(S_{m+1})_+,    w_m = P(M = m) / (m + 1),    S_j = sum of j iid copies of L.

All engines need is the generating function H(u) = sum_m w_m u^(m+1) at u = E[e^(sL)]. Each class
below evaluates it after exponential tilting by theta: with M0 = E[e^(theta L)] and
y = E_theta[e^(ikL)] - 1, `evaluate(y)` returns H(M0 (1 + y)) / e^log_scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.engine.tilted_moments import TINY, TiltedMoments, class_arrays
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES

ComplexArray = NDArray[np.complex128]


class Transform(NamedTuple):
    """Values of the tilted generating function, relative to e^log_scale."""

    values: ComplexArray
    magnitude: FloatArray
    """Sum of the moduli of the terms added up: round-off is proportional to it."""
    excess: ComplexArray | None
    """Transform of a nonnegative weight that bounds how far the weights exceed the true ones."""


class TiltedCounts(Protocol):
    """H after tilting. Everything is relative to e^`log_scale`."""

    log_scale: float
    """log of the factor taken out of H."""
    total: float
    """H(M0) / e^log_scale, the total tilted weight."""
    discard_factor: float
    """|evaluate(y)| <= discard_factor * e^(-R^2/2) with R = `decay(y)`."""
    missing: float
    """Upper bound on E(S)_+ weight left out, relative to e^log_scale / (e theta)."""
    width: int
    """Terms added up for one value of H."""
    zero_atom: float
    """Weight of a fictitious atom at S = 0 that `evaluate` includes; to be subtracted."""

    def evaluate(self, y: ComplexArray) -> Transform: ...

    def difference(self, y: ComplexArray, step: ComplexArray) -> Transform:
        """H at y + step less H at y, without cancellation when the step is small."""
        ...

    def decay(self, y: ComplexArray) -> FloatArray: ...

    def sensitivity(self, y: ComplexArray) -> FloatArray: ...


def complex_log1p(z: ComplexArray) -> ComplexArray:
    """log(1 + z) with error of a few units in the last place of |z|."""
    squared = 2.0 * z.real + z.real**2 + z.imag**2
    with np.errstate(divide="ignore"):
        modulus = 0.5 * np.log1p(np.maximum(squared, -1.0))
    result: ComplexArray = modulus + 1j * np.arctan2(z.imag, 1.0 + z.real)
    return result


def complex_expm1(z: ComplexArray) -> ComplexArray:
    """exp(z) - 1 with error of a few units in the last place of |z|, for small z."""
    rise = np.expm1(z.real)
    half = np.sin(0.5 * z.imag)
    result: ComplexArray = (
        rise - 2.0 * (1.0 + rise) * half * half + 1j * (1.0 + rise) * np.sin(z.imag)
    )
    return result


def _power(z: ComplexArray, exponent: float) -> ComplexArray:
    """(1 + z)^exponent; part by part, because -infinity times a complex number is NaN."""
    logarithm = complex_log1p(z)
    result: ComplexArray = np.exp(exponent * logarithm.real + 1j * (exponent * logarithm.imag))
    return result


class _Classes:
    """Tilted blanket classes: counts n_c, tilted masses r_c; shared by the representations."""

    def __init__(self, gammas: FloatArray, counts: FloatArray, moment: TiltedMoments) -> None:
        self.counts = counts
        self.masses = gammas * moment.value / moment.blend(gammas)
        self.log_factor = float(counts @ moment.log_blend(gammas))

    def power(self, y: ComplexArray) -> ComplexArray:
        """prod_c (1 + r_c y)^n_c."""
        exponent = np.zeros(y.shape, dtype=np.complex128)
        for count, mass in zip(self.counts, self.masses, strict=True):
            logarithm = complex_log1p(mass * y)
            # Part by part: where 1 + r y = 0 the complex product would be NaN, not -infinity.
            exponent.real += count * logarithm.real
            exponent.imag += count * logarithm.imag
        result: ComplexArray = np.exp(exponent)
        return result

    def decay(self, y: ComplexArray) -> FloatArray:
        """R = sqrt(sum n_c a_c^2), a_c = arccos |1 + r_c y|; Lipschitz with the sd of the sum.

        Each a_c is an angle in L^2, between one and e^(ikX): it moves by at most that between one
        and e^(ihX), which is at most h times the sd of X. And cos a <= e^(-a^2/2).
        """
        square = y.real**2 + y.imag**2
        total = np.zeros(y.shape, dtype=np.float64)
        for count, mass in zip(self.counts, self.masses, strict=True):
            missing = -2.0 * mass * y.real - mass * mass * square
            missing = np.clip(missing, 0.0, 1.0 - TOLERANCES.decay_least_square)
            total += count * np.arcsin(np.sqrt(missing)) ** 2
        result: FloatArray = np.sqrt(total)
        return result

    def sensitivity(self, y: ComplexArray) -> FloatArray:
        """sum_c n_c r_c / |1 + r_c y|: how an error in y moves the log of the product."""
        total = np.ones(y.shape, dtype=np.float64)
        for count, mass in zip(self.counts, self.masses, strict=True):
            total += count * mass / np.maximum(np.abs(1.0 + mass * y), TINY)
        return total


class BinomialCounts:
    """One class, large mean: H(u) = ((1 - gamma + gamma u)^n - (1 - gamma)^n) / (n gamma).

    Here n counts the differing client too; this is Su, Cheng and Wang 2025, Theorem 4.
    """

    missing = 0.0
    width = 1

    def __init__(self, gamma: float, others: int, moment: TiltedMoments) -> None:
        self._classes = _Classes(np.array([gamma]), np.array([others + 1.0]), moment)
        mean = (others + 1.0) * gamma
        self.log_scale = self._classes.log_factor - math.log(mean)
        self.total = 1.0
        self.discard_factor = 1.0
        empty = (others + 1.0) * math.log1p(-gamma) if gamma < 1.0 else -math.inf
        self.zero_atom = math.exp(empty - self._classes.log_factor)
        self.decay = self._classes.decay
        self.sensitivity = self._classes.sensitivity

    def evaluate(self, y: ComplexArray) -> Transform:
        """(1 + r y)^n."""
        power = self._classes.power(y)
        return Transform(power, np.abs(power), None)

    def difference(self, y: ComplexArray, step: ComplexArray) -> Transform:
        """(1 + r y)^n ((1 + r step/(1 + r y))^n - 1), or plainly where the first is small."""
        mass = float(self._classes.masses[0])
        start, end = 1.0 + mass * y, 1.0 + mass * (y + step)
        far = np.abs(start) < 0.5 * np.abs(end)
        ratio = mass * step / np.where(far, 1.0, start)
        growth = float(self._classes.counts[0]) * complex_log1p(np.where(far, 0.0, ratio))
        before, after = self._classes.power(y), self._classes.power(y + step)
        values = np.where(far, after - before, before * complex_expm1(growth))
        return Transform(values, np.where(far, 2.0 * np.abs(after), np.abs(values)), None)


class PolynomialCounts:
    """Many classes, large mean: 1/(m+1) is replaced by a quartic that is nowhere below it.

    With x = m + 1, its tilted mean x0 and z = (x - x0)/x0 >= z_min,
    1/x <= (1 - z + z^2 - z^3 + z^4/(1 + z_min)) / x0, and the difference is at most the last term.
    The quartic's transform is closed form through the first four cumulants of x.
    """

    zero_atom = 0.0

    def __init__(self, gammas: FloatArray, counts: FloatArray, moment: TiltedMoments) -> None:
        self._classes = _Classes(gammas, counts, moment)
        self.width = 4 * counts.size
        masses = self._classes.masses
        self.centre = 1.0 + float(np.sum(counts * masses))
        variance = float(np.sum(counts * masses * (1.0 - masses)))
        reach, self.missing = _lower_tail(variance, self.centre)
        self._slack = 1.0 / (1.0 - reach)
        self.log_scale = self._classes.log_factor + moment.log - math.log(self.centre)
        self.missing *= self.centre
        self.expected_excess = self._slack * (3.0 * variance**2 + variance) / self.centre**4
        self.discard_factor = 4e3 * self._slack
        self.total = float(self.evaluate(np.zeros(1, dtype=np.complex128)).values[0].real)
        self.decay = self._classes.decay
        self.sensitivity = self._classes.sensitivity

    def difference(self, y: ComplexArray, step: ComplexArray) -> Transform:
        """Not offered: the quartic's weights make no use of rare draws."""
        raise NotImplementedError("ask tilted_counts for an exact representation")

    def evaluate(self, y: ComplexArray) -> Transform:
        """E[quartic(x) (1+y)^x] under the tilted law, times x0; excess from the last term."""
        k1 = np.full(y.shape, 1.0 + 0j)
        k2 = np.zeros(y.shape, dtype=np.complex128)
        k3 = np.zeros_like(k2)
        k4 = np.zeros_like(k2)
        for count, mass in zip(self._classes.counts, self._classes.masses, strict=True):
            r = mass * (1.0 + y) / (1.0 + mass * y)
            spread = count * r * (1.0 - r)
            k1 += count * r
            k2 += spread
            k3 += spread * (1.0 - 2.0 * r)
            k4 += spread * (1.0 - 6.0 * r + 6.0 * r * r)
        d = (k1 - self.centre) / self.centre
        k2 /= self.centre**2
        k3 /= self.centre**3
        k4 /= self.centre**4
        second = k2 + d * d
        third = k3 + 3.0 * k2 * d + d**3
        fourth = k4 + 4.0 * k3 * d + 3.0 * k2 * k2 + 6.0 * k2 * d * d + d**4
        last = self._slack * fourth
        common = (1.0 + y) * self._classes.power(y)
        size = np.abs(d)
        size = 1.0 + size * (1.0 + size * (1.0 + size * (1.0 + size)))
        size += (np.abs(k2) + np.abs(k3) + np.abs(k4)) * size + np.abs(k2) ** 2
        return Transform(
            values=(1.0 - d + second - third + last) * common,
            magnitude=(1.0 + self._slack) * size * np.abs(common),
            excess=last * common,
        )


def _lower_tail(variance: float, centre: float) -> tuple[float, float]:
    """A relative reach a and a bound on P(x < x0 (1 - a)), by Bernstein for sums of [0,1] terms."""
    exponent = 46.0
    deviation = exponent / 3.0 + math.sqrt((exponent / 3.0) ** 2 + 2.0 * exponent * variance)
    deviation = min(deviation, centre - 1.0)
    tail = math.exp(-(deviation**2) / (2.0 * (variance + deviation / 3.0)))
    if deviation >= centre - 1.0:
        tail = 0.0
    return deviation / centre, tail


class ExplicitCounts:
    """Any classes, moderate mean: H by Horner's rule over a window of the count's law."""

    zero_atom = 0.0

    def __init__(self, gammas: FloatArray, counts: FloatArray, moment: TiltedMoments) -> None:
        self._classes = _Classes(gammas, counts, moment)
        self._mean = float(np.sum(counts * self._classes.masses))
        self.log_scale = self._classes.log_factor + moment.log
        law, first, tail = poisson_binomial(counts, self._classes.masses)
        self._weights = TOLERANCES.pmf_inflation * law / (first + 1.0 + np.arange(law.size))
        self._first = first
        self.width = law.size
        self.missing = tail
        self.total = float(np.sum(self._weights))
        self.discard_factor = 1.0
        self.sensitivity = self._classes.sensitivity

    def decay(self, y: ComplexArray) -> FloatArray:
        """R with R^2 = E[M] (1 - |1 + y|^2): |H| <= E|1 + y|^M <= e^(-R^2/2).

        The product bound would be wrong here: H keeps the small counts, which decay slowly.
        """
        square = np.maximum(-2.0 * y.real - (y.real**2 + y.imag**2), 0.0)
        result: FloatArray = np.sqrt(self._mean * square)
        return result

    def evaluate(self, y: ComplexArray) -> Transform:
        """sum_m w_m (1+y)^(m+1)."""
        unit = 1.0 + y
        total = np.full(y.shape, self._weights[-1], dtype=np.complex128)
        for weight in self._weights[-2::-1]:
            total *= unit
            total += weight
        shift = _power(y, self._first + 1.0)
        return self._transform(total * shift, np.abs(shift) * self.total)

    def _transform(self, values: ComplexArray, size: FloatArray) -> Transform:
        """Horner's rule loses at most two units in the last place of `size` per step."""
        modulus = size * (2.0 + 0.05 * self._weights.size)
        return Transform(
            values, modulus, np.asarray(2.0 * (TOLERANCES.pmf_inflation - 1.0) * values)
        )

    def difference(self, y: ComplexArray, step: ComplexArray) -> Transform:
        """By synthetic division: (p(u) - p(v))/(u - v) has coefficients of one sign.

        Where v is small beside u there is nothing to cancel: plainly the difference.
        """
        v, u = 1.0 + y, 1.0 + y + step
        far = np.abs(v) < 0.5 * np.abs(u)
        at_u = np.full(y.shape, self._weights[-1], dtype=np.complex128)
        at_v = at_u.copy()
        quotient = np.zeros(y.shape, dtype=np.complex128)
        for weight in self._weights[-2::-1]:
            quotient *= u
            quotient += at_v
            at_v *= v
            at_v += weight
            at_u *= u
            at_u += weight
        front = self._first + 1.0
        power = _power(y, front)
        ratio = step / np.where(far, 1.0, v)
        growth = complex_expm1(front * complex_log1p(np.where(far, 0.0, ratio)))
        near = power * (growth * (at_v + step * quotient) + step * quotient)
        values = np.where(far, _power(y + step, front) * at_u - power * at_v, near)
        highest = self._first + float(self._weights.size)
        return self._transform(values, np.abs(step) * (4.0 * highest) * self.total)


def _binomial(count: int, mass: float) -> tuple[FloatArray, int, float]:
    """A window of the binomial law: (law, first value, bound on the mass outside).

    By ratios of neighbours outwards from the mode, then normalised: relative error a few hundred
    units in the last place, for any count.
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
        ratio = (count - high) / (high + 1.0) * odds
        missing += float(law[-1]) * ratio / (1.0 - ratio)
    if low > 0:
        ratio = low / ((count - low + 1.0) * odds)
        missing += float(law[0]) * ratio / (1.0 - ratio)
    return law, low, missing


def poisson_binomial(counts: FloatArray, masses: FloatArray) -> tuple[FloatArray, int, float]:
    """A window of the law of a sum of independent binomials: (law, first value, missing mass)."""
    law = np.ones(1)
    first = 0
    missing = 0.0
    for count, mass in zip(counts, masses, strict=True):
        part, low, outside = _binomial(int(count), float(mass))
        missing += outside
        law = np.convolve(law, part)
        first += low
        heavy = np.flatnonzero(law > 1e-22)
        missing += float(law[: heavy[0]].sum() + law[heavy[-1] + 1 :].sum())
        law = law[heavy[0] : heavy[-1] + 1]
        first += int(heavy[0])
    return law, first, missing


def tilted_counts(
    classes: Sequence[tuple[float, int]],
    moment: TiltedMoments,
    relative_error: float,
    *,
    exact: bool = False,
) -> TiltedCounts:
    """The cheapest representation that is accurate enough (classes: gamma > 0, count > 0).

    `exact` asks for one that can form differences (not the quartic).
    """
    gammas, counts = class_arrays(classes)
    if len(classes) == 1 and (counts[0] + 1.0) * gammas[0] >= 1.0:
        return BinomialCounts(float(gammas[0]), int(counts[0]), moment)
    masses = gammas * moment.value / moment.blend(gammas)
    if not exact and float(np.sum(counts * masses)) >= 100.0:
        polynomial = PolynomialCounts(gammas, counts, moment)
        if polynomial.expected_excess <= 0.1 * relative_error:
            return polynomial
    return ExplicitCounts(gammas, counts, moment)
