"""E(S)_+ for a sum of independent terms, each below one of several atomic laws in third order.

E(S)_+ <= min over q of E(q + S)_+^2 / (4q), where the terms may be replaced by their laws, one
after the other. One law: the certified sum of `second_order`. Several: its moduli, the worst law's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, kve

from fl_shuffle.accounting.bounds.partial_shuffle.sums.second_order import (
    log_excess_by_moduli,
    squared_excess_of_sum,
)
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES

OFFSETS = np.geomspace(0.5, 1.6, 9)
"""Candidates for q in units of 1/theta: any q > 0 is valid, the best one lies near 1/theta."""


@dataclass(frozen=True)
class AtomicSum:
    """`count` terms, each of one of `laws`, and the line Re s = `theta` on which they are summed.

    Any line will do. `log_estimate`: of the bound, its moduli or phases those of normal sums.
    `doubtful`: the bound may be far smaller.
    """

    laws: Sequence[AtomicLaw]
    count: int
    theta: float
    log_estimate: float
    doubtful: bool

    @classmethod
    def of(cls, laws: Sequence[AtomicLaw], count: int, start: float | None = None) -> AtomicSum:
        """With the line at `common_tilt`, looked for from `start` on: that costs moments alone."""
        stack = _Laws.of(laws, count)
        theta = stack.common_tilt(start)
        largest, kurtosis, steps = max(
            (_log_of_phases if len(laws) == 1 else _log_of_moduli)(each, theta)
            for each in stack.tilted(theta)
        )
        estimate = largest + 1.0 + math.log(0.25 * theta)
        # Where few large values decide, the sum is far from normal.
        if len(laws) > 1 and kurtosis > TOLERANCES.moduli_kurtosis:
            estimate += math.log1p(TOLERANCES.moduli_misjudged * steps)
        doubtful = len(laws) == 1 and kurtosis > TOLERANCES.phases_kurtosis
        return cls(laws, count, theta, estimate, doubtful)

    def bound(self, smoothing: float) -> float:
        """An upper bound on E(S)_+. `smoothing`: deviation, in units of 1/theta, for one law."""
        if len(self.laws) > 1:
            return _exponential(self._log_worst_mixture())
        offsets = OFFSETS / self.theta
        found = squared_excess_of_sum(self.laws[0], self.count, self.theta, offsets, smoothing)
        if found is None:
            return math.inf
        return float(np.min(found.values / (4.0 * offsets))) * _exponential(found.log_scale)

    def _log_worst_mixture(self) -> float:
        """All laws on one line with one step, the largest moments first."""
        tilted = _Laws.of(self.laws, self.count).tilted(self.theta)
        deviation = math.sqrt(max(each.variance for each in tilted))
        period = TOLERANCES.cells_period_sds * deviation + 8.0 / self.theta
        worst = -math.inf
        for index in sorted(range(len(tilted)), key=lambda index: -tilted[index].log):
            law = self.laws[index]
            found = log_excess_by_moduli(law, self.count, self.theta, period, worst)
            if math.isnan(found):
                return math.inf
            worst = max(worst, found)
        return worst


@dataclass(frozen=True)
class _Tilted:
    """log M(theta)^count, and variance and kurtosis of the tilted sum (the latter zero if normal).

    Infinite where exponentials overflow.
    """

    log: float
    variance: float
    kurtosis: float


def likely_tilt(laws: Sequence[AtomicLaw], count: int) -> float:
    """About the exponential rate of the sum's tail once the laws' lower parts are collapsed.

    Between those of the laws, nearer to the least one, as the widest law decides.
    """
    saddles = _Laws.of(laws, count).saddle_points(None, TOLERANCES.likely_tilt_level)
    return math.pow(float(np.min(saddles)), 2.0 / 3.0) * math.cbrt(float(np.max(saddles)))


@dataclass(frozen=True)
class _Laws:
    """Several laws, a row each, filled up with atoms of no mass; for estimates of `count` terms."""

    values: FloatArray
    probabilities: FloatArray
    count: int

    @classmethod
    def of(cls, laws: Sequence[AtomicLaw], count: int) -> _Laws:
        values, probabilities = np.zeros((2, len(laws), max(law.values.size for law in laws)))
        for row, law in enumerate(laws):
            values[row, : law.values.size] = law.values
            probabilities[row, : law.values.size] = law.probabilities
        return cls(values, probabilities, count)

    def common_tilt(self, start: float | None) -> float:
        """Between the laws' saddle points, where the largest estimate is least."""
        saddles = self.saddle_points(start)
        low, high = float(np.min(saddles)), float(np.max(saddles))
        while high > TOLERANCES.rings_tilt_step * low:
            theta = math.sqrt(low * high)
            logs = [_log_of_moduli(each, theta)[0] for each in self.tilted(theta)]
            worst = int(np.argmax(logs))
            low, high = (theta, high) if saddles[worst] > theta else (low, theta)
        return math.sqrt(low * high)

    def saddle_points(self, start: float | None, goal: float = 2.0) -> FloatArray:
        """The tilts theta at which the sum of `count` copies of each law has mean goal/theta."""
        top = np.maximum(np.max(self.values, axis=1), TOLERANCES.partial_shuffle_tiny)
        low, high = np.zeros(top.size), TOLERANCES.partial_shuffle_max_exponent / top
        if start is None:
            mean = self.count * np.sum(self.probabilities * self.values, axis=1)
            variance = self.count * np.sum(self.probabilities * self.values**2, axis=1)
            theta: FloatArray = (np.sqrt(mean * mean + 8.0 * variance) - mean) / (2.0 * variance)
        else:
            theta = np.full(top.size, start)
        theta = np.minimum(theta, high)
        for _ in range(TOLERANCES.saddle_steps):
            _, mean, variance, _ = self._moments(theta)
            # Theta times the mean grows with theta, in the end exponentially: Newton's method in
            # log theta for its inverse hyperbolic sine.
            level = theta * mean
            low, high = np.where(level < goal, theta, low), np.where(level < goal, high, theta)
            rise = (level + theta * theta * variance) / np.hypot(1.0, level)
            step = (math.asinh(goal) - np.arcsinh(level)) / np.maximum(rise, 1.0)
            moved = theta * np.exp(np.clip(step, -1.0, 1.0))
            inside = (moved > low) & (moved < high)
            moved = np.where(inside, moved, np.sqrt(np.maximum(low, 0.5 * theta) * high))
            close = bool(np.all(np.abs(moved - theta) <= TOLERANCES.saddle_close * theta))
            theta = moved
            if close:
                break
        return theta

    def tilted(self, theta: float) -> list[_Tilted]:
        """Each law's sum at one tilt."""
        far = theta * np.max(self.values, axis=1) > TOLERANCES.partial_shuffle_max_exponent
        log, _, variance, fourth = self._moments(np.where(far, 0.0, theta), fourth=True)
        kurtosis = self.count * fourth / variance**2
        found = zip(far.tolist(), log.tolist(), variance.tolist(), kurtosis.tolist(), strict=True)
        return [_Tilted(math.inf, 1.0, 0.0) if out else _Tilted(*each) for out, *each in found]

    def _moments(
        self, theta: FloatArray, *, fourth: bool = False
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """log M(theta)^count, mean and variance of the tilted sum, and a term's fourth moment."""
        rise = np.expm1(theta[:, None] * self.values)
        excess = np.einsum("ij,ij->i", self.probabilities, rise)
        whole = np.maximum(1.0 + excess, TOLERANCES.partial_shuffle_tiny)
        rise += 1.0
        rise *= self.probabilities
        rise /= whole[:, None]
        mean = np.einsum("ij,ij->i", rise, self.values)
        off = self.values - mean[:, None]
        off *= off
        variance = np.einsum("ij,ij->i", rise, off)
        variance = np.maximum(variance, TOLERANCES.partial_shuffle_tiny)
        last = np.einsum("ij,ij->i", rise, off * off) if fourth else variance
        return self.count * np.log(whole), self.count * mean, self.count * variance, last


def _log_of_phases(tilted: _Tilted, theta: float) -> tuple[float, float, float]:
    """log of M(theta)^count E e^(-theta y) y_+^2, y normal with mean 3/theta, for offset 1/theta.

    The saddle point is where the tilted sum's mean is 2/theta. With the kurtosis, and theta times
    the deviation.
    """
    steps = theta * math.sqrt(tilted.variance)
    t = steps - 3.0 / steps
    root = math.sqrt(2.0 * math.pi)
    # The second moment of the positive part, over the density; nearly 2/t^3 far out.
    part = (1.0 + t * t) * 0.5 * root * float(erfcx(t / math.sqrt(2.0))) - t
    if t > TOLERANCES.phases_far:
        part = 2.0 / t**3
    part = max(part, TOLERANCES.partial_shuffle_tiny)
    log = tilted.log - 4.5 / steps**2 + math.log(tilted.variance) + math.log(part / root)
    return log, tilted.kurtosis, steps


def _log_of_moduli(tilted: _Tilted, theta: float) -> tuple[float, float, float]:
    """log of (1/pi) int |M(s)|^count / |s|^3 for normal decay: a e^z (K_1(z) - K_0(z)) / pi.

    a is half the tilted variance, z = a theta^2 / 2, K_0 and K_1 Bessel's functions.
    """
    a = 0.5 * tilted.variance
    z = 0.5 * a * theta * theta
    if z > TOLERANCES.moduli_far:
        log = 0.5 * math.log(math.pi / a) - 3.0 * math.log(theta)
    else:
        log = math.log(a) + math.log(float(kve(1, z) - kve(0, z)))
    return tilted.log + log - math.log(math.pi), tilted.kurtosis, theta * math.sqrt(2.0 * a)


def _exponential(log: float) -> float:
    return math.exp(log) if log < TOLERANCES.partial_shuffle_max_exponent else math.inf
