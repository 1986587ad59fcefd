"""Where a local profile is all that is known: attacks, exact small shuffles, weights, input errors.

docs/proofs.md, section 13.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle import profile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve, profile_delta
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum, spread_atoms
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError
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


def test_a_small_delta0_counts_once_not_once_a_client() -> None:
    pure, impure = (ProfileCurve(profile.approximate(1.0, d), 10**4) for d in (0.0, 1e-9))
    for epsilon in (0.0, 0.01, 0.03, 0.05, 2.0):
        assert pure.delta(epsilon) <= impure.delta(epsilon) <= pure.delta(epsilon) * 1.001 + 4e-9


@pytest.mark.parametrize("value", ["1", "1:x", "a:b", "-1:0.1", "1:2", "gdp:x", "gdp:-1"])
def test_bad_profiles_are_refused(value: str) -> None:
    with pytest.raises(InvalidValueError):
        Question.from_mapping({"profile": value, "clients": 10, "delta": 1e-6})


def test_profiles_bound_what_they_stand_for() -> None:
    local = profile.approximate(1.0, 1e-3)
    gap = (math.exp(1.0) - math.exp(0.4)) / (1.0 + math.exp(1.0))
    assert local.local_delta(0.4) == pytest.approx(1e-3 + (1.0 - 1e-3) * gap, rel=3e-9)
    assert local.local_delta(3.0) == pytest.approx(1e-3, rel=3e-9)
    assert local.local_epsilon(1e-4) == math.inf


def test_no_epsilon_is_a_bad_one() -> None:
    """Bends that were two for round-off once made some deltas a thousand times too large."""
    local = profile.approximate(1.0)
    deltas = [profile_delta(local, 99, epsilon) for epsilon in np.linspace(0.55, 0.65, 30)]
    assert np.all(np.diff(deltas) < 0.0)


@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_floor_of_a_sum_of_two_valued_weights(count: int) -> None:
    low, high = 0.5, 2.0
    chance = (1.0 - low) / (high - low)
    weights, hits = (np.array([low, high]), np.array([1.0 - chance, chance])), np.arange(count + 1)
    for log_goal in (-3.0, -8.0):
        found = floor_of_sum([(*weights, count // 3), (*weights, count - count // 3)], log_goal)
        assert found is not None
        m, bound = found
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
    tail = values[1:] * gaussian_profile(-np.log(values[1:]), reach)
    found, masses = spread_atoms(values, np.append(0.0, tail))
    rate = sds / reach
    g, step = np.linspace(-30.0, 20.0, 200_001, retstep=True)
    weights = np.minimum(np.exp(reach * g - 0.5 * reach**2), zeta)
    exact = logsumexp(-rate * weights - 0.5 * g**2) + math.log(step / math.sqrt(2.0 * math.pi))
    kept = masses > 0.0
    bound = logsumexp(-rate * found[kept], b=masses[kept])
    assert np.all(masses >= 0.0)
    assert exact - 1e-9 * abs(exact) <= bound <= exact + 0.1 * sds
