"""Goodness of fit of the noise, with power.

Seeds are fixed, so these tests cannot flicker. For a fresh key each check would raise a false alarm
with probability below 1e-6 (five standard errors, or a p-value of 1e-7); each is shown to reject a
generator that is slightly wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.seeds import SeedTree

TREE = SeedTree(20_240)
CLIENTS, DIMENSION = 2000, 500
LAWS = {"normal": stats.norm, "laplace": stats.laplace}
FOURTH, SECOND = {"normal": 3.0, "laplace": 24.0}, {"normal": 1.0, "laplace": 2.0}
ALARM = 1e-7


def sample(law: str, bits: int = 32, round_number: int = 0) -> np.ndarray:
    stream = NoiseStream(TREE.key(round_number, "test"), DIMENSION, bits=bits)
    return stream.rows(law, np.arange(CLIENTS))


def fits(values: np.ndarray, law: str) -> bool:
    """Kolmogorov-Smirnov, asymptotic (n = 1e6)."""
    ordered = np.sort(values, axis=None)
    levels = LAWS[law].cdf(ordered)
    grid = np.arange(ordered.size + 1) / ordered.size
    distance = max(np.max(grid[1:] - levels), np.max(levels - grid[:-1]))
    return bool(stats.kstwobign.sf(distance * math.sqrt(ordered.size)) > ALARM)


def variance_z(values: np.ndarray, law: str) -> float:
    """Standard score of the mean square: 2% of variance is 1% of scale."""
    error = math.sqrt((FOURTH[law] - SECOND[law] ** 2) / values.size)
    return float((np.mean(values**2) - SECOND[law]) / error)


def tails_fit(values: np.ndarray, law: str) -> bool:
    """The counts beyond 3.5 sigma or 8 Laplace scales on either side: 233 and 168 expected."""
    level = 3.5 if law == "normal" else 8.0
    chance = float(LAWS[law].sf(level))
    return all(
        stats.binomtest(int(np.sum(side > level)), values.size, chance).pvalue > ALARM
        for side in (values, -values)
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [32, 64])
def test_distribution(law: str, bits: int) -> None:
    values = sample(law, bits)
    assert fits(values, law) and tails_fit(values, law)
    assert abs(variance_z(values, law)) < 5
    assert abs(np.mean(values)) < 5 * math.sqrt(np.mean(values**2) / values.size)
    # The power: a scale, a shift, a grid, and tails that are slightly wrong.
    assert min(abs(variance_z(c * values, law)) for c in (0.99, 1.01)) > 5
    assert not fits(1.02 * values, law) and not fits(values + 0.01, law)
    assert not fits(np.round(values * 32) / 32, law)
    twice = np.where(np.arange(DIMENSION) % 100 == 0, 2 * values, values)
    assert not tails_fit(twice, law)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [32, 64])
def test_no_correlation_between_clients_rounds_and_dimensions(law: str, bits: int) -> None:
    first = sample(law, bits)
    other = sample(law, bits, round_number=1)
    half = DIMENSION // 2

    def score(left: np.ndarray, right: np.ndarray) -> float:
        """In standard errors, of the values or of their sizes."""
        both = ((left, right), (np.abs(left), np.abs(right)))
        found = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in both]
        return float(np.max(np.abs(found)) * math.sqrt(left.size))

    for left, right in (
        (first[:-1], first[1:]),
        (first[:1000], first[1000:]),
        (first, other),
        (first[:, :-1], first[:, 1:]),
        (first[:, :-4], first[:, 4:]),
        (first[:, :half], first[:, half:]),  # cosines and sines
    ):
        assert score(left, right) < 5
    assert score(first, 0.995 * other + 0.01 * first) > 5


def test_normal_pairs_have_a_uniform_angle_and_independent_radius() -> None:
    values = sample("normal")
    half = DIMENSION // 2
    x, y = values[:, :half].ravel(), values[:, half:].ravel()
    angle = (np.arctan2(y, x) / (2 * math.pi)) % 1.0
    radius = 1 - np.exp(-(x**2 + y**2) / 2)
    for turned, right in ((angle, True), ((angle + 0.01 * np.sin(6 * angle)) % 1, False)):
        table, _, _ = np.histogram2d(turned, radius, bins=16, range=[[0, 1], [0, 1]])
        assert bool(stats.chisquare(table.ravel()).pvalue > ALARM) is right
