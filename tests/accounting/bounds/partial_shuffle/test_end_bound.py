"""The sharper theorem's numbers: attacks, exact small shuffles, two rounds (docs/proofs.md, 13)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle import profile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import profile_delta
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.reports import ReportClass, RoundType
from tests.accounting.chosen_vector_datasets import vector_lower_epsilon
from tests.oracles import shuffle_delta


@pytest.mark.parametrize(
    ("local", "reports"), [(0.5, 10**4), (1.0, 10**4), (2.0, 10**4), (4.0, 10**5)]
)
def test_lowered_by_a_tenth_an_attack_refutes_it(local: float, reports: int) -> None:
    mu = local / math.sqrt(2.0 * math.log(1.25e5))
    classes = [ReportClass("gaussian", 1.0, mu / 2, mu, reports)]
    proven = VectorCurve(RoundType.of(classes, 0)).epsilon(1e-6)
    attack = vector_lower_epsilon(classes, 0, 1e-6).epsilon
    assert 0.9 * proven < attack <= proven


def binary_response(epsilon0: float) -> np.ndarray:
    high = 1.0 / (1.0 + math.exp(-epsilon0))
    return np.array([[high, 1.0 - high], [1.0 - high, high]])


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
@pytest.mark.parametrize("others", [40, 200, 1000])
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


def test_two_rounds_exactly() -> None:
    """Two rounds of binary response: the composed bound is not below the exact composition."""
    epsilon0, others = 1.0, 60
    local = profile.approximate(epsilon0)
    grid = np.linspace(0.0, epsilon0, 40)
    curve = [min(profile_delta(local, others, e), local.local_delta(e)) for e in grid.tolist()]
    composed = Composition([(DominatingPair.from_curve(grid, curve), 2)])
    high = 1.0 / (1.0 + math.exp(-epsilon0))
    closest = 0.0
    for first_ones, second_ones in ((0, 0), (0, 60), (30, 30), (60, 10)):
        rounds = []
        for ones in (first_ones, second_ones):
            base = np.convolve(
                binom.pmf(np.arange(ones + 1), ones, high),
                binom.pmf(np.arange(others - ones + 1), others - ones, 1 - high),
            )
            rounds.append(
                (np.convolve(base, [1 - high, high]), np.convolve(base, [high, 1 - high]))
            )
        p = np.multiply.outer(rounds[0][0], rounds[1][0])
        q = np.multiply.outer(rounds[0][1], rounds[1][1])
        for epsilon in (0.05, 0.2, 0.4, 0.8):
            exact = max(
                np.maximum(p - math.exp(epsilon) * q, 0).sum(),
                np.maximum(q - math.exp(epsilon) * p, 0).sum(),
            )
            bound = composed.delta(epsilon)
            assert exact <= bound
            closest = max(closest, exact / bound)
    assert closest > 0.3
