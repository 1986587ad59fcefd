"""A test on sums of Laplace reports: what it certainly tells of one client.

The client's mean moves by `shift` along one coordinate. The test adds up that coordinate of all
rounds' sums and compares it with a threshold. Under either hypothesis the total is a sum of
independent Laplace variables, the two laws a shift apart, but for the rounding of reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.engine.tilted_moments import UNIT

SUM_ATTACK_COARSEST = 0.125
"""Where a grid is coarser than this share of its noise scale no test is claimed."""
SUM_ATTACK_LOG_MISSED = (-24.0, -36.0, -60.0)
"""Logarithms, one of which is tried after the other, of the probability, times e^epsilon, that
rounding moves the test by more than is allowed for."""
LAPLACE_SUM_DIGITS = 32.0
"""Copies and cut-off parts of an integral are e^-32 of its bound, or less."""
LAPLACE_SUM_NODES = 200_000
"""Where an integral takes more points, of very few reports, nothing is claimed."""
LAPLACE_SUM_SCALES = 64
"""More noise scales than this are rounded up."""
LAPLACE_SUM_REACH = 7e7
"""The end of an integral is looked for up to so many deviations' inverses."""
LAPLACE_SUM_THRESHOLDS = 13
"""So many thresholds are tried first; any threshold is a test."""
LAPLACE_SUM_SEARCH = 12
"""Steps of the search for the best one."""

Vector = NDArray[np.float64]


class LaplaceSum:
    """The law of a sum of independent Laplace variables, `counts[c]` of scale `scale[c]`.

    Tails are integrals of the moment generating function M on a vertical line, summed by the
    trapezoidal rule with step h = 2 pi / L. By Poisson's formula

        (h / 2 pi) sum over k of M(s) e^(-s x) / s,   s = theta + ikh,   is
        sum over m of P(Y > x + mL) e^(theta m L),

    so that what is wrong with the sum has a sign and Chernoff bounds; the rest of the integral is
    bounded by its falling integrand, and round-off is allowed for.
    """

    def __init__(self, scale: Vector, counts: NDArray[np.int64]) -> None:
        there = counts > 0
        self._b, self._n = scale[there], counts[there].astype(np.float64)
        self._edge = 1.0 / float(self._b.max())
        self.deviation = math.sqrt(2.0 * float(self._n @ self._b**2))

    def log_moment(self, theta: float) -> float:
        """log E e^(theta Y), 0 <= theta < 1 / the largest scale."""
        return -float(self._n @ np.log1p(-((self._b * theta) ** 2)))

    def _mean(self, theta: float) -> float:
        square = (self._b * theta) ** 2
        return float(self._n @ (2.0 * square / (1.0 - square))) / theta

    def tilt(self, value: Callable[[float], float], goal: float) -> float:
        """The theta at which a rising `value(theta)` is about `goal`."""
        low, high = bisected(lambda theta: value(theta) < goal, 0.0, self._edge, 1e-7)
        return 0.5 * (low + high)

    def chernoff(self, delta: float) -> float:
        """An x beyond which less than `delta` lies."""
        theta = self.tilt(lambda t: t * self._mean(t) - self.log_moment(t), -math.log(delta))
        return (self.log_moment(theta) - math.log(delta)) / theta

    def tail(self, x: float) -> tuple[float, float]:
        """Lower and upper bound on P(Y > x)."""
        if x < 0.0:
            low, high = self.tail(-x)
            return 1.0 - high, 1.0 - low
        # Near the middle the pole at zero is kept away from.
        theta = max(
            self.tilt(self._mean, max(x, 0.5 * self.deviation)), 1e-3 * self._edge * UNIT**0.25
        )
        top, room = self.log_moment(theta), LAPLACE_SUM_DIGITS
        further = theta + 0.5 * min(self._edge - theta, theta)
        above = self.log_moment(further)
        # The copies on both sides are e^-room of what is looked for, or less.
        period = max(
            (theta * x - top + room) / theta,
            (above - top - (further - theta) * x + room) / (further - theta),
        )
        h = 2.0 * math.pi / period
        end = self._end(theta, top - room)
        if end > LAPLACE_SUM_NODES * h:
            return 0.0, min(1.0, math.exp(top - theta * x))
        v = h * np.arange(math.ceil(end / h) + 1)
        real, turn = self._log_transform(theta, v)
        size = np.exp(real - theta * x) / np.hypot(theta, v) * (h / math.pi)
        size[0] *= 0.5
        total = float(np.sum(size * np.cos(turn - v * x - np.arctan2(v, theta))))
        wrong = float(np.sum(size)) * UNIT * (1e3 + 8.0 * float(np.sum(self._n)))
        edge = float(v[-1])
        cut = math.exp(float(real[-1]) - theta * x) / (math.pi * self._falls(theta, edge))
        ratio = math.exp(-(further - theta) * period)
        copies = math.exp(above - further * x) * ratio / (1.0 - ratio)
        copies += math.exp(-theta * period) / -math.expm1(-theta * period)
        return max(0.0, total - wrong - cut - copies), min(1.0, total + wrong + cut)

    def _log_transform(self, theta: float, v: Vector) -> tuple[Vector, Vector]:
        """Real and imaginary part of log M(theta + iv)."""
        real, turn = np.zeros_like(v), np.zeros_like(v)
        for b, n in zip(self._b.tolist(), self._n.tolist(), strict=True):
            # 1 - (b s)^2 = (1 - b s)(1 + b s)
            low, high, side = 1.0 - b * theta, 1.0 + b * theta, (b * v) ** 2
            real -= 0.5 * n * (np.log1p(side / low**2) + np.log1p(side / high**2))
            turn += n * (np.arctan2(b * v, low) - np.arctan2(b * v, high))
        return real + self.log_moment(theta), turn

    def _end(self, theta: float, goal: float) -> float:
        """A v from which on |M(theta + iv)|, which falls, is below e^goal; infinite if far away."""
        v = np.geomspace(1.0, LAPLACE_SUM_REACH, 100) / self.deviation
        below = self._log_transform(theta, v)[0] <= goal
        return float(v[np.argmax(below)]) if below.any() else math.inf

    def _falls(self, theta: float, v: float) -> float:
        """From v on |M(theta + iv)| falls at least as this power of 1 / v."""
        side = (self._b * v) ** 2
        low, high = (1.0 - self._b * theta) ** 2, (1.0 + self._b * theta) ** 2
        return float(self._n @ (side / (low + side) + side / (high + side)))


class LaplaceSumTest:
    """The threshold test against a client whose mean moves by `shift` in each of `rounds` sums.

    Arrays [classes]: of each there are `counts` reports of that `scale`, rounded to `grid`, the
    client's among them; the adversary knows all other reports. Sums of some of them are covered: to
    those anybody can add the noise that is missing. Relation: replace-one.

    A rounding error is at most half a step, and its mean at most zeta(3) / (4 pi^3) (g/b)^2 steps
    (its Fourier series, with the characteristic function 1 / (1 + b^2 t^2)), so that all of them
    exceed sqrt(ln(2/missed) sum g^2 / 2) and their means with probability `missed` at most
    (Hoeffding). Where scales are many they are rounded up, which is noise added.
    """

    def __init__(
        self, scale: Vector, grid: Vector, counts: NDArray[np.int64], shift: float, rounds: int
    ) -> None:
        there = counts > 0
        scale, grid, counts = scale[there], grid[there], counts[there] * rounds
        self._far = shift * rounds
        coarse = float((grid / scale).max()) > SUM_ATTACK_COARSEST
        self.says_nothing = coarse or self._far <= 0.0
        self._squares = float(counts @ grid**2)
        self._bias = 0.01 * float(counts @ (grid**3 / scale**2))
        order = np.argsort(scale)
        parts = np.array_split(order, min(len(order), LAPLACE_SUM_SCALES))
        self.law = LaplaceSum(
            np.array([scale[part].max() for part in parts]),
            np.array([counts[part].sum() for part in parts]),
        )
        self._errors = lru_cache(maxsize=256)(self._errors_at)

    def _errors_at(self, x: float) -> tuple[float, float]:
        """Power and false alarm at threshold x + shift: lower and upper bound."""
        beyond = self.law.tail(x + self._far)[1]
        if beyond <= 0.0:
            return 0.0, 1.0
        log_missed = math.log(beyond) + SUM_ATTACK_LOG_MISSED[0]
        moved = math.sqrt(0.5 * (math.log(2.0) - log_missed) * self._squares) + self._bias
        missed = math.exp(log_missed)
        hit = self.law.tail(x + moved)[0] - missed
        return hit, self.law.tail(x + self._far - moved)[1] + missed

    def epsilon(self, delta: float) -> float:
        """An epsilon at `delta` (nats) that these sums certainly cost; 0 if none is found."""

        def reached(x: float) -> float:
            hit, false = self._errors(x)
            return math.log((hit - delta) / false) if hit > delta else -math.inf

        return 0.0 if self.says_nothing else max(0.0, self._best(reached, delta))

    def delta(self, epsilon: float) -> float:
        """A divergence at `epsilon` that these sums certainly have; 0 if none is found."""

        def reached(x: float) -> float:
            hit, false = self._errors(x)
            return hit - math.exp(epsilon) * false

        return 0.0 if self.says_nothing else max(0.0, self._best(reached, 1e-15))

    def _best(self, reached: Callable[[float], float], delta: float) -> float:
        """The largest value over thresholds at which the power may be above `delta`."""
        # Further down false alarms rise, and the power is one already.
        start = -min(0.5 * self._far, self.law.chernoff(1e-15))
        points = np.linspace(start, self.law.chernoff(delta), LAPLACE_SUM_THRESHOLDS)
        values = [reached(x) for x in points.tolist()]
        top = int(np.argmax(values))
        low, high = float(points[max(top - 1, 0)]), float(points[min(top + 1, len(points) - 1)])
        # Any threshold is a test: the search may end where it likes.
        near = minimize_scalar(
            lambda x: -reached(float(x)), bounds=(low, high), method="bounded",
            options={"maxiter": LAPLACE_SUM_SEARCH},
        )  # fmt: skip
        return max(values[top], -float(near.fun)) * (1.0 - 1e-12)
