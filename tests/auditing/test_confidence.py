"""Lower bounds from counts: they miss as rarely as they say, and they are not empty."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.auditing.confidence import (
    Dichotomy,
    mu_lower,
    proportions_lower,
    proportions_upper,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.floats(0.001, 0.999), st.sampled_from([0.2, 0.05, 0.01]))
def test_clopper_pearson_never_misses_more_often_than_stated(
    trials: int, truth: float, alpha: float
) -> None:
    """Exactly: the probability of all counts whose bound lies on the wrong side of the truth."""
    counts = np.arange(trials + 1)
    mass = stats.binom.pmf(counts, trials, truth)
    low, high = (bound(counts, trials, alpha) for bound in (proportions_lower, proportions_upper))
    assert mass[low > truth].sum() <= alpha * (1 + 1e-9)
    assert mass[high < truth].sum() <= alpha * (1 + 1e-9)
    assert low[0] == 0.0 and high[-1] == 1.0


def brute_force_delta(p: float, q: float, n: int, epsilon: float) -> float:
    """delta of the number of ones among n bits: n-1 of chance p and one of chance q, or n of p."""
    rest = stats.binom.pmf(np.arange(n), n - 1, p)
    zero = np.convolve(rest, [1 - p, p])
    one = np.convolve(rest, [1 - q, q])
    scale = math.exp(epsilon)
    return max(float(np.maximum(a, 0.0).sum()) for a in (one - scale * zero, zero - scale * one))


def facts(zero: int, one: int, trials: int, alpha: float) -> Dichotomy:
    return Dichotomy.from_counts(np.array([[zero], [one]]), trials, alpha)


@pytest.mark.parametrize(("p", "q", "n"), [(0.2, 0.7, 6), (0.45, 0.55, 40), (0.05, 0.5, 200)])
def test_the_batch_bound_approaches_brute_force_from_below(p: float, q: float, n: int) -> None:
    trials = 10**10
    known = facts(round(p * trials), round(q * trials), trials, 1e-3)
    for epsilon in (0.0, 0.05, 0.3):
        exact = brute_force_delta(p, q, n, epsilon)
        found = known.delta(epsilon, n)
        assert found <= exact * (1 + 1e-9)
        if exact > 1e-6:
            assert found >= exact * (1 - 5e-3)


def test_no_sample_refutes_a_huge_or_infinite_epsilon() -> None:
    known = facts(0, 10**9, 10**9, 0.05)
    assert 15.0 < known.epsilon(1e-5, 1) < math.log(10**9)
    assert not any(known.refutes(epsilon, 1e-5, 1) for epsilon in (100.0, 5000.0, math.inf))


def test_mu_misses_rarely_and_is_tight() -> None:
    """400 tests of 300 pairs at mu = 0.1, confidence 80%: more than 26% misses have chance 2e-3 if
    the bound is valid."""
    noise = 3.0 * np.random.Generator(np.random.PCG64(10)).standard_normal((400, 300))
    found = np.array([mu_lower(own - 1.0, own - 0.7, 0.2) for own in noise])
    assert np.mean(found > 0.1) <= 0.26 and np.median(found) > 0.09
