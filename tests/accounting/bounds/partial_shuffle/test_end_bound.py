"""The sharper theorem's numbers: attacks, exact small shuffles, two rounds (docs/proofs.md, 13)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle import profile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import profile_delta
from tests.oracles import shuffle_delta


def binary_delta(epsilon0: float, ones: int, zeros: int, epsilon: float) -> float:
    """Exact: randomized response among `ones` and `zeros`; the count of ones is sufficient."""
    high = 1.0 / (1.0 + math.exp(-epsilon0))
    others = np.convolve(
        binom.pmf(np.arange(ones + 1), ones, high), binom.pmf(np.arange(zeros + 1), zeros, 1 - high)
    )
    first = np.convolve(others, [1 - high, high])
    second = np.convolve(others, [high, 1 - high])
    a = math.exp(epsilon)
    return max(np.maximum(x - a * y, 0).sum() for x, y in ((first, second), (second, first)))


@pytest.mark.parametrize("epsilon0", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("others", [40, 1000])
def test_pure_profile_against_every_binary_data_set(epsilon0: float, others: int) -> None:
    local = profile.approximate(epsilon0)
    closest = 0.0
    if math.exp(epsilon0) > 0.2 * others:
        assert math.isinf(profile_delta(local, others, 0.2 * epsilon0))
        return
    for share in (0.02, 0.05, 0.15, 0.3):
        epsilon = share * epsilon0 * math.sqrt(40 / others)
        bound = profile_delta(local, others, epsilon)
        ones = np.unique(np.linspace(0, others, 9).astype(int))
        exact = max(binary_delta(epsilon0, int(k), others - int(k), epsilon) for k in ones)
        assert exact <= bound
        closest = max(closest, exact / bound)
    assert closest > 0.03


def test_pure_profile_stays_above_many_symbols() -> None:
    """k-ary response, n = 50, eps0 = 4: some data set reaches 3.806 at 1e-6.

    The profile knows nothing of k, so no bound from it may go below.
    """
    local = profile.approximate(4.0)
    assert min(profile_delta(local, 49, 3.806), local.local_delta(3.806)) >= 1e-6


def test_profiles_of_random_families() -> None:
    """A profile read off a finite family bounds every data set of it."""
    rng = np.random.default_rng(1620)
    for _ in range(8):
        laws = rng.dirichlet(np.full(3, 6.0), size=3) + 0.05
        laws /= laws.sum(axis=1, keepdims=True)

        def curve(epsilon: float, laws: np.ndarray = laws) -> float:
            a = math.exp(epsilon)
            return max(float(np.maximum(x - a * y, 0).sum()) for x in laws for y in laws)

        local = profile.points([(e, curve(e)) for e in np.linspace(0.0, 3.0, 400).tolist()])
        for others in (6, 12):
            r = laws[rng.integers(0, 3, others)]
            for epsilon in (0.0, 0.05, 0.2):
                exact = shuffle_delta(laws[0], laws[1], r, math.exp(epsilon))
                assert exact <= min(profile_delta(local, others, epsilon), curve(epsilon)) + 1e-12
