"""Goodness of fit of the noise, with power.

Seeds are fixed, so these tests cannot flicker. For a fresh key each check would raise a false alarm
with probability below 1e-6 (five standard errors, or a p-value of 1e-7); each is shown to reject a
generator that is slightly wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.seeds import SeedTree

TREE = SeedTree(20_240)
CLIENTS, DIMENSION = 2000, 1000
SAMPLES = CLIENTS * DIMENSION
ALARM = 1e-7


def sample(law: str, bits: int = 32, round_number: int = 0) -> np.ndarray:
    stream = NoiseStream(TREE.key(round_number, "test"), DIMENSION, bits=bits)
    return stream.rows(law, np.arange(CLIENTS))


def cdf(law: str) -> Callable[[np.ndarray], np.ndarray]:
    return stats.norm.cdf if law == "normal" else stats.laplace.cdf


def ks_p_value(values: np.ndarray, law: str) -> float:
    """Kolmogorov-Smirnov, asymptotic (n = 2e6)."""
    ordered = np.sort(values, axis=None)
    levels = cdf(law)(ordered)
    grid = np.arange(ordered.size + 1) / ordered.size
    distance = max(np.max(grid[1:] - levels), np.max(levels - grid[:-1]))
    return float(stats.kstwobign.sf(distance * math.sqrt(ordered.size)))


def anderson_darling(values: np.ndarray, law: str) -> float:
    """The A^2 statistic for a fully specified law; its upper 1e-7 point is about 17.5.

    P(A^2 > a) is about 1.732 exp(-a) sqrt(1/(pi a))..., tail-weighted, so it sees tail errors that
    Kolmogorov-Smirnov misses.
    """
    ordered = np.sort(values, axis=None)
    count = ordered.size
    log_below, log_above = (
        (stats.norm.logcdf(ordered), stats.norm.logsf(ordered))
        if law == "normal"
        else (stats.laplace.logcdf(ordered), stats.laplace.logsf(ordered))
    )
    weights = 2 * np.arange(1, count + 1) - 1
    return float(-count - np.mean(weights * (log_below + log_above[::-1])))


def variance_z(values: np.ndarray, law: str) -> float:
    """Standard score of the mean square: 2% of variance is 1% of scale."""
    fourth, second = (3.0, 1.0) if law == "normal" else (24.0, 2.0)
    error = math.sqrt((fourth - second**2) / values.size)
    return float((np.mean(values**2) - second) / error)


@pytest.mark.parametrize("law", ["normal", "laplace"])
@pytest.mark.parametrize("bits", [32, 64])
def test_distribution(law: str, bits: int) -> None:
    values = sample(law, bits)
    assert ks_p_value(values, law) > ALARM
    assert anderson_darling(values, law) < 17.5
    assert abs(variance_z(values, law)) < 5
    assert abs(np.mean(values)) < 5 * math.sqrt(np.mean(values**2) / SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_power_of_the_distribution_tests(law: str) -> None:
    values = sample(law)
    assert abs(variance_z(1.01 * values, law)) > 5
    assert abs(variance_z(0.99 * values, law)) > 5
    assert ks_p_value(1.01 * values, law) < ALARM
    assert anderson_darling(1.01 * values, law) > 17.5
    assert ks_p_value(values + 0.01, law) < ALARM
    # One variate in a hundred drawn twice too wide.
    contaminated = np.where(np.arange(DIMENSION) % 100 == 0, 2 * values, values)
    assert anderson_darling(contaminated, law) > 17.5
    # A grid of 1/32, far coarser than anything the generator does.
    assert ks_p_value(np.round(values * 32) / 32, law) < ALARM


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_tail_counts(bits: int) -> None:
    """Counts beyond 4, 4.5 and 5 sigma and 12, 14 and 16 Laplace scales.

    Among 3.2e7 variates (8e6 for Philox); expected per side of 3.2e7: 1013, 109, 9 and 98, 13, 1.8.
    A scale 3% too large makes the 4 sigma count at least 9 standard errors too high, which the
    last line checks.
    """
    stream = NoiseStream(TREE.key(1, "tails"), 8000, bits=bits)
    limits = {"normal": np.array([4.0, 4.5, 5.0]), "laplace": np.array([12.0, 14.0, 16.0])}
    total = wide = 0
    counts = {law: np.zeros((2, 3), int) for law in limits}
    for start in range(0, 4000, 500):
        for law, levels in limits.items():
            values = stream.rows(law, np.arange(start, start + 500))
            far = values[np.abs(values) > levels[0]]
            if law == "normal":
                wide += int(np.sum(1.03 * values > levels[0]))
            for side, sign in enumerate((1, -1)):
                counts[law][side] += np.array([np.sum(sign * far > level) for level in levels])
        total += values.size
    for law, levels in limits.items():
        tail = stats.norm.sf(levels) if law == "normal" else stats.laplace.sf(levels)
        for side in range(2):
            for count, chance in zip(counts[law][side], tail, strict=True):
                assert stats.binomtest(int(count), total, float(chance)).pvalue > 1e-6
    assert stats.binomtest(wide, total, float(stats.norm.sf(4.0))).pvalue < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "laplace"])
@pytest.mark.parametrize("bits", [32, 64])
def test_no_correlation_between_clients_rounds_and_dimensions(law: str, bits: int) -> None:
    first = sample(law, bits)
    other = sample(law, bits, round_number=1)
    half = DIMENSION // 2
    pairs = {
        "next client": (first[:-1], first[1:]),
        "far client": (first[:1000], first[1000:]),
        "round": (first, other),
        "next dimension": (first[:, :-1], first[:, 1:]),
        "fourth dimension": (first[:, :-4], first[:, 4:]),
        "cosine and sine halves": (first[:, :half], first[:, half:]),
    }
    for name, (left, right) in pairs.items():
        for transform in (lambda x: x, np.square, np.abs):
            a, b = transform(left).ravel(), transform(right).ravel()
            score = np.corrcoef(a, b)[0, 1] * math.sqrt(a.size)
            assert abs(score) < 5, (name, score)


def test_power_of_the_correlation_test() -> None:
    first, second = sample("normal"), sample("normal", round_number=1)
    mixed = 0.995 * second + math.sqrt(1 - 0.995**2) * 0.05 * first
    score = np.corrcoef(first.ravel(), mixed.ravel())[0, 1] * math.sqrt(SAMPLES)
    assert abs(score) > 5


def test_normal_pairs_have_a_uniform_angle_and_independent_radius() -> None:
    values = sample("normal")
    half = DIMENSION // 2
    x, y = values[:, :half].ravel(), values[:, half:].ravel()
    angle = (np.arctan2(y, x) / (2 * math.pi)) % 1.0
    radius = 1 - np.exp(-(x**2 + y**2) / 2)
    table, _, _ = np.histogram2d(angle, radius, bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > ALARM
    angle = (angle + 0.005 * np.sin(6 * angle)) % 1
    bent, _, _ = np.histogram2d(angle, radius, bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(bent.ravel()).pvalue < ALARM
