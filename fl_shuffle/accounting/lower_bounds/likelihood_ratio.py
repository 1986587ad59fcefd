"""What a run certainly loses: an attack on all its rounds at once, its error rates computed.

The attacker knows the others' means and the client's two candidates; the data sets, and the cells
into which a report falls, are those of `vector_data_sets`. He adds up a score of the cell over all
reports of all rounds,

    f = log( (sum_g n_g R_g + p_1) / (sum_g n_g R_g + p_0) ),   n_g others with distribution R_g,

the likelihood ratio of a batch to first order (exact without others), and says "a_1" if the sum
exceeds a threshold. In a single round of Laplace reports he may add up (p_1 - e^eps p_0)/R instead,
R the mean of the others' distributions: where these are equal, the sum is positive exactly where
the batch is more than e^eps times as likely under p_1 (docs/research/proofs, section 8). The test
is randomized by a little Gaussian noise: a choice of the attacker, as the cells are, so the error
rates are exactly those of an attack. They come from the Fourier series of the sum modulo a period,
again the attacker's choice, and their numerical error is subtracted.
With alpha, beta the errors, any guarantee has beta >= 1 - delta - e^eps alpha, hence

    eps >= log( (P_1(sum > x) - delta) / P_0(sum > x) )   for every threshold x.

More others only hide better: an attacker can add their reports himself. A number for n others
therefore holds for rounds with fewer.

The series is right to about 1e-12, so it proves no epsilon above ln(1e12), about 27. Where the two
hypotheses lie far apart, P_0(sum > x) is bounded in logarithms instead, by Chernoff's inequality

    ln P_0(sum > x) <= ln E_0 e^(theta sum) - theta x    for every theta >= 0,

and only P_1, which is not small, comes from the series. This test uses the sum itself, so what lies
a period below the threshold is subtracted from P_1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import ComplexArray, FloatArray
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.lower_bounds.vector_data_sets import (
    AttackedBatch,
    DataSet,
    data_sets,
    population_batch,
)
from fl_shuffle.accounting.numerics.fourier import FOURIER_CELLS_AT_ONCE
from fl_shuffle.accounting.numerics.tilted_moments import TINY
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_OFF, ROUND_UP, UNIT
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.errors import require_integer, require_open_unit, require_real

ATTACK_NEARLY_BEST = 0.8
"""Data sets whose signal is at least this share of the best one's are all evaluated."""
ATTACK_PASSES, ATTACK_LEAST_GAIN = 12, 1.002
"""In a single round an epsilon is found again, with the score that suits the last one found, up to
the first of these times, as long as it grows by the second factor."""
ATTACK_OUTWEIGHED = 6.0
"""Deviations of what speaks for p_1; any number is an attack."""
ATTACK_LARGEST_SCORE = 50.0
"""Scores are cut here: a single report that says more decides alone."""
ATTACK_SMOOTHING = 0.03
"""Standard deviation of the test's own noise, at least this share of the sum's, at most twice."""
ATTACK_PERIOD_SDS = 24.0
"""Period of the grid, in standard deviations of the sum."""
ATTACK_TAIL_SDS = 8.0
"""Thresholds are tried up to this many standard deviations of the sum ..."""
ATTACK_RARE = 1e-10
"""... and, where that is further out, up to the score of the furthest cell in which the client's
report lies more often than this ..."""
ATTACK_FURTHEST_SDS = 200.0
"""... or up to this number of them."""
ATTACK_GAUSS_REACH = 8.5
"""Beyond this many deviations the transform of the test's noise is below 1e-15."""
ATTACK_CUT_OFF = 1e-15
"""What lies beyond the transform's reach, added to the error."""
ATTACK_NEGLIGIBLE = 1e-18
"""Frequencies that weigh less than this are left out and counted as error."""
ATTACK_THRESHOLDS = 400
"""Thresholds at which the attack's error rates are read."""
ATTACK_FAR = 3.0
"""Hypotheses at least this many standard deviations apart are also told apart in logarithms."""
ATTACK_RATES = np.geomspace(1e-2, 1e2, 160)
"""Chernoff's theta that are tried, in units of the signal's own one, (m_1 - m_0) / variance."""
ATTACK_LARGEST_EXPONENT = 500.0
"""Theta times a score stays below: e^709 overflows."""
ATTACK_MANY_CELLS = 1000
"""Where there are more cells, those of almost the same score are merged ..."""
ATTACK_SCORE_WIDTH = 0.02
"""... within this many standard deviations of the score of the client's report."""


def attack_epsilon(kind: ShuffledRound, rounds: int, delta: float, dimension: int = 1) -> float:
    """Return a lower bound on epsilon at `delta` of `rounds` rounds of `kind`; zero if the attack
    fails.

    Relation: replace-one, the worst data set of those tried, not of all. Rounded down. What holds
    in one dimension holds in all.
    """
    require_integer("rounds", rounds, minimum=1)
    return _best(AttackedBatch.of(kind, dimension), rounds, delta=require_open_unit("delta", delta))


def population_epsilon(
    classes: ClassTable,
    counts: NDArray[np.int64],
    index: int,
    rounds: int,
    delta: float,
    dimension: int = 1,
) -> float:
    """Return the same for a client of class `index` among `counts[j]` of every class j of a
    population."""
    return _best(population_batch(classes, counts, index, dimension), rounds, delta=delta)


def attack_delta(kind: ShuffledRound, rounds: int, epsilon: float, dimension: int = 1) -> float:
    """Return a lower bound on delta at `epsilon` (nats) of `rounds` rounds of `kind`. Rounded
    down."""
    require_integer("rounds", rounds, minimum=1)
    budget = require_real("epsilon", epsilon, minimum=0.0, maximum=500.0)
    return _best(AttackedBatch.of(kind, dimension), rounds, epsilon=budget)


def _best(batch: AttackedBatch | None, rounds: int, **at: float) -> float:
    def of(scores: Scores) -> float:
        return scores.epsilon(rounds, **at) if "delta" in at else scores.delta(rounds, **at)

    sets = [] if batch is None else data_sets(batch)
    found = [Scores(data) for data in sets]
    signals = [scores.signal(rounds) for scores in found]
    promising = ATTACK_NEARLY_BEST * max(signals, default=0.0)
    tried = [(of(each), k) for k, each in enumerate(found) if signals[k] >= promising]
    best = max(tried, default=(0.0, 0))[0]
    # Of Gaussian reports the first-order score reaches as much, within 0.1% of epsilon.
    if rounds > 1 or batch is None or batch.noise != "laplace":
        return best
    # Which order and data set is the best one at this epsilon need not be the best by signal.
    for data in (each for each in sets if each.counts.size):
        for _ in range(1 if "epsilon" in at else ATTACK_PASSES):
            epsilon = at.get("epsilon", best)
            # Scores beyond this would overflow.
            if epsilon >= ATTACK_LARGEST_EXPONENT:
                break
            known, best = best, max(best, of(Scores(data, math.exp(epsilon))))
            if best <= known * ATTACK_LEAST_GAIN:
                break
    return best


class Scores:
    """The attack on one data set: a score of each cell, and its distributions.

    Distributions are rows of probabilities of the cells: the others' groups, then the client's two.
    With `a` = e^eps the score is the one that is exact for equal others in a single round.
    """

    def __init__(self, data: DataSet, a: float | None = None) -> None:
        laws = np.concatenate([data.others, [data.first, data.second]])
        laws = laws / np.array([[math.fsum(law.tolist())] for law in laws])
        counts = data.counts
        self.score, laws = _scored(counts, laws, a)
        if laws.shape[1] > ATTACK_MANY_CELLS:
            # Cells that say nearly the same are one cell: the attacker's choice.
            mean, spread = laws[-2] @ self.score, laws[-2] @ self.score**2
            width = ATTACK_SCORE_WIDTH * math.sqrt(max(spread - mean**2, TINY))
            _, place = np.unique(np.floor(self.score / width), return_inverse=True)
            merged = [np.bincount(place.reshape(-1), law) for law in laws]
            self.score, laws = _scored(counts, np.stack(merged), a)
        if counts.size:
            self.score -= float(counts @ (laws[:-2] @ self.score)) / float(counts.sum())
        self.laws = laws
        self.reports = float(counts.sum()) + 1.0
        self._weights = np.stack([np.append(counts, own) for own in ((1.0, 0.0), (0.0, 1.0))])
        self._left_out = data.left_out
        self._cell_error = data.cell_error
        means = laws @ self.score
        spread = np.maximum(laws @ self.score**2 - means**2, 0.0)
        self._largest = float(self.score[laws[-1] > ATTACK_RARE].max())
        self._one_round = (self._weights @ means, self._weights @ spread)

    def moments(self, rounds: int) -> tuple[FloatArray, FloatArray]:
        """Return means [2] and variances [2] of the attacker's sum under both hypotheses."""
        means, variances = self._one_round
        return rounds * means, rounds * variances

    def signal(self, rounds: int) -> float:
        """Return how many standard deviations the two hypotheses lie apart."""
        means, variances = self.moments(rounds)
        return float(means[1] - means[0]) / math.sqrt(max(*variances, TINY))

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return the largest certain epsilon over a range of thresholds."""
        at_least, log_at_most = self._rates(rounds)
        certain = at_least - delta
        good = certain > 0.0
        if not bool(good.any()):
            return 0.0
        return max(0.0, float(np.max(np.log(certain[good]) - log_at_most[good]))) * ROUND_DOWN

    def delta(self, rounds: int, epsilon: float) -> float:
        """Return the largest certain delta over a range of thresholds."""
        at_least, log_at_most = self._rates(rounds)
        # Relative round-off of the exponential and the product, on both terms. Above 1 nothing is
        # left, however far.
        found = at_least - np.exp(np.minimum(epsilon + log_at_most, 1.0)) * ROUND_UP
        return max(0.0, float(np.max(found, initial=0.0))) * ROUND_DOWN

    def _rates(self, rounds: int) -> tuple[FloatArray, FloatArray]:
        """Return P_1, not above the truth, and ln P_0, not below it, of what lies beyond
        thresholds."""
        near = self._near_rates(rounds)
        if self.signal(rounds) < ATTACK_FAR:
            return near
        far = self.far_rates(rounds)
        return np.append(near[0], far[0]), np.append(near[1], far[1])

    def far_rates(self, rounds: int) -> tuple[FloatArray, FloatArray]:
        """Return the same for thresholds around the second hypothesis, ln P_0 by Chernoff's
        bound."""
        means, variances = self.moments(rounds)
        sd, noise = self._widths(variances)
        if not 0.0 < sd < math.inf:
            return np.zeros(0), np.zeros(0)
        tail = min(self._largest, ATTACK_FURTHEST_SDS * sd)
        period = 2.0 * (tail + ATTACK_PERIOD_SDS * sd)
        thresholds = np.linspace(-ATTACK_TAIL_SDS * sd, ATTACK_TAIL_SDS * sd, ATTACK_THRESHOLDS)
        if tail > thresholds[-1]:
            thresholds = np.append(thresholds, np.linspace(thresholds[-1], tail, ATTACK_THRESHOLDS))
        at = thresholds + float(means[1])
        hit, error = self.transforms(noise, period).above(thresholds, float(means[1]), rounds, 1)
        rates = ATTACK_RATES * max(float(means[1] - means[0]), sd) / sd**2
        rates = np.minimum(rates, ATTACK_LARGEST_EXPONENT / float(np.abs(self.score).max()))
        upper = self._log_moments(rates, rounds, noise, 0)
        lower = self._log_moments(-rates, rounds, noise, 1)
        # The half period above a threshold is that part of the line, or one a period below it.
        wrapped = np.min(lower + np.multiply.outer(at - 0.5 * period, rates), axis=1)
        log_at_most = np.min(upper - np.multiply.outer(at, rates), axis=1)
        # An exponent's round-off is relative to its largest part.
        log_at_most += 64.0 * UNIT * (np.max(np.abs(upper)) + np.max(np.abs(at)) * rates[-1])
        unseen = rounds * self._left_out
        if unseen > 0.0:
            log_at_most = np.logaddexp(log_at_most, math.log(unseen))
        at_least = hit - error - np.exp(np.minimum(wrapped, 0.0)) * ROUND_UP - self._common(rounds)
        return at_least, np.minimum(log_at_most, 0.0)

    def _log_moments(self, rates: FloatArray, rounds: int, noise: float, index: int) -> FloatArray:
        """Return ln E e^(rate sum) at each rate, under one hypothesis; rounded up."""
        found = 0.5 * (rates * noise) ** 2
        for at, rate in enumerate(rates.tolist()):
            gain = np.expm1(rate * self.score)
            # A cell's probability is right to a share, and the sum to a unit for each cell.
            share = self._cell_error + (self.score.size + 16.0) * UNIT
            most = self.laws @ gain + share * (self.laws @ np.abs(gain))
            found[at] += rounds * float(self._weights[index] @ np.log1p(most))
        return found + ROUND_OFF * np.abs(found)

    def _common(self, rounds: int) -> float:
        """Return what the series' cut-off and the errors of the cells can change in a
        probability."""
        # Pinsker's inequality for the error of every report's distribution.
        cells = math.sqrt(self.reports * rounds) * self._cell_error
        return cells + ATTACK_CUT_OFF + rounds * self._left_out

    @staticmethod
    def _widths(variances: FloatArray) -> tuple[float, float]:
        """Return the sum's standard deviation, and that of the test's own noise."""
        sd = math.sqrt(max(variances))
        if not 0.0 < sd < math.inf:
            return sd, 0.0
        return sd, ATTACK_SMOOTHING * 2.0 ** math.ceil(math.log2(sd))

    def _near_rates(self, rounds: int) -> tuple[FloatArray, FloatArray]:
        """Return the same by the series for both hypotheses, which ends at errors of about
        1e-12."""
        means, variances = self.moments(rounds)
        sd, noise = self._widths(variances)
        gap = float(means[1] - means[0])
        if not 0.0 < sd < math.inf or gap <= 0.0:
            return np.zeros(0), np.zeros(0)
        # One report of a large ratio may say more than all others together: its score lies far out.
        tail = min(self._largest, ATTACK_FURTHEST_SDS * sd)
        apart = max(ATTACK_PERIOD_SDS * sd, 2.0 * (tail + ATTACK_TAIL_SDS * sd))
        period = 2.0 ** math.ceil(math.log2(2.0 * gap + apart))
        turns = math.floor((gap - apart) / (8.0 * apart))
        if turns > 0:
            # Sums that far apart are told apart as well modulo a period that brings them nearer.
            period, gap = (gap - apart) / (2.0 * turns), apart
        transforms = self.transforms(noise, period)
        furthest = 0.5 * gap + ATTACK_TAIL_SDS * sd
        thresholds = np.linspace(-0.5 * gap - sd, furthest, ATTACK_THRESHOLDS)
        if tail > furthest:
            thresholds = np.append(thresholds, np.linspace(furthest, tail, ATTACK_THRESHOLDS))
        shift = 0.5 * float(means[0] + means[1])
        common = self._common(rounds)
        (low, low_error), (high, high_error) = (
            transforms.above(thresholds, shift, rounds, index) for index in (1, 0)
        )
        return low - low_error - common, np.log(np.maximum(high, 0.0) + high_error + common)

    def transforms(self, noise: float, period: float) -> _Transforms:
        """Return characteristic functions at odd multiples of 2 pi / period; `noise`: the test's
        own."""
        last = math.ceil(ATTACK_GAUSS_REACH / noise * period / (2.0 * math.pi))
        odd = np.arange(1, last + 1, 2, dtype=np.float64)
        frequencies = 2.0 * math.pi / period * odd
        weights = np.exp(-0.5 * (noise * frequencies) ** 2) / (math.pi * odd)
        # Many frequencies, cells and distributions would fill the memory together.
        at_once = max(1, FOURIER_CELLS_AT_ONCE // max(self.laws.shape))
        pieces = [
            _some_transforms(part, self.score, self.laws, self._weights)
            for part in np.split(frequencies, range(at_once, odd.size, at_once))
        ]
        whole = (np.concatenate(piece, axis=1) for piece in zip(*pieces, strict=True))
        return _Transforms(frequencies, weights, *whole)


def _scored(
    counts: FloatArray, laws: FloatArray, a: float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the score of every cell that a report can fall into, and the distributions on these
    cells."""
    below = counts @ laws[:-2] + laws[-2]
    kept = (below > 0.0) | (laws[-1] > 0.0)
    laws, below = laws[:, kept], below[kept]
    if a is not None:
        # (p_1 - a p_0)/R; where no other report falls, far out on the side that it speaks for.
        others = counts @ laws[:-2] / counts.sum()
        gain = laws[-1] - a * laws[-2]
        seen = others > 0.0
        ratio = gain / np.where(seen, others, 1.0)
        most = float(np.abs(ratio[seen]).max(initial=1.0))
        score = np.where(seen, ratio, np.sign(gain) * most)
        # A report that speaks against p_1 by more than all others can outweigh is as good as one
        # that does by this: the test's own noise, in deviations of the sum, is then smaller.
        spread = math.sqrt(float(counts.sum() * (others @ np.maximum(score, 0.0) ** 2)))
        return np.maximum(score, -ATTACK_OUTWEIGHED * spread), laws
    change = (laws[-1] - laws[-2]) / np.where(below > 0.0, below, 1.0)
    with np.errstate(divide="ignore"):
        score = np.where(below > 0.0, np.log1p(change), ATTACK_LARGEST_SCORE)
    return np.clip(score, -ATTACK_LARGEST_SCORE, ATTACK_LARGEST_SCORE), laws


@dataclass(frozen=True)
class _Transforms:
    """One round's characteristic function under both hypotheses [2, frequencies].

    `log`, the logarithm; `log_most`, what the logarithm of its modulus cannot exceed; `size`, the
    sum of the terms' absolute logarithms; `relative_error`, before round-off of that sum.
    """

    frequencies: FloatArray
    weights: FloatArray
    log: ComplexArray
    log_most: FloatArray
    size: FloatArray
    relative_error: FloatArray

    def above(
        self, thresholds: FloatArray, shift: float, rounds: int, index: int
    ) -> tuple[FloatArray, float]:
        """Return the probability of the half period above each threshold (from `shift`), and its
        error."""
        most = self.weights * np.exp(rounds * self.log_most[index])
        kept = most > ATTACK_NEGLIGIBLE
        exponent = rounds * self.log[index, kept]
        frequencies, most = self.frequencies[kept], most[kept]
        size = self.weights[kept] * np.exp(exponent.real)
        drift = rounds * self.relative_error[index, kept]
        furthest = abs(shift) + float(np.abs(thresholds).max())
        drift += 8.0 * UNIT * (
            rounds * self.size[index, kept] + frequencies * furthest + size.size
        )  # fmt: skip
        wrong = np.minimum(size * np.expm1(np.minimum(drift, 1.0)), size + most)
        wrong = np.where(drift < 1.0, wrong, size + most)
        error = (
            2.0 * float(np.sum(wrong)) + 2.0 * ATTACK_NEGLIGIBLE * self.weights.size + 8.0 * UNIT
        )
        phase = exponent.imag - frequencies * shift
        turned = phase[None, :] - np.multiply.outer(thresholds, frequencies)
        return 0.5 + 2.0 * (np.sin(turned) @ size), error


def _some_transforms(
    frequencies: FloatArray, score: FloatArray, laws: FloatArray, counts: FloatArray
) -> tuple[ComplexArray, FloatArray, FloatArray, FloatArray]:
    """Return the fields `log`, `log_most`, `size` and `relative_error` of `_Transforms`."""
    half = np.multiply.outer(0.5 * frequencies, score)
    sine = np.sin(half)
    # E e^(i w score) - 1 without cancellation.
    excess = -2.0 * (sine * sine) @ laws.T + 2.0j * ((sine * np.cos(half)) @ laws.T)
    error = np.multiply.outer(frequencies, (score.size + 16.0) * UNIT * (laws @ np.abs(score)))
    modulus = np.abs(1.0 + excess)
    # log|1 + z| = log1p(2 Re z + |z|^2) / 2 keeps its digits near zero.
    near = np.maximum(2.0 * excess.real + np.abs(excess) ** 2, -0.9)
    real = np.where(modulus > 0.5, 0.5 * np.log1p(near), np.log(np.maximum(modulus, TINY)))
    log = real + 1j * np.angle(1.0 + excess)
    most = np.minimum(np.maximum(real, np.log(np.maximum(modulus + error, TINY))), 0.0)
    return (
        counts @ log.T,
        counts @ most.T,
        counts @ np.abs(log).T,
        counts @ (error / np.maximum(modulus, TINY)).T,
    )
