"""Weights where a local profile is all that is known: m against exact sums, masses that decide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum, spread_atoms
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile


@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_floor_of_a_sum_of_two_valued_weights(count: int) -> None:
    low, high = 0.5, 2.0
    chance = (1.0 - low) / (high - low)
    for log_goal in (-3.0, -8.0):
        weights = np.array([low, high]), np.array([1.0 - chance, chance])
        found = floor_of_sum([(*weights, count // 3), (*weights, count - count // 3)], log_goal)
        assert found is not None
        m, bound = found
        hits = np.arange(count + 1)
        sums = count * low + hits * (high - low)
        exact = float(binom.pmf(hits, count, chance) @ np.maximum(1.0 - sums / m, 0.0))
        assert exact <= bound <= 1.01 * math.exp(log_goal)
        assert 0.0 < m <= 1.1 * count


@pytest.mark.parametrize(("reach", "sds"), [(0.02, 12.0), (1.0, 8.0)])
def test_small_weights_keep_the_mass_that_decides(reach: float, sds: float) -> None:
    """log E e^(-rate w) by fine sums of the normal density, where masses far below 2^-53 decide."""
    zeta = math.exp(5.0 * reach)
    inner = np.exp(reach * np.linspace(-37.0, 5.0, 841)[:-1])
    values = np.concatenate([[0.0], inner, [zeta]])
    found, masses = spread_atoms(
        values, np.append(0.0, values[1:] * gaussian_profile(-np.log(values[1:]), reach))
    )
    rate = sds / reach
    g, step = np.linspace(-30.0, 20.0, 200_001, retstep=True)
    weights = np.minimum(np.exp(reach * g - 0.5 * reach**2), zeta)
    exact = logsumexp(-rate * weights - 0.5 * g**2) + math.log(step / math.sqrt(2.0 * math.pi))
    kept = masses > 0.0
    bound = logsumexp(-rate * found[kept], b=masses[kept])
    assert np.all(masses >= 0.0)
    assert exact - 1e-9 * abs(exact) <= bound <= exact + 0.1 * sds
