"""Sums of Laplace reports on grids: exact laws in one and two coordinates, subsets, grids."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import binom

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.sum_release import gaussian, laplace
from fl_shuffle.accounting.bounds.sum_release.laplace import laplace_sum_mu
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.sum_account import SumAccount

Vector = NDArray[np.float64]


def cdf(x: Vector) -> Vector:
    """Of the standard Laplace law."""
    return np.where(x < 0.0, 0.5 * np.exp(-np.abs(x)), 1.0 - 0.5 * np.exp(-np.abs(x)))


def rounded(mean: float, grid: float, half: int) -> Vector:
    """Probabilities of Laplace noise of scale 1 around `mean`, rounded; index -half .. half."""
    edges = (np.arange(-half, half + 2) - 0.5) * grid - mean
    return np.diff(cdf(edges))


def others(count: int, grid: float, half: int) -> Vector:
    """The exact law of `count` such reports with different means near zero, on the same indices."""
    size = 1 << math.ceil(math.log2(4 * half))
    means = np.linspace(-0.4, 0.4, 5)
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    for position, mean in enumerate(means.tolist()):
        law = np.pad(rounded(mean, grid, half), (0, size - 2 * half - 1))
        transform *= np.fft.rfft(np.roll(law, -half)) ** ((count + 4 - position) // 5)
    return np.maximum(np.roll(np.fft.irfft(transform, size), half)[: 2 * half + 1], 0.0)


def excess(p: Vector, q: Vector, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize("count", [100, 400])
def test_exact_law_in_one_coordinate(count: int) -> None:
    """Below the bound; a claim with mu divided by 1.7 (100 reports) or 1.3 (400) is exceeded."""
    grid, shift = 2.0**-6, 1.0
    half = round(12 * math.sqrt(2 * count) / grid)
    rest = others(count - 1, grid, half)
    one = np.array([1.0])
    found = laplace_sum_mu(one, one * shift, one * grid, np.array([count]), dimension=1)
    curve = SumCurve(float(found[0]), laplace.SUM_RARE)
    refuted = {100: 1.7, 400: 1.3}[count]
    for start in (-0.5, 0.001):
        laws = [
            fftconvolve(rest, rounded(mean, grid, round(45 / grid)), "same")
            for mean in (start, start + shift)
        ]
        for p, q in itertools.permutations(laws):
            for epsilon in (0.0, 0.05, 0.2):
                exact = excess(p, q, epsilon)
                assert exact <= curve.profile(epsilon) + 1e-11
                less = gaussian_delta(epsilon, curve.mu / refuted)
                assert less < 1e-9 or exact > less + 1e-11


def test_moves_over_two_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a move is split, with steps of 1/8 of the noise, exactly; c = 1 and its surcharge."""
    monkeypatch.setattr(laplace, "SUM_SMOOTHING", 1.0)
    grid, count, shift = 0.125, 150, 1.5
    half = round(9 * math.sqrt(2 * count) / grid)
    rest = others(count - 1, grid, half)
    one = np.array([1.0])
    found = laplace_sum_mu(one, one * shift, one * grid, np.array([count]), dimension=2)
    h = 2 * count * 2.0001 * math.exp(-2.0 * math.pi**2)
    before = fftconvolve(rest, rounded(0.03, grid, 400), "same")
    for share in (1.0, 0.9, 0.7, 0.5):
        ends = [
            fftconvolve(rest, rounded(0.03 + part * shift, grid, 400), "same")
            for part in (share, 1.0 - share)
        ]
        p, q = np.multiply.outer(before, before), np.multiply.outer(*ends)
        for epsilon in (0.0, 0.1, 0.3):
            bound = math.exp(h) * gaussian_delta(epsilon - 2 * h, float(found[0])) + 1e-12
            for first, second in itertools.permutations((p, q)):
                assert excess(first, second, epsilon) <= bound + 1e-11


def test_the_worst_honest_subset_is_that_of_the_smallest_noise() -> None:
    """On one grid: the bound for h of all is the bound for the h smallest alone."""
    scale = np.array([1.1, 1.3, 1.7])
    grid, shift, counts = np.full(3, 2.0**-15), np.full(3, 0.5), np.array([100, 200, 50])
    for honest in (150, 300, 330):
        fewer = np.minimum(counts, np.maximum(0, honest - np.array([0, 100, 300])))
        found = laplace_sum_mu(scale, shift, grid, counts, dimension=50, honest=honest)
        alone = laplace_sum_mu(scale, shift, grid, fewer, dimension=50)
        some = fewer > 0
        np.testing.assert_allclose(found[some], alone[some], rtol=1e-12)


def test_coarse_grids_count_where_fine_ones_bridge_them() -> None:
    scale, grid = np.array([1.0, 50.0]), np.array([2.0**-16, 2.0**-10])
    shift, dimension = np.array([0.5, 0.5]), 600
    alone = laplace_sum_mu(scale, shift, grid, np.array([1, 1000]), dimension=dimension)
    assert alone[0] == math.inf and alone[1] < 0.01
    some = laplace_sum_mu(scale, shift, grid, np.array([20, 1000]), dimension=dimension)
    assert some[0] < 0.001
    # Coarser than the fine noise is wide: nothing but its own kind counts.
    far = np.array([2.0**-16, 4.0])
    kind = laplace_sum_mu(scale, shift, far, np.array([1000, 1000]), dimension=dimension)
    only = laplace_sum_mu(scale, shift, far, np.array([1000, 0]), dimension=dimension)
    assert kind[0] == only[0]


@pytest.mark.parametrize(("small", "dimension"), [(1e-8, 600), (1e-3, 5_000), (0.3, 10**9)])
def test_coordinates_with_little_own_noise(small: float, dimension: int) -> None:
    """More of them than the code allows for are as rare as it says: the binomial law itself."""
    bad = laplace._bad_coordinates(small, dimension)
    assert binom.sf(bad, dimension, small) <= 0.25 * laplace.SUM_RARE
    assert bad <= 10.0 * small * dimension + 40


def test_account_of_laplace_reports() -> None:
    """Squares add up, each sum pays its rare cases; too few reports: all is local."""
    classes = [ClientClass("laplace", 4.0, 1.0, 2.0, 0.5, 0.0, 1)]
    account = SumAccount.start(
        classes, np.zeros(1000, np.int64), schedule="aggregate", dimension=10
    )
    for _ in range(30):
        account = account.after(np.arange(1000) < 900)
    one = np.array([4.0]), np.array([2.0]), np.array([2.0**-14]), np.array([900])
    mu = float(laplace_sum_mu(*one, dimension=10)[0]) * math.sqrt(30)
    expected = gaussian.sum_epsilon(1e-6 - 30 * laplace.SUM_RARE, mu)
    assert account.epsilons(1e-6)[0] == pytest.approx(expected, rel=1e-9)
    assert account.curve(0).profile(expected) <= 1e-6 * (1 + 1e-8)
    few = account.after(np.arange(1000) < 3)
    assert few.epsilons(1e-6)[0] == pytest.approx(laplace_epsilon(1e-6, 0.5, 31), rel=1e-9)
    assert few.epsilons(1e-6)[5] == pytest.approx(expected, rel=1e-9)
