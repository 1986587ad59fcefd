"""The swap's constants: tails against simulation and exact sums, weights that keep their mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from fl_shuffle.accounting.bounds.partial_shuffle.lognormal import excess
from fl_shuffle.accounting.bounds.partial_shuffle.swap import (
    choose_swap,
    floor_of_sum,
    spread_atoms,
)


@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_floor_of_a_sum_of_two_valued_weights(count: int) -> None:
    low, high = 0.5, 2.0
    chance = (1.0 - low) / (high - low)
    for log_goal in (-3.0, -8.0):
        found = floor_of_sum(
            np.array([low, high]), np.array([1.0 - chance, chance]), count, log_goal
        )
        assert found is not None
        m, bound = found
        hits = np.arange(count + 1)
        log_mass = np.array(
            [
                math.lgamma(count + 1)
                - math.lgamma(k + 1)
                - math.lgamma(count - k + 1)
                + k * math.log(chance)
                + (count - k) * math.log(1.0 - chance)
                for k in hits
            ]
        )
        sums = count * low + hits * (high - low)
        exact = float(np.exp(log_mass) @ np.maximum(1.0 - sums / m, 0.0))
        assert exact <= bound <= 1.01 * math.exp(log_goal)
        assert 0.0 < m <= 1.1 * count


@pytest.mark.parametrize(("count", "reach", "own"), [(1000, 0.4, 0.4), (10**5, 0.1, 0.05)])
def test_costs_against_simulation(count: int, reach: float, own: float) -> None:
    swap = choose_swap(
        count=count, reach=reach, own=own, epsilon=0.1, local=0.3, goal=1e-3, sensitivity=1e6
    )
    assert swap is not None
    rng = np.random.default_rng(count)
    assert float(np.sum(swap.weights)) == pytest.approx(1.0, abs=1e-9)
    assert np.all(swap.weights >= 0.0)
    # The mean of max(1, e^(cg + c^2/2)), capped, is kept or raised.
    g = rng.normal(size=400_000)
    zeta = swap.losses[-1] * swap.smallest + swap.floor
    capped = np.minimum(np.maximum(1.0, np.exp(reach * g + 0.5 * reach**2)), zeta)
    mean = float(swap.losses @ swap.weights) * swap.smallest + swap.floor
    assert mean >= float(capped.mean()) - 4.0 * float(capped.std()) / math.sqrt(g.size)
    assert 0.8 * count < swap.smallest < 1.1 * count
    assert swap.cost <= 1.1e-3
    # S over its mean: the part below m, for sums whose normal approximation is good.
    spread = math.sqrt(math.expm1(reach**2) * count)
    deficit = np.maximum(swap.smallest - (count + spread * g), 0.0) / swap.smallest
    assert 0.3 * float(deficit.mean()) <= swap.cost
    # Raising small weights to the floor is paid for: N H E(floor - Z)_+ / m.
    raised = np.maximum(swap.floor - np.exp(reach * g - 0.5 * reach**2), 0.0)
    assert 0.1 < swap.floor < 1.0
    assert count / swap.smallest * 0.3 * float(raised.mean()) <= swap.cost


@pytest.mark.parametrize("reach", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("sds", [2.0, 8.0, 12.0])
def test_small_weights_keep_the_mass_that_decides(reach: float, sds: float) -> None:
    """log E e^(-rate w) by fine sums of the normal density, where masses far below 2^-53 decide."""
    zeta = math.exp(5.0 * reach)
    inner = np.exp(reach * np.linspace(-37.0, 5.0, 841)[:-1])
    values = np.concatenate([[0.0], inner, [zeta]])
    found, masses = spread_atoms(
        values, np.append(0.0, values[1:] * excess(1.0 / values[1:], reach))
    )
    rate = sds / reach
    g, step = np.linspace(-30.0, 20.0, 200_001, retstep=True)
    weights = np.minimum(np.exp(reach * g - 0.5 * reach**2), zeta)
    exact = logsumexp(-rate * weights - 0.5 * g**2) + math.log(step / math.sqrt(2.0 * math.pi))
    kept = masses > 0.0
    bound = logsumexp(-rate * found[kept], b=masses[kept])
    assert np.all(masses >= 0.0)
    assert exact - 1e-9 * abs(exact) <= bound <= exact + 0.1 * sds
