"""Sums of Gaussian and Laplace reports on grids: exact laws, worst honest subsets, grids apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import binom

from fl_shuffle.accounting.add_remove import add_remove_epsilon, add_remove_of
from fl_shuffle.accounting.bounds.sum_release import gaussian, laplace
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta
from fl_shuffle.configuration.reading import parse_config
from tests.oracles import cells

Vector = NDArray[np.float64]
Curve = Callable[[float], float]


def divergence(p: Vector, q: Vector, epsilon: float) -> float:
    """The hockey-stick divergence of two laws on one lattice, in the worse order."""
    a = math.exp(epsilon)
    return float(max(np.maximum(x - a * y, 0.0).sum() for x, y in ((p, q), (q, p))))


# --- Gaussian reports ---------------------------------------------------------------------------


def law_of_sum(means: Vector, around: Vector, scales: Vector, grids: Vector) -> Vector:
    """The exact law of the sum of independent rounded reports, on the lattice of the finest grid;
    each report's own lattice reaches ten scales to both sides of `around`."""
    law = np.ones(1)
    for mean, centre, scale, grid in zip(means, around, scales, grids, strict=True):
        ratio = round(grid / grids.min())
        index = np.arange(round((centre - 10 * scale) / grid), round((centre + 10 * scale) / grid))
        spread = np.zeros(len(index) * ratio + 1)
        spread[::ratio] = cells([mean / scale], (index + 0.5) * grid / scale, "gaussian")
        law = np.convolve(law, spread)
    return law


def exact_curve(means: Vector, scales: Vector, grids: Vector, shift: float) -> Curve:
    """The exact divergence of the sum as the first mean moves by `shift`."""
    moved = means + shift * (np.arange(len(means)) == 0)
    laws = [law_of_sum(each, means, scales, grids) for each in (means, moved)]
    return lambda epsilon: divergence(*laws, epsilon)


def cases(number: int, low: float, high: float) -> Iterator[tuple[Vector, Vector, Vector, float]]:
    """(means, scales, grids, the first mean's shift): 2 to 4 reports, scales in their own steps."""
    rng = np.random.default_rng(7)
    for _ in range(number):
        count = int(rng.integers(2, 5))
        grids = np.exp2(rng.integers(0, 2, count).astype(np.float64))
        scales = grids * rng.uniform(low, high, count)
        means = rng.uniform(-2.0, 2.0, count)
        yield means, scales, grids, float(rng.uniform(0.1, 1.0) * scales[0])


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
        exact = exact_curve(means, scales, grids, shift)
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            bound = math.exp(h) * gaussian_delta(epsilon - 2.0 * h, shift / math.sqrt(variance))
            plain = gaussian_delta(epsilon, shift / math.sqrt(float(scales @ scales)))
            assert exact(epsilon) <= bound + 1e-14
            naive += exact(epsilon) > 1.02 * plain + 1e-12
    assert counted > 10
    assert naive > 0 or low > 0.4


def test_exact_law_on_the_grids_in_use() -> None:
    """Scales of 64 steps and more: below the formula, which is within a tenth of mu."""
    for means, scales, grids, shift in cases(12, 64.0, 128.0):
        alone = np.ones(len(means), dtype=np.int64)
        mu = float(gaussian.sum_mu(scales, np.full(len(means), shift), grids, alone)[0])
        exact = exact_curve(means, scales, grids, shift)
        for epsilon in (0.0, 0.2, 0.5):
            assert exact(epsilon) <= gaussian.sum_profile(epsilon, mu) + 1e-14
            assert exact(epsilon) > gaussian_delta(epsilon, 0.9 * mu) + 1e-14


def test_a_coarse_report_does_not_hide_a_fine_one() -> None:
    """The sum modulo the coarse step is the fine report: only its own noise may count."""
    scales, grids = np.array([1.0, 1024.0]), np.array([2.0**-4, 64.0])
    assert gaussian.hiding_variance(scales, grids, np.ones(2, dtype=np.int64))[0] == 1.0
    exact = exact_curve(np.array([0.2, 3.0]), scales, grids, 1.0)
    for epsilon in (0.0, 1.0):
        own = gaussian_delta(epsilon, 1.0)
        assert 0.9 * own < exact(epsilon) <= own + 1e-12
    # Beside a fine report of enough noise the coarse one counts, and the other way round.
    enough = gaussian.hiding_variance(np.array([1024.0, 2048.0]), grids, np.ones(2, dtype=np.int64))
    assert np.all(enough > 2048.0**2)


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
                others = np.repeat(scales, counts - (np.arange(4) == own)) ** 2
                subsets = itertools.combinations(others, min(honest - 1, len(others)))
                worst = scales[own] ** 2 + min(map(sum, subsets))
                assert worst * (1 - 1e-11) < found[own] <= worst * (1 + 1e-15)
                assert worst * (1 - 1e-15) <= ideal[own] < worst * (1 + 1e-11)


# --- A unit taken out, its noise left (the second relation) -------------------------------------


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
def test_no_unit_taken_out_is_told_from_its_presence_better(delta: float) -> None:
    """The exact laws of three rounded reports, with a mean at the ball's edge and without it."""
    scales, grids = np.array([1.5, 0.8, 2.0]), np.array([0.01, 0.01, 0.02])
    mu = float(gaussian.sum_mu(scales, np.full(3, 2.0), grids, np.ones(3, dtype=np.int64))[0])
    removed = add_remove_epsilon(gaussian.sum_epsilon(delta, mu), delta)
    exact = exact_curve(np.array([0.0, 0.3, -0.7]), scales, grids, 1.0)
    assert exact(removed) <= delta < exact(0.97 * removed)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_half_the_gaussian_parameter_never_less(delta: float) -> None:
    for mu in np.geomspace(1e-3, 30.0, 40).tolist():
        exact, whole = (gaussian.sum_epsilon(delta, each) for each in (0.5 * mu, mu))
        found = add_remove_epsilon(whole, delta)
        assert found >= exact
        assert whole == 0.0 or found == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert add_remove_epsilon(math.inf, delta) is None


@pytest.mark.parametrize(
    ("privacy", "applies"),
    [
        ({"unit": "client"}, True),
        ({"unit": "record"}, True),
        ({"unit": "record", "clip": "average"}, False),
        ({"unit": "record", "client_clip": 0.1}, False),
        ({"unit": "client", "randomizer": "laplace"}, False),
        ({"unit": "client", "randomizer": "discrete-gaussian"}, False),
    ],
)
def test_where_taking_out_may_move_as_far_nothing_is_said(
    privacy: dict[str, object], applies: bool
) -> None:
    run = {"entropy": "system"} if "discrete" in str(privacy) else {}
    config = parse_config({"privacy": privacy, "run": run}).to_dict()
    found = add_remove_of(config, 1.0, 1e-5)
    assert (found == add_remove_epsilon(1.0, 1e-5)) if applies else found is None
    assert add_remove_of(config, None, 1e-5) is None


# --- Laplace reports ----------------------------------------------------------------------------


def rounded(mean: float, grid: float, half: int) -> Vector:
    """Probabilities of Laplace noise of scale 1 around `mean`, rounded; index -half .. half."""
    return cells([mean], (np.arange(-half, half) + 0.5) * grid, "laplace")


def others(count: int, grid: float, half: int) -> Vector:
    """The exact law of `count` such reports with different means near zero, on the same indices."""
    size = 1 << math.ceil(math.log2(4 * half))
    means = np.linspace(-0.4, 0.4, 5)
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    for position, mean in enumerate(means.tolist()):
        law = np.pad(rounded(mean, grid, half), (0, size - 2 * half - 1))
        transform *= np.fft.rfft(np.roll(law, -half)) ** ((count + 4 - position) // 5)
    return np.maximum(np.roll(np.fft.irfft(transform, size), half)[: 2 * half + 1], 0.0)


ONE = np.ones(1)


@pytest.mark.parametrize(("count", "refuted"), [(100, 1.7), (400, 1.3)])
def test_exact_law_in_one_coordinate(count: int, refuted: float) -> None:
    """Below the bound; a claim with mu divided by 1.7 (100 reports) or 1.3 (400) is exceeded."""
    grid, shift = 2.0**-6, 1.0
    rest = others(count - 1, grid, round(12 * math.sqrt(2 * count) / grid))
    found = laplace.laplace_sum_mu(ONE, ONE * shift, ONE * grid, np.array([count]), dimension=1)
    curve = SumCurve(float(found[0]), laplace.SUM_RARE)
    for start in (-0.5, 0.001):
        laws = [
            fftconvolve(rest, rounded(mean, grid, round(45 / grid)), "same")
            for mean in (start, start + shift)
        ]
        for epsilon in (0.0, 0.05, 0.2):
            exact = divergence(*laws, epsilon)
            assert exact <= curve.profile(epsilon) + 1e-11
            less = gaussian_delta(epsilon, curve.mu / refuted)
            assert less < 1e-9 or exact > less + 1e-11


def test_moves_over_two_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a move is split, with steps of 1/8 of the noise, exactly; c = 1 and its surcharge."""
    monkeypatch.setattr(laplace, "SUM_SMOOTHING", 1.0)
    grid, count, shift = 0.125, 100, 1.5
    rest = others(count - 1, grid, round(9 * math.sqrt(2 * count) / grid))
    found = laplace.laplace_sum_mu(ONE, ONE * shift, ONE * grid, np.array([count]), dimension=2)
    h = 2 * count * 2.0001 * math.exp(-2.0 * math.pi**2)
    before = fftconvolve(rest, rounded(0.03, grid, 400), "same")
    for share in (1.0, 0.9, 0.5):
        ends = [
            fftconvolve(rest, rounded(0.03 + part * shift, grid, 400), "same")
            for part in (share, 1.0 - share)
        ]
        p, q = np.multiply.outer(before, before), np.multiply.outer(*ends)
        for epsilon in (0.0, 0.3):
            bound = math.exp(h) * gaussian_delta(epsilon - 2 * h, float(found[0])) + 1e-12
            assert divergence(p, q, epsilon) <= bound + 1e-11


def test_the_worst_honest_laplace_subset_is_that_of_the_smallest_noise() -> None:
    """On one grid: the bound for h of all is the bound for the h smallest alone."""
    scale = np.array([1.1, 1.3, 1.7])
    grid, shift, counts = np.full(3, 2.0**-15), np.full(3, 0.5), np.array([100, 200, 50])
    for honest in (150, 300, 330):
        fewer = np.minimum(counts, np.maximum(0, honest - np.array([0, 100, 300])))
        found = laplace.laplace_sum_mu(scale, shift, grid, counts, dimension=50, honest=honest)
        alone = laplace.laplace_sum_mu(scale, shift, grid, fewer, dimension=50)
        some = fewer > 0
        np.testing.assert_allclose(found[some], alone[some], rtol=1e-12)


def test_coarse_grids_count_where_fine_ones_bridge_them() -> None:
    scale, shift = np.array([1.0, 50.0]), np.array([0.5, 0.5])

    def mus(coarse: float, *counts: int) -> Vector:
        grid = np.array([2.0**-16, coarse])
        return laplace.laplace_sum_mu(scale, shift, grid, np.array(counts), dimension=600)

    alone = mus(2.0**-10, 1, 1000)
    assert alone[0] == math.inf and alone[1] < 0.01
    assert mus(2.0**-10, 20, 1000)[0] < 0.001
    # Coarser than the fine noise is wide: nothing but its own kind counts.
    assert mus(4.0, 1000, 1000)[0] == mus(4.0, 1000, 0)[0]


@pytest.mark.parametrize(("small", "dimension"), [(1e-8, 600), (1e-3, 5_000), (0.3, 10**9)])
def test_coordinates_with_little_own_noise(small: float, dimension: int) -> None:
    """More of them than the code allows for are as rare as it says: the binomial law itself."""
    bad = laplace._bad_coordinates(small, dimension)
    assert binom.sf(bad, dimension, small) <= 0.25 * laplace.SUM_RARE
    assert bad <= 10.0 * small * dimension + 40
