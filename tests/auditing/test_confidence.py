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
    event_epsilon,
    mu_lower,
    proportion_lower,
    proportion_upper,
    smallest_detectable_mu,
)
from fl_shuffle.errors import InvalidValueError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.floats(0.001, 0.999), st.sampled_from([0.2, 0.05, 0.01]))
def test_clopper_pearson_never_misses_more_often_than_stated(
    trials: int, truth: float, alpha: float
) -> None:
    """Exactly: the probability of all counts whose bound lies on the wrong side of the truth."""
    counts = np.arange(trials + 1)
    mass = stats.binom.pmf(counts, trials, truth)
    low = np.array([proportion_lower(int(k), trials, alpha) for k in counts])
    high = np.array([proportion_upper(int(k), trials, alpha) for k in counts])
    assert mass[low > truth].sum() <= alpha * (1 + 1e-9)
    assert mass[high < truth].sum() <= alpha * (1 + 1e-9)


def brute_force_delta(p: float, q: float, n: int, epsilon: float) -> float:
    """delta of the number of ones among n bits: n-1 of chance p and one of chance q, or n of p."""
    rest = stats.binom.pmf(np.arange(n), n - 1, p)
    zero = np.convolve(rest, [1 - p, p])
    one = np.convolve(rest, [1 - q, q])
    scale = math.exp(epsilon)
    return max(np.maximum(one - scale * zero, 0).sum(), np.maximum(zero - scale * one, 0).sum())


@pytest.mark.parametrize(("p", "q", "n"), [(0.2, 0.7, 6), (0.45, 0.55, 40), (0.05, 0.5, 200)])
def test_the_batch_bound_approaches_brute_force_from_below(p: float, q: float, n: int) -> None:
    trials = 10**10
    facts = Dichotomy.from_counts(
        np.array([round(p * trials)]), np.array([round(q * trials)]), trials, 1e-3
    )
    for epsilon in (0.0, 0.05, 0.3):
        exact = brute_force_delta(p, q, n, epsilon)
        found = facts.delta(epsilon, n)
        assert found <= exact * (1 + 1e-9)
        if exact > 1e-6:
            assert found >= exact * (1 - 5e-3)


def test_the_batch_bound_misses_rarely() -> None:
    """200 experiments of 500 reports at confidence 80%: more than 30% misses has chance 3e-4."""
    rng = np.random.Generator(np.random.PCG64(9))
    exact = brute_force_delta(0.3, 0.6, 8, 0.1)
    misses = 0
    for _ in range(200):
        ones = [np.array([(rng.random(500) < chance).sum()]) for chance in (0.3, 0.6)]
        facts = Dichotomy.from_counts(ones[0], ones[1], 500, 0.2)
        misses += facts.delta(0.1, 8) > exact
    assert misses <= 60


def test_no_sample_refutes_a_huge_or_infinite_epsilon() -> None:
    facts = Dichotomy.from_counts(np.array([0]), np.array([10**9]), 10**9, 0.05)
    assert 15.0 < facts.epsilon(1e-5, 1) < math.log(10**9)
    for epsilon in (100.0, 5000.0, math.inf):
        assert not facts.refutes(epsilon, 1e-5, 1)


def test_mu_misses_rarely_and_is_tight() -> None:
    """400 tests of 300 pairs at mu = 0.1, confidence 80%: more than 26% misses have chance 2e-3 if
    the bound is valid."""
    rng = np.random.Generator(np.random.PCG64(10))
    found = []
    for _ in range(400):
        noise = 3.0 * rng.standard_normal(300)
        found.append(mu_lower(noise - 1.0, noise - 0.7, 0.2))
    assert np.mean(np.array(found) > 0.1) <= 0.26
    assert np.median(found) > 0.09


def test_the_stated_power_of_the_mu_test() -> None:
    """At the stated mu 95% of 400 tests exceed the claim (below 92% has chance 4e-3); if the claim
    is the truth, at most 5% may (more than 8% has chance 4e-3)."""
    rng = np.random.Generator(np.random.PCG64(12))
    claim, pairs = 0.2, 200
    need = smallest_detectable_mu(claim, pairs, 0.05, 0.95)

    def rate(mu: float) -> float:
        hits = 0
        for _ in range(400):
            noise = rng.standard_normal(pairs)
            hits += mu_lower(noise, noise + mu, 0.05) > claim
        return hits / 400

    assert 0.2 < need < 0.26
    assert rate(need) >= 0.92
    assert rate(claim) <= 0.08


@pytest.mark.parametrize(
    "call",
    [
        lambda: proportion_lower(1, 0, 0.05),
        lambda: proportion_lower(2, 1, 0.05),
        lambda: proportion_upper(-1, 1, 0.05),
        lambda: proportion_upper(1, 2, 0.0),
        lambda: proportion_upper(1, 2, 1.0),
        lambda: proportion_upper(1, 2, math.nan),
        lambda: proportion_upper(1.0, 2, 0.1),  # type: ignore[arg-type]
        lambda: event_epsilon(1, 3, 2, 0.0, 0.05),
        lambda: mu_lower(np.zeros(2), np.zeros(2), 0.05),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(InvalidValueError):
        call()
