"""Sums of Gaussian reports on grids: exact laws, worst honest subsets, grids that do not mix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from fl_shuffle.accounting.bounds.sum_release import gaussian
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta

Vector = NDArray[np.float64]
Laws = tuple[tuple[int, Vector], tuple[int, Vector]]


def rounded_law(mean: float, scale: float, grid: float, finest: float) -> tuple[int, Vector]:
    """(first index, probabilities) of a Gaussian rounded to `grid`, on the lattice of `finest`."""
    first = math.floor((mean - 9.0 * scale) / grid) - 1
    last = math.ceil((mean + 9.0 * scale) / grid) + 1
    edges = (np.arange(first, last + 2) - 0.5) * grid
    # Upper tails to the right of the mean: differences of small numbers keep their digits.
    right = edges[:-1] > mean
    low, high = (edges[:-1] - mean) / scale, (edges[1:] - mean) / scale
    mass = np.where(right, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    ratio = round(grid / finest)
    spread = np.zeros((len(mass) - 1) * ratio + 1)
    spread[::ratio] = mass
    return first * ratio, spread


def law_of_sum(means: Vector, scales: Vector, grids: Vector) -> tuple[int, Vector]:
    """The exact law of the sum of independent rounded reports, on the finest grid."""
    finest = float(grids.min())
    first, law = 0, np.ones(1)
    for mean, scale, grid in zip(means, scales, grids, strict=True):
        start, one = rounded_law(float(mean), float(scale), float(grid), finest)
        first, law = first + start, np.convolve(law, one)
    return first, law


def divergence(one: tuple[int, Vector], other: tuple[int, Vector], epsilon: float) -> float:
    """The hockey-stick divergence of two laws on one lattice."""
    start = min(one[0], other[0])
    end = max(one[0] + len(one[1]), other[0] + len(other[1]))
    p, q = np.zeros(end - start), np.zeros(end - start)
    p[one[0] - start :][: len(one[1])] = one[1]
    q[other[0] - start :][: len(other[1])] = other[1]
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def cases(number: int, low: float, high: float) -> Iterator[tuple[Vector, Vector, Vector, float]]:
    """(means, scales, grids, the first mean's shift): 2 to 4 reports, scales in their own steps."""
    rng = np.random.default_rng(7)
    for _ in range(number):
        count = int(rng.integers(2, 5))
        grids = np.exp2(rng.integers(0, 2, count).astype(np.float64))
        scales = grids * rng.uniform(low, high, count)
        means = rng.uniform(-2.0, 2.0, count)
        yield means, scales, grids, float(rng.uniform(0.1, 1.0) * scales[0])


def both_ways(means: Vector, scales: Vector, grids: Vector, shift: float) -> list[Laws]:
    """The exact laws of the sum before and after the first mean moved, in both orders."""
    moved = means + shift * (np.arange(len(means)) == 0)
    laws = law_of_sum(means, scales, grids), law_of_sum(moved, scales, grids)
    return [laws, laws[::-1]]


@pytest.mark.parametrize(("smoothing", "low", "high"), [(0.25, 0.3, 0.9), (0.4, 0.5, 3.0)])
def test_exact_law_on_coarse_grids(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, low: float, high: float
) -> None:
    """Steps as long as the noise, a small c: the theorem with its surcharge, exactly.

    Steps longer than the noise also show what the theorem is for: without it, the formula fails.
    """
    monkeypatch.setattr(gaussian, "SUM_SMOOTHING", smoothing)
    lost = 2.0 * sum(math.exp(-2.0 * (math.pi * smoothing * k) ** 2) for k in (1, 2, 3))
    counted = naive = 0
    for means, scales, grids, shift in cases(150, low, high):
        alone = np.ones(len(means), dtype=np.int64)
        variance = float(gaussian.hiding_variance(scales, grids, alone)[0])
        counted += variance > scales[0] ** 2
        h = -len(means) * math.log1p(-lost)
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            bound = math.exp(h) * gaussian_delta(epsilon - 2.0 * h, shift / math.sqrt(variance))
            plain = gaussian_delta(epsilon, shift / math.sqrt(float(scales @ scales)))
            for p, q in both_ways(means, scales, grids, shift):
                exact = divergence(p, q, epsilon)
                assert exact <= bound + 1e-14
                naive += exact > 1.02 * plain + 1e-12
    assert counted > 10
    assert naive > 0 or low > 0.4


def test_exact_law_on_the_grids_in_use() -> None:
    """Scales of 64 steps and more: below the formula, which is within a tenth of mu."""
    caught = 0
    for means, scales, grids, shift in cases(12, 64.0, 128.0):
        alone = np.ones(len(means), dtype=np.int64)
        mu = float(gaussian.sum_mu(scales, np.full(len(means), shift), grids, alone)[0])
        for epsilon in (0.0, 0.2, 0.5):
            for p, q in both_ways(means, scales, grids, shift):
                exact = divergence(p, q, epsilon)
                assert exact <= gaussian.sum_profile(epsilon, mu) + 1e-14
                caught += exact > gaussian_delta(epsilon, 0.9 * mu) + 1e-14
    assert caught == 12 * 3 * 2


def test_a_coarse_report_does_not_hide_a_fine_one() -> None:
    """The sum modulo the coarse step is the fine report: only its own noise may count."""
    scales, grids = np.array([1.0, 1024.0]), np.array([2.0**-4, 64.0])
    means, alone = np.array([0.2, 3.0]), np.ones(2, dtype=np.int64)
    variance = gaussian.hiding_variance(scales, grids, alone)
    assert variance[0] == 1.0
    for epsilon in (0.0, 1.0):
        for p, q in both_ways(means, scales, grids, 1.0):
            exact = divergence(p, q, epsilon)
            assert exact <= gaussian_delta(epsilon, 1.0) + 1e-12
            assert exact > 0.9 * gaussian_delta(epsilon, 1.0)
    # Beside a fine report of enough noise the coarse one counts, and the other way round.
    enough = gaussian.hiding_variance(np.array([1024.0, 2048.0]), grids, alone)
    assert np.all(enough > 2048.0**2)


def _brute(values: Vector, counts: NDArray[np.int64], own: int, honest: int) -> float:
    clients = [k for k, count in enumerate(counts) for _ in range(int(count))]
    clients.remove(own)
    size = min(honest, len(clients) + 1) - 1
    sums = [float(values[list(c)].sum()) for c in itertools.combinations(clients, size)]
    return float(values[own]) + min(sums)


def test_the_worst_honest_subset() -> None:
    """Every subset that may be the honest one, tried."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        scales = rng.choice([0.5, 1.0, 1.5, 2.0, 3.0], 4, replace=False)
        counts = rng.integers(0, 3, 4)
        counts[rng.integers(4)] += 1
        for honest in range(1, int(counts.sum()) + 2):
            found = gaussian.hiding_variance(scales, np.full(4, 1e-9), counts, honest)
            ideal = gaussian.attacked_variance(scales, counts, honest)
            for own in np.flatnonzero(counts):
                worst = _brute(scales**2, counts, int(own), honest)
                assert worst * (1 - 1e-11) < found[own] <= worst
                assert worst <= ideal[own] < worst * (1 + 1e-11)
