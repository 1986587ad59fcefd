"""From counts and samples to lower bounds on epsilon that hold at a stated confidence.

A mechanism that is (eps, delta)-DP obeys P1(S) <= e^eps P0(S) + delta for every event S and both
orders of the two datasets, so an event that is seen more often on one side than this allows bounds
epsilon from below. All bounds are one-sided and exact (Clopper and Pearson 1934; Student and
chi-square distributions), nothing is asymptotic. Epsilons are in nats, relation replace-one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import betainccinv, betaincinv

from fl_shuffle._internal.arrays import Counts, Vector
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.numerics.stop_loss import amplified_delta

PRECISION = 1e-6
"""Relative, of an epsilon that is searched for."""
LARGEST_EPSILON = 40.0
"""No number of reports that can be drawn proves more."""
ENGINE_ERROR = 1e-3
"""Relative width of the engine's bracket; its lower end is used."""


def proportions_lower(hits: Counts, trials: int, alpha: float) -> Vector:
    """Return the largest p that are below the true probabilities, each but with chance `alpha`."""
    found = betaincinv(np.maximum(hits, 1), trials - hits + 1, alpha)
    return np.where(hits == 0, 0.0, found)


def proportions_upper(hits: Counts, trials: int, alpha: float) -> Vector:
    """Return the smallest p that are above the true probabilities, each but with chance `alpha`."""
    found = betainccinv(hits + 1, np.maximum(trials - hits, 1), alpha)
    return np.where(hits == trials, 1.0, found)


@dataclass(frozen=True)
class Dichotomy:
    """Two distributions on a few outcomes: `zero` and `one` [k], by decreasing ratio one/zero.

    Built from confidence bounds, it is *less* informative than the two true distributions of one
    report: the true ones can be turned into these by a randomized map of the report (Blackwell's
    order, in which one testing problem dominates another if its power is nowhere smaller).
    """

    zero: Vector
    one: Vector

    @classmethod
    def from_counts(cls, counts: Counts, trials: int, alpha: float) -> Dichotomy:
        """Return the test from the numbers `counts` [2, k] of scores above each threshold, in as
        many reports' scores under each dataset; thresholds fixed beforehand.

        For every t, P0(score > t) is bounded from above and P1(score > t) from below, all of them
        together with confidence 1 - alpha. The concave hull of these points, (0, 0) and (1, 1) lies
        below the true power curve.
        """
        share = alpha / (2.0 * counts.shape[1])
        upper = proportions_upper(counts[0], trials, share).tolist()
        lower = proportions_lower(counts[1], trials, share).tolist()
        points = {*zip(upper, lower, strict=True), (0.0, 0.0), (1.0, 1.0)}
        hull: list[tuple[float, float]] = []
        for x, y in sorted(points):
            while len(hull) > 1 and _turns_up(hull[-2], hull[-1], (x, y)):
                hull.pop()
            if not hull or x > hull[-1][0]:
                hull.append((x, y))
        zero, one = np.diff(np.array(hull), axis=0).T
        return cls(zero, one)

    def delta(self, epsilon: float, n: int) -> float:
        """Return a lower bound on delta(epsilon) of n shuffled reports, one of which tells the
        datasets apart and n - 1 of which follow `zero`; the larger of the two directions.

        The exact expression for equal others (Su, Cheng, Wang 2025, Theorem 5), rounded down.
        """
        # The hull's first outcome may have no mass under `zero` only if P0 = 0 was certain, which
        # no finite sample shows: every upper confidence bound is positive.
        ratio = self.one / self.zero
        scale = math.exp(epsilon)
        found = 0.0
        for values in (ratio - scale, 1.0 - scale * ratio):
            law = AtomicDistribution.of(values, self.zero / math.fsum(self.zero.tolist()))
            if law.upper > 0.0 and n == 1:
                found = max(found, float(law.stop_loss(np.zeros(1))[0]))
            elif law.upper > 0.0:
                bound = amplified_delta(law, [(1.0, n - 1)], relative_error=ENGINE_ERROR)
                found = max(found, bound.lower)
        return found

    def refutes(self, epsilon: float, delta: float, n: int, error: float = 0.0) -> bool:
        """Return whether n such reports cannot be (epsilon, delta)-DP: delta(epsilon) exceeds delta
        + (1 + e^epsilon) error.

        `error` bounds the total variation between the batch the formula describes and the real one
        (reports taken for the wrong class).
        """
        if epsilon > LARGEST_EPSILON:
            return False
        slack = delta + (1.0 + math.exp(epsilon)) * error
        return slack < 1.0 and self.delta(epsilon, n) > slack

    def epsilon(self, delta: float, n: int, error: float = 0.0) -> float:
        """Return the largest epsilon found that these reports refute at `delta`; 0 if none."""

        def refuted(epsilon: float) -> bool:
            return self.refutes(epsilon, delta, n, error)

        if not refuted(0.0):
            return 0.0
        return bisected(refuted, 0.0, LARGEST_EPSILON, PRECISION)[0]


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Return whether b lies on or below the line from a to c."""
    return (b[1] - a[1]) * (c[0] - b[0]) <= (c[1] - b[1]) * (b[0] - a[0])


def mu_lower(zero: Vector, one: Vector, alpha: float) -> float:
    """Return a lower bound on mu = (mean_1 - mean_0)/sd of a statistic that is Gaussian on both
    sides.

    `zero` and `one` are three or more paired plays (the same noise, the two datasets). The mean
    difference is bounded by Student's t on the pairs, the standard deviation by the chi-square
    distribution of the larger of the two sample variances, each with alpha/3. Confidence 1 - alpha.
    """
    trials, moved = len(zero), one - zero
    spread = float(np.std(moved, ddof=1)) / math.sqrt(trials)
    shift = float(moved.mean()) - float(stats.t.isf(alpha / 3.0, trials - 1)) * spread
    variance = max(float(np.var(zero, ddof=1)), float(np.var(one, ddof=1)))
    wide = variance * (trials - 1) / float(stats.chi2.ppf(alpha / 3.0, trials - 1))
    return max(0.0, shift / math.sqrt(wide))
