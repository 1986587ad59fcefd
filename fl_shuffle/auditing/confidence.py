"""From counts and samples to lower bounds on epsilon that hold at a stated confidence.

A mechanism that is (eps, delta)-DP obeys P1(S) <= e^eps P0(S) + delta for every event S and both
orders of the two datasets, so an event that is seen more often on one side than this allows bounds
epsilon from below. All bounds are one-sided and exact (Clopper and Pearson 1934; Student and
chi-square laws), nothing is asymptotic. Epsilons are in nats, relation replace-one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import betainccinv, betaincinv

from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.errors import InvalidValueError, require_integer, require_open_unit

Vector = NDArray[np.float64]

SEARCH_STEPS = 28
"""Halvings of the interval: an epsilon is found to 2e-7."""
LARGEST_EPSILON = 40.0
"""No number of reports that can be drawn proves more."""
ENGINE_ERROR = 1e-3
"""Relative width of the engine's bracket; its lower end is used."""


def proportion_lower(hits: int, trials: int, alpha: float) -> float:
    """The largest p that is below the true probability except with chance `alpha`."""
    _check_counts(hits, trials, alpha)
    return 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, alpha))


def proportion_upper(hits: int, trials: int, alpha: float) -> float:
    """The smallest p that is above the true probability except with chance `alpha`."""
    _check_counts(hits, trials, alpha)
    return 1.0 if hits == trials else float(betainccinv(hits + 1, trials - hits, alpha))


def _check_counts(hits: int, trials: int, alpha: float) -> None:
    require_integer("trials", trials, minimum=1)
    require_integer("hits", hits, minimum=0, maximum=trials)
    require_open_unit("alpha", alpha)


def event_epsilon(
    hits_one: int, trials_one: int, hits_zero: int, trials_zero: int, delta: float, alpha: float
) -> float:
    """Epsilon >= ln((P1(S) - delta)/P0(S)), from how often S was seen on each side.

    Holds with confidence 1 - alpha: each of the two probabilities may miss with alpha/2. Zero if
    the counts prove nothing.
    """
    gain = proportion_lower(hits_one, trials_one, alpha / 2.0) - delta
    base = proportion_upper(hits_zero, trials_zero, alpha / 2.0)
    return math.log(gain / base) if gain > base else 0.0


def ceiling_epsilon(trials: int, delta: float, alpha: float) -> float:
    """The largest epsilon that `trials` plays on each side could ever prove: a perfect attack."""
    return event_epsilon(trials, trials, 0, trials, delta, alpha)


def game_epsilon(
    scores_zero: Vector, scores_one: Vector, delta: float, alpha: float
) -> tuple[float, float, int]:
    """The event "score beyond t" as an attack: (epsilon, threshold, plays per side it rests on).

    t and the direction (above t speaks for dataset one, or below t for dataset zero) are chosen on
    the first half of the plays; the bound is computed on the second, independent half.
    """
    half = min(len(scores_zero), len(scores_one)) // 2
    if half < 1:
        raise InvalidValueError("trials", half, "needs at least two plays on each side")
    train = scores_zero[:half], scores_one[:half]
    held = scores_zero[half : 2 * half], scores_one[half : 2 * half]
    candidates = np.unique(np.quantile(np.concatenate(train), _levels(half)))
    above = [_above(scores, candidates) for scores in train]
    best, choice = -math.inf, (float(candidates[0]), True)
    for index, threshold in enumerate(candidates.tolist()):
        zero, one = int(above[0][index]), int(above[1][index])
        for upper in (True, False):
            merit = _event(zero, one, half, upper, delta, alpha)
            if merit == 0.0:
                # Where nothing is proven yet, the largest gap is the most promising event.
                merit = (one - zero if upper else zero - one) / half - 2.0
            if merit > best:
                best, choice = merit, (threshold, upper)
    counts = [int((scores > choice[0]).sum()) for scores in held]
    return _event(counts[0], counts[1], half, choice[1], delta, alpha), choice[0], half


def _levels(half: int) -> Vector:
    """Quantiles worth trying: dense in the middle and far into both tails."""
    tail = np.geomspace(max(1.0 / half, 1e-6), 0.5, 24)
    return np.unique(np.concatenate([tail, 1.0 - tail]))


def _event(
    above_zero: int, above_one: int, plays: int, upper: bool, delta: float, alpha: float
) -> float:
    """Epsilon from the event "above" (for dataset one), or "not above" (for dataset zero)."""
    if upper:
        return event_epsilon(above_one, plays, above_zero, plays, delta, alpha)
    return event_epsilon(plays - above_zero, plays, plays - above_one, plays, delta, alpha)


@dataclass(frozen=True)
class Dichotomy:
    """Two laws on a few outcomes: `zero` and `one` [k], by decreasing ratio one/zero.

    Built from confidence bounds, it is *less* informative than the two true laws of one report:
    the true ones can be turned into these by a randomized map of the report (Blackwell's order, in
    which one testing problem dominates another if its power is nowhere smaller).
    """

    zero: Vector
    one: Vector

    @classmethod
    def from_samples(cls, zero: Vector, one: Vector, thresholds: Vector, alpha: float) -> Dichotomy:
        """From samples of one report's score under each dataset; thresholds fixed beforehand.

        For every t, P0(score > t) is bounded from above and P1(score > t) from below, all of them
        together with confidence 1 - alpha. The concave hull of these points, (0, 0) and (1, 1) lies
        below the true power curve.
        """
        counts = [_above(sample, thresholds) for sample in (zero, one)]
        return cls.from_counts(counts[0], len(zero), counts[1], len(one), alpha)

    @classmethod
    def from_counts(
        cls,
        above_zero: NDArray[np.int64],
        trials_zero: int,
        above_one: NDArray[np.int64],
        trials_one: int,
        alpha: float,
    ) -> Dichotomy:
        """As `from_samples`, from the numbers of scores above each threshold."""
        share = alpha / (2.0 * len(above_zero))
        points = {(0.0, 0.0), (1.0, 1.0)}
        for lower_hits, upper_hits in zip(above_one.tolist(), above_zero.tolist(), strict=True):
            points.add(
                (
                    proportion_upper(int(upper_hits), trials_zero, share),
                    proportion_lower(int(lower_hits), trials_one, share),
                )
            )
        hull = _concave_hull(sorted(points))
        return cls(np.diff([x for x, _ in hull]), np.diff([y for _, y in hull]))

    def delta(self, epsilon: float, n: int) -> float:
        """A lower bound on delta(epsilon) of n shuffled reports, one of which tells the datasets
        apart and n - 1 of which follow `zero`; the larger of the two directions.

        The exact expression for equal others (Su, Cheng, Wang 2025, Theorem 5), rounded down.
        """
        # The hull's first outcome may have no mass under `zero` only if P0 = 0 was certain, which
        # no finite sample shows: every upper confidence bound is positive.
        ratio = self.one / self.zero
        scale = math.exp(epsilon)
        found = 0.0
        for values in (ratio - scale, 1.0 - scale * ratio):
            law = AtomicLaw.of(values, self.zero / math.fsum(self.zero.tolist()))
            if law.upper <= 0.0:
                continue
            if n == 1:
                found = max(found, float(law.stop_loss(np.zeros(1))[0]))
            else:
                bound = amplified_delta(law, [(1.0, n - 1)], relative_error=ENGINE_ERROR)
                found = max(found, bound.lower)
        return found

    def refutes(self, epsilon: float, delta: float, n: int, *, error: float = 0.0) -> bool:
        """Whether n such reports cannot be (epsilon, delta)-DP: delta(epsilon) exceeds
        delta + (1 + e^epsilon) error.

        `error` bounds the total variation between the batch the formula describes and the real one
        (reports taken for the wrong class).
        """
        if epsilon > LARGEST_EPSILON:
            return False
        slack = delta + (1.0 + math.exp(epsilon)) * error
        return slack < 1.0 and self.delta(epsilon, n) > slack

    def epsilon(self, delta: float, n: int, *, error: float = 0.0) -> float:
        """The largest epsilon found that these reports refute at `delta`; 0 if none."""
        if not self.refutes(0.0, delta, n, error=error):
            return 0.0
        low, high = 0.0, LARGEST_EPSILON
        for _ in range(SEARCH_STEPS):
            middle = 0.5 * (low + high)
            refuted = self.refutes(middle, delta, n, error=error)
            low, high = (middle, high) if refuted else (low, middle)
        return low


def _above(sample: Vector, thresholds: Vector) -> NDArray[np.int64]:
    ordered = np.sort(sample)
    found = len(sample) - np.searchsorted(ordered, thresholds, side="right")
    return np.asarray(found, dtype=np.int64)


def _concave_hull(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The upper concave hull from (0, 0) to (1, 1) of points sorted by their first coordinate."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while hull and hull[-1][0] == x and hull[-1][1] <= y and len(hull) > 1:
            hull.pop()
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], (x, y)):
            hull.pop()
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    return hull


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def mu_lower(zero: Vector, one: Vector, alpha: float) -> float:
    """A lower bound on mu = (mean_1 - mean_0)/sd of a statistic that is Gaussian on both sides.

    `zero` and `one` are paired plays (the same noise, the two datasets). The mean difference is
    bounded by Student's t on the pairs, the standard deviation by the chi-square law of the larger
    of the two sample variances, each with alpha/3. Confidence 1 - alpha.
    """
    trials = len(zero)
    require_integer("trials", trials, minimum=3)
    moved = one - zero
    spread = float(np.std(moved, ddof=1)) / math.sqrt(trials)
    shift = float(moved.mean()) - float(stats.t.isf(alpha / 3.0, trials - 1)) * spread
    variance = max(float(np.var(zero, ddof=1)), float(np.var(one, ddof=1)))
    wide = variance * (trials - 1) / float(stats.chi2.ppf(alpha / 3.0, trials - 1))
    return max(0.0, shift / math.sqrt(wide))


def smallest_detectable_mu(claimed: float, trials: int, alpha: float, power: float) -> float:
    """The smallest true mu for which `mu_lower` exceeds `claimed` with probability `power`.

    For pairs whose difference is constant, so that only the standard deviation is estimated.
    """
    high = float(stats.chi2.ppf(power, trials - 1))
    low = float(stats.chi2.ppf(alpha / 3.0, trials - 1))
    return claimed * math.sqrt(high / low)


def mu_epsilon(mu: float, delta: float) -> float:
    """Epsilon at `delta` of a Gaussian pair at distance `mu`."""
    return gaussian_epsilon(delta, mu)
