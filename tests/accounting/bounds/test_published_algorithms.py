"""Claims of the published algorithms that the accountant must not inherit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.laws.gaussian_mechanism import (
    classical_sigma,
    gaussian_delta,
    gaussian_epsilon,
)


@pytest.mark.parametrize(
    ("records", "epsilon0", "truth"), [(100, 0.5, 96.0), (100, 2.0, 1027.0), (600, 0.5, 2180.0)]
)
def test_clipping_after_averaging_has_full_sensitivity(
    records: int, epsilon0: float, truth: float
) -> None:
    """Noise scaled to 2C/m while the clipped average moves by up to 2C: local epsilon at 1e-5."""
    clip = 2.0
    sigma = classical_sigma(epsilon0, 1e-5, 2.0 * clip / records)
    assert gaussian_epsilon(1e-5, 2.0 * clip / sigma) == pytest.approx(truth, rel=0.01)
    honest = classical_sigma(epsilon0, 1e-5, 2.0 * clip)
    assert gaussian_epsilon(1e-5, 2.0 * clip / honest) <= epsilon0


@pytest.mark.parametrize(("delta", "first"), [(1e-3, 7.5), (1e-5, 8.4), (1e-8, 9.4)])
def test_classical_gaussian_formula_is_conservative_where_used_and_fails_far_above(
    delta: float, first: float
) -> None:
    def excess(epsilon0: float) -> float:
        mu = epsilon0 / math.sqrt(2.0 * math.log(1.25 / delta))
        return gaussian_delta(epsilon0, mu) / delta

    assert all(excess(x) < 1.0 for x in np.linspace(0.01, 2.0, 60))
    grid = np.arange(2.0, 12.0, 0.05)
    crossing = next(x for x in grid if excess(x) > 1.0)
    assert crossing == pytest.approx(first, abs=0.11)
