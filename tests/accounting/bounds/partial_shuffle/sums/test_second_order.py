"""E(q + S)_+^2 by the Fourier sum against brute force on lattices; excesses against quadrature."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from fl_shuffle.accounting.bounds.partial_shuffle import lognormal
from fl_shuffle.accounting.bounds.partial_shuffle.sums.second_order import squared_excess_of_sum
from fl_shuffle.accounting.engine.saddle_points import tilt_at_saddle_point
from fl_shuffle.accounting.laws.amplification import AtomicLaw

CELLS = 40


def brute_force(steps: np.ndarray, p: np.ndarray, count: int, offset: float) -> float:
    """E(offset + sum)_+^2 of `count` draws of steps / CELLS, by repeated squaring."""
    low = int(steps[0])
    power = np.bincount(steps - low, weights=p)
    total = np.ones(1)
    rest = count
    while rest:
        if rest & 1:
            total = np.convolve(total, power)
        power = np.convolve(power, power)
        rest >>= 1
    values = (np.arange(total.size) + count * low) / CELLS
    return float(total @ np.maximum(values + offset, 0.0) ** 2)


@pytest.mark.parametrize("count", [1, 2, 7, 60, 250])
@pytest.mark.parametrize("seed", range(4))
def test_against_convolution(count: int, seed: int) -> None:
    rng = np.random.default_rng([seed, count])
    values = np.linspace(-1.0, 1.0, 6) + 0.1 * rng.normal(size=6) - 0.4 / math.sqrt(count)
    steps = np.unique(np.round(CELLS * values).astype(int))
    p = rng.dirichlet(np.ones(steps.size))
    law = AtomicLaw.of(steps / CELLS, p)
    best = tilt_at_saddle_point(law, [(1.0, count - 1)])
    for theta in (best, 0.6 * best, 1.5 * best):
        offsets = np.array([0.0, 0.5, 1.0, 3.0]) / best
        found = squared_excess_of_sum(law, count, theta, offsets)
        assert found is not None
        for offset, value in zip(offsets, found.values, strict=True):
            exact = brute_force(steps, p, count, float(offset))
            bound = float(value) * math.exp(found.log_scale)
            assert exact * (1.0 - 1e-9) <= bound
            if offset > 0.0 and theta == best:
                assert bound <= exact * 1.01


@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.8, 2.5])
@pytest.mark.parametrize("w", [-4.0, -1.0, -0.01, 0.5, 3.0, 6.0])
def test_squared_excess_and_deficit(mu: float, w: float) -> None:
    s = math.exp(mu * w - 0.5 * mu * mu)

    def density(v: float) -> float:
        ratio = math.exp(mu * v - 0.5 * mu * mu)
        return (ratio - s) ** 2 * math.exp(-0.5 * v * v) / math.sqrt(2.0 * math.pi)

    cuts = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 13.0, 20.0]
    above = sum(quad(density, w + a, w + b, epsabs=0.0, epsrel=1e-11)[0] for a, b in pairwise(cuts))
    below = sum(quad(density, w - b, w - a, epsabs=0.0, epsrel=1e-11)[0] for a, b in pairwise(cuts))
    assert float(lognormal.squared_excess(np.array([s]), mu)[0]) == pytest.approx(above, rel=1e-7)
    assert float(lognormal.squared_deficit(np.array([s]), mu)[0]) == pytest.approx(below, rel=1e-7)
