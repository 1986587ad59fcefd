"""Shuffled discrete Gaussian reports against the proof (docs/proofs.md, section 14, last part):
they are, up to a factor, a kernel applied to shuffled continuous Gaussian reports."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

GRID = np.arange(-14, 15)
"""Reports in steps: beyond lies less than 1e-14 of any law here."""
FINE = np.linspace(-18.0, 18.0, 721)
"""Nodes of the trapezoidal rule, which is exact to 1e-14 for products of these Gaussians."""
WEIGHT = float(FINE[1] - FINE[0])

Vector = np.ndarray


def normal(at: Vector, scale: float) -> Vector:
    return np.exp(-0.5 * (at / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi))


def discrete(mean: int, scale: float) -> Vector:
    """The law of mean + discrete Gaussian noise, in steps [GRID]."""
    law = normal(GRID - mean, scale)
    return law / math.fsum(law.tolist())


def unevenness(smoothing: float) -> float:
    """e_c of the proof."""
    return 2.0 * sum(math.exp(-2.0 * (math.pi * smoothing * k) ** 2) for k in range(1, 40))


def after_kernel(mean: int, scale: float, smoothing: float) -> Vector:
    """What the kernel makes of N(mean, scale^2 - c^2), by integration [GRID]."""
    kernel = normal(GRID[:, None] - FINE[None, :], smoothing)
    kernel /= kernel.sum(axis=0)
    rest = math.sqrt(scale**2 - smoothing**2)
    law: Vector = kernel @ (normal(FINE - mean, rest) * WEIGHT)
    return law


def divergence(laws: list[list[Vector]], weight: float, epsilon: float) -> float:
    """H of two shuffled batches: lists of the reports' densities, the first report differing."""
    both = []
    for reports in laws:
        orders = list(itertools.permutations(reports))
        total = 0.0
        for order in orders:
            product = order[0]
            for law in order[1:]:
                product = np.multiply.outer(product, law)
            total = total + product / len(orders)
        both.append(total)
    gain = np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0)
    return float(gain.sum()) * weight ** len(laws[0])


@pytest.mark.parametrize("smoothing", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("scale", [0.9, 1.4])
def test_discrete_report_is_a_kernel_of_a_gaussian(scale: float, smoothing: float) -> None:
    """Point by point within (1 - e_c)^2, and not within a twentieth of that where it is felt."""
    factor = -2.0 * math.log1p(-unevenness(smoothing))
    for mean in (0, 3):
        ratio = np.log(discrete(mean, scale) / after_kernel(mean, scale, smoothing))
        inside = np.abs(GRID - mean) <= 5
        assert np.max(np.abs(ratio[inside])) <= factor + 1e-10
    if smoothing == 0.35:
        assert np.max(np.abs(ratio[inside])) > 0.05 * factor


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("others", [(-1,), (0,), (3,), (-1, -1), (2, 0)])
def test_shuffled_discrete_reports_are_below_the_bound(
    others: tuple[int, ...], epsilon: float
) -> None:
    """Exact divergences of two and three reports, both orders, with a kernel that is felt."""
    scale, smoothing, ends = 1.0, 0.5, (2, -1)
    hiding = math.sqrt(scale**2 - smoothing**2)
    grid = FINE[::6]
    h = -2.0 * (len(others) + 1) * math.log1p(-unevenness(smoothing))
    for first, second in (ends, ends[::-1]):
        exact = divergence(
            [[discrete(each, scale) for each in (end, *others)] for end in (first, second)],
            1.0, epsilon,
        )  # fmt: skip
        smooth = divergence(
            [[normal(grid - each, hiding) for each in (end, *others)] for end in (first, second)],
            6.0 * WEIGHT, epsilon - 2.0 * h,
        )  # fmt: skip
        assert 0.0 < exact <= math.exp(h) * smooth


def test_without_the_correction_the_bound_would_be_exceeded() -> None:
    """Of coarse noise: a continuous Gaussian of the same scale is not what it is worth."""
    scale, grid = 0.4, np.linspace(-14.0, 15.0, 5801)
    worse = [
        divergence([[discrete(1, scale)], [discrete(0, scale)]], 1.0, epsilon)
        > divergence([[normal(grid - 1, scale)], [normal(grid, scale)]], 0.005, epsilon) * 1.01
        for epsilon in (0.0, 1.0, 2.0, 3.0, 4.0)
    ]
    assert any(worse)
