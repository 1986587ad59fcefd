"""PrivUnit and PrivUnitG: two-level density, unbiased direction, reproducible reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.privunit import BASES, PrivUnit

KEY = bytes(range(32))
SAMPLES = 40_000


def direction(dimension: int) -> torch.Tensor:
    u = torch.linspace(1, 2, dimension)
    return u / u.norm()


def reports(randomizer: PrivUnit, mean: torch.Tensor, count: int = SAMPLES) -> np.ndarray:
    stream = NoiseStream(KEY, randomizer.dimension)
    return randomizer.randomize_(mean.repeat(count, 1), 0, stream).double().numpy()


def base_law(base: str, dimension: int) -> stats.rv_continuous:
    """The law of <v, u> for a base draw v and a unit vector u."""
    if base == "gaussian":
        return stats.norm()
    shape = (dimension - 1) / 2
    return stats.beta(shape, shape, loc=-1, scale=2)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 6.0])
@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_two_level_density(base: str, epsilon0: float, dimension: int) -> None:
    randomizer = PrivUnit(epsilon0, dimension, 1.0, base)
    p, q = randomizer.cap_probability, randomizer.mass
    assert 0 < q <= 0.5
    assert (p / q) / ((1 - p) / (1 - q)) == pytest.approx(math.exp(epsilon0))
    # The gain by quadrature of alpha against the two-level density.
    law = base_law(base, dimension)
    threshold = float(law.isf(q))
    inside = integrate.quad(lambda a: a * law.pdf(a), threshold, law.support()[1])[0]
    outside = integrate.quad(lambda a: a * law.pdf(a), law.support()[0], threshold)[0]
    assert randomizer.gain == pytest.approx(inside * p / q + outside * (1 - p) / (1 - q), rel=1e-4)
    # The automatic cap mass is a maximum of the gain.
    for other in (0.8 * q, min(0.5, 1.2 * q)):
        gain = PrivUnit(epsilon0, dimension, 1.0, base, cap_mass=other).gain
        assert gain <= randomizer.gain * (1 + 1e-6)


@pytest.mark.parametrize("base", BASES)
def test_reports_follow_the_law(base: str) -> None:
    """Chi-square and KS at 1e-6; the rest of the report is the base law, whatever the input."""
    dimension = 20
    randomizer = PrivUnit(1.5, dimension, 1.0, base)
    u = direction(dimension)
    values = reports(randomizer, u)
    along = values @ u.double().numpy()
    law = base_law(base, dimension)
    inside = along >= float(law.isf(randomizer.mass))
    p, q = randomizer.cap_probability, randomizer.mass
    assert stats.binomtest(int(inside.sum()), SAMPLES, p).pvalue > 1e-6
    assert stats.binomtest(int(inside.sum()), SAMPLES, 1.05 * p).pvalue < 1e-6
    level = law.sf(along)
    assert stats.kstest(level[inside] / q, "uniform").pvalue > 1e-6
    assert stats.kstest((level[~inside] - q) / (1 - q), "uniform").pvalue > 1e-6
    # Orthogonal parts: coordinates in a fixed orthogonal frame look like the base law's.
    across = np.linalg.svd(u.double().numpy()[None, :])[2][1:]
    parts = values @ across.T
    if base == "gaussian":
        assert stats.kstest(parts[:, 3], "norm").pvalue > 1e-6
    else:
        unit = parts / np.linalg.norm(parts, axis=1, keepdims=True)
        shape = (dimension - 2) / 2
        assert stats.kstest((unit[:, 3] + 1) / 2, stats.beta(shape, shape).cdf).pvalue > 1e-6
        assert np.abs(np.linalg.norm(values, axis=1) - 1).max() < 1e-4
    correlation = np.corrcoef(np.column_stack([along, parts]).T) - np.eye(dimension)
    assert np.abs(correlation).max() < 5.5 / math.sqrt(SAMPLES)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", [0.0, 0.4, 3.0])
def test_unbiased_inside_the_ball(base: str, length: float) -> None:
    randomizer = PrivUnit(2.0, 8, 3.0, base)
    mean = length * direction(8)
    values = reports(randomizer, mean)
    estimate = values.mean(axis=0) * 3.0 / randomizer.gain
    error = values.std(axis=0) * 3.0 / randomizer.gain / math.sqrt(SAMPLES)
    assert (np.abs(estimate - mean.numpy()) < 5 * error).all()
    if length == 3.0:
        assert (np.abs(estimate - 0.8 * mean.numpy()) > 5 * error).any()


@pytest.mark.parametrize("base", BASES)
def test_reports_do_not_depend_on_batches_and_lie_on_the_grid(base: str) -> None:
    randomizer = PrivUnit(3.0, 33, 1.0, base)
    stream = NoiseStream(KEY, 33)
    means = 0.1 * torch.randn(9, 33)
    together = randomizer.randomize_(means.clone(), 50, stream)
    apart = randomizer.randomize_(means[[4, 1]].clone(), [54, 51], stream)
    assert torch.equal(apart, together[[4, 1]])
    units = together.double() / randomizer.step
    assert torch.equal(units, units.round())
    assert float(together.abs().max()) <= randomizer.largest_report < 2.0**24 * randomizer.step


def test_uniform_rows() -> None:
    stream = NoiseStream(KEY, 4)
    table = stream.uniform_rows(range(3000), 3)
    assert table.shape == (3000, 3)
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-6
    assert np.array_equal(stream.uniform_rows([70, 2], 3), table[[70, 2]])
    assert stream.uniform_rows([], 3).shape == (0, 3)
    assert table.min() > 0 and table.max() < 1
    assert special.ndtri(2.0**-54) > -8.3


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon0": 0.0},
        {"epsilon0": math.nan},
        {"epsilon0": 51.0},
        {"dimension": 1},
        {"radius": 0.0},
        {"base": "cube"},
        {"cap_mass": 0.0},
        {"cap_mass": 0.6},
    ],
)
def test_bad_randomizers(change: dict) -> None:
    with pytest.raises(InvalidValueError):
        PrivUnit(**{"epsilon0": 1.0, "dimension": 3, "radius": 1.0, **change})


def test_bad_means() -> None:
    randomizer = PrivUnit(1.0, 3, 1.0)
    stream = NoiseStream(KEY, 3)
    for means, clients in (
        (torch.ones(1, 3), 0),
        (torch.full((1, 3), math.nan), 0),
        (torch.zeros(1, 4), 0),
        (torch.zeros(2, 3), [0]),
    ):
        with pytest.raises(InvalidValueError):
            randomizer.randomize_(means, clients, stream)
