"""Means and frequencies: exact local privacy, distributions, unbiasedness, coverage, the published
forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import (
    BOUNDED,
    ESTIMATORS,
    BoundedRandomizer,
    KaryRandomizedResponse,
    estimate_frequency,
    estimate_mean,
)
from fl_shuffle.estimators.estimates import _excess

USERS, REPEATS, K = 400, 600, 4
# 600 intervals at 95%: the count covered is 570 +- 5.3; below 543 has probability under 1e-6, and
# intervals 20% too short (coverage 88%) fail with probability above 0.99.
LEAST_COVERED, MOST_COVERED = 543, 594
SAMPLES = 200_000
ALARM = 1e-6  # False-alarm probability of each test, were the seed fresh.
KRR = KaryRandomizedResponse(K)


def bounded(name: str) -> BoundedRandomizer:
    return BoundedRandomizer(name, 20.0, 80.0)


@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
def test_categories_follow_a_law_of_exactly_this_privacy(epsilon0: float) -> None:
    """A budget 10% larger is noticed."""
    reports = KRR.randomize(np.full(SAMPLES, K - 1), epsilon0, np.random.default_rng(5))
    counts = np.bincount(reports, minlength=K)
    for budget, right in ((epsilon0, True), (1.1 * epsilon0, False)):
        law = np.where(np.arange(K) == K - 1, math.exp(budget), 1.0)
        found = stats.chisquare(counts, SAMPLES * law / law.sum())
        assert (found.pvalue > ALARM) == right


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize(("value", "epsilon0"), [(20.0, 0.3), (42.5, 2.0)])
def test_numbers_are_unbiased_with_the_stated_law_and_variance(
    name: str, value: float, epsilon0: float
) -> None:
    """Five standard errors: false alarm below 1e-6; a 3% wrong variance is 8 or more of them."""
    randomizer, budget = bounded(name), np.full(SAMPLES, epsilon0)
    reports = randomizer.randomize(np.full(SAMPLES, value), budget, np.random.default_rng(1))
    scales = randomizer.scales(budget[:1])
    variance = float(randomizer.variances(scales, mean=value)[0])
    assert abs(reports.mean() - value) < 5 * math.sqrt(variance / SAMPLES)
    squares = (reports - value) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(SAMPLES) + 1e-9
    assert float(randomizer.variances(scales)[0]) >= variance
    if name == "laplace":
        assert stats.kstest((reports - value) * epsilon0 / 60.0, "laplace").pvalue > ALARM
        return
    # Binary randomized response of a random end of the range.
    (scale,), e = scales, math.exp(epsilon0)
    assert scale == pytest.approx(30.0 * (e + 1) / (e - 1))
    assert np.unique(reports) == pytest.approx([50.0 - scale, 50.0 + scale])
    chance = 0.5 + 0.5 * (value - 50.0) / scale
    assert stats.binomtest(int((reports > 50.0).sum()), SAMPLES, chance).pvalue > ALARM


@pytest.mark.parametrize(("mean", "counts_as"), [(-40.0, 20.0), (42.5, 42.5), (95.0, 80.0)])
def test_an_estimated_mean_outside_of_the_range_counts_as_its_nearest_end(
    mean: float, counts_as: float
) -> None:
    """The data cannot have it, and a variance that it gave might be below zero."""
    scales = bounded("duchi").scales(np.array([0.1, 1.0, 8.0]))
    found = bounded("duchi").variances(scales, mean=mean)
    assert found == pytest.approx(scales**2 - (counts_as - 50.0) ** 2) and (found >= 0.0).all()


def population(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(categories, numbers, budgets) of USERS users."""
    categories = rng.choice(K, USERS, p=[0.5, 0.3, 0.15, 0.05])
    return categories, np.clip(rng.normal(45, 12, USERS), 20, 80), rng.choice([0.3, 1, 3], USERS)


def estimate(
    kind: str, estimator: str, categories: np.ndarray, numbers: np.ndarray, budgets: np.ndarray,
    rng: np.random.Generator,
) -> Any:  # fmt: skip
    """Of the reports of all users, drawn anew."""
    if kind == "krr":
        reports = KRR.randomize(categories, budgets, rng)
        return estimate_frequency(reports, budgets, KRR, estimator=estimator)
    reports = bounded(kind).randomize(numbers, budgets, rng)
    return estimate_mean(reports, budgets, bounded(kind), estimator=estimator)


def test_an_error_is_one_that_some_users_values_have() -> None:
    """All reports name one category: far more than its users can be, and fewer than chance of every
    other one. Errors are then those of all users in it, and of none."""
    budgets = np.array([0.3, 1.0, 3.0] * 20)
    p, q = KRR.probabilities(budgets)
    found = estimate_frequency(np.zeros(60, dtype=np.int64), budgets, KRR)
    assert found.value[0] > 1.0 and (found.value[1:] < 0.0).all()
    everybody, nobody = (
        math.sqrt((chance * (1 - chance) / (p - q) ** 2).sum()) / 60 for chance in (p, q)
    )
    assert found.error == pytest.approx([everybody] + [nobody] * (K - 1), rel=1e-12)


@pytest.mark.parametrize("raw", [(1, 1, 1, 1), (1, 2, 3, 4), (9, 1, 1, 1), (5, 5), (1, 3), (7,)])
def test_what_unequal_weights_add_is_the_variance_over_permutations(raw: tuple[int, ...]) -> None:
    """Of the weighted mean of fixed values, whose mean squared deviation it multiplies."""
    weights, values = np.array(raw) / sum(raw), np.array([3.0, -1.0, 4.0, 1.5])[: len(raw)]
    means = [weights @ values[list(order)] for order in itertools.permutations(range(len(raw)))]
    assert _excess(weights) * values.var() == pytest.approx(np.var(means), abs=1e-12)


KINDS = [(kind, estimator) for kind in ("krr", "laplace") for estimator in ESTIMATORS]


@pytest.mark.parametrize(("kind", "estimator"), [*KINDS, ("duchi", "inverse-variance")])
def test_estimates_are_unbiased_and_covered(kind: str, estimator: str) -> None:
    """Budgets are dealt at random, anew in every repetition; the users' values stay the same."""
    rng = np.random.default_rng(10)
    categories, numbers, budgets = population(rng)
    truth = np.bincount(categories, minlength=K) / USERS if kind == "krr" else numbers.mean()
    found = [
        estimate(kind, estimator, categories, numbers, rng.permutation(budgets), rng)
        for _ in range(REPEATS)
    ]
    values = np.array([each.value for each in found])
    covered = np.sum([(each.low <= truth) & (truth <= each.high) for each in found], axis=0)
    spread = values.std(axis=0)
    assert (np.abs(values.mean(axis=0) - truth) < 5 * spread / math.sqrt(REPEATS)).all()
    # Unequal weights let in the data's spread, which is bounded from above: then longer is fine.
    exact = kind == "krr" or estimator != "inverse-variance"
    assert covered.min() >= LEAST_COVERED and covered.max() <= (MOST_COVERED if exact else REPEATS)
    if kind == "krr":
        # The standard error is right within 15% (its sampling error here is 3%).
        errors = np.sqrt(np.mean([each.error**2 for each in found], axis=0))
        assert errors == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(("kind", "estimator"), KINDS)
def test_only_equal_weights_are_unbiased_when_budgets_go_with_the_data(
    kind: str, estimator: str
) -> None:
    """Algorithm 1 is the plain average; Algorithm 2 is not unbiased here."""
    rng = np.random.default_rng(12)
    categories, numbers, budgets = population(rng)
    # Who has more budget has the larger value.
    ranks = np.argsort(np.argsort(budgets))
    values = np.sort(categories)[ranks], np.sort(numbers)[ranks]
    truth = np.mean(categories == 0) if kind == "krr" else numbers.mean()
    errors = [estimate(kind, estimator, *values, budgets, rng).value[0] - truth for _ in range(300)]
    score = abs(np.mean(errors)) / (np.std(errors) / math.sqrt(300))
    right = estimator == "unbiased" or (kind, estimator) == ("laplace", "published")
    assert score < 5 if right else score > 10


def test_published_forms_by_hand() -> None:
    """Algorithm 2: A = sum y, B = sum 1/(1 + e^eps), z = (A - B)/(n - 2B). Algorithm 1: average."""
    epsilon0 = np.array([0.5, 1.0, 2.0, 0.1, 1.5])
    bits = np.array([1, 0, 1, 1, 0])
    a, b = bits.sum(), (1 / (1 + np.exp(epsilon0))).sum()
    binary = KaryRandomizedResponse(2)
    estimate = estimate_frequency(bits, epsilon0, binary, estimator="published")
    assert estimate.value[1] == pytest.approx((a - b) / (5 - 2 * b), rel=1e-12)
    reports = np.array([3.0, 40.0, 100.0, -7.0, 55.5])
    mean = estimate_mean(reports, epsilon0, bounded("laplace"), estimator="published")
    assert mean.value[0] == pytest.approx(reports.mean(), rel=1e-12)
    deviation = math.sqrt((2 * (60 / epsilon0) ** 2).sum()) / 5
    assert mean.error[0] == pytest.approx(deviation, rel=1e-12)
    assert mean.high[0] - mean.value[0] == pytest.approx(1.959964 * deviation, rel=1e-6)


RNG, ONES = np.random.default_rng(0), np.ones(2)


def test_bad_input_is_refused() -> None:
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: estimate_mean(np.array([1.0, np.nan]), 1.0, bounded("duchi")), "reports"),
        (lambda: estimate_mean(np.zeros(3), 1.0, bounded("duchi"), confidence=1.0), "confidence"),
        (lambda: estimate_mean(np.zeros(2), np.array([1.0, 0.0]), bounded("duchi")), "epsilon0"),
        (lambda: estimate_frequency(np.array([], dtype=int), 1.0, KRR), "reports"),
        (lambda: estimate_frequency(np.array([0, 1]), np.array([1.0, 1e-300]), KRR), "too small"),
        (lambda: estimate_frequency(np.array([0]), 1.0, KRR, estimator="publishd"), "did you mean"),
        (lambda: KRR.randomize(np.array([0, 7]), 1.0, RNG), "value"),
        (lambda: KRR.randomize(np.array([0, 1]), np.ones(3), RNG), "epsilon0"),
        (lambda: bounded("laplace").randomize(np.array([30.0, 90.0]), ONES, RNG), "value"),
        (lambda: bounded("laplace").randomize(np.array(["1"]), np.ones(1), RNG), "values"),
        (lambda: BoundedRandomizer("cauchy", 0.0, 1.0), "randomizer"),
        (lambda: BoundedRandomizer("laplace", 1.0, 1.0), "high"),
        (lambda: KaryRandomizedResponse(2**32), "categories"),
    ]
    for call, told in refused:
        with pytest.raises(InvalidValueError, match=told):
            call()
