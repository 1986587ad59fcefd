"""Means and frequencies: unbiasedness, coverage of the intervals, and the published forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import (
    ESTIMATORS,
    BoundedRandomizer,
    KaryRandomizedResponse,
    estimate_frequency,
    estimate_mean,
)

USERS = 400
REPEATS = 600
K = 4
# 600 intervals at 95%: the count covered is 570 +- 5.3; below 543 has probability under 1e-6, and
# intervals 20% too short (coverage 88%) fail with probability above 0.99.
LEAST_COVERED = 543
MOST_COVERED = 594


def of_numbers(name: str) -> BoundedRandomizer:
    return BoundedRandomizer(name, 20.0, 80.0)


def population(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(categories, numbers, budgets) of USERS users."""
    categories = rng.choice(K, USERS, p=[0.5, 0.3, 0.15, 0.05])
    return categories, np.clip(rng.normal(45, 12, USERS), 20, 80), rng.choice([0.3, 1, 3], USERS)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_frequency_is_unbiased_and_covered(estimator: str) -> None:
    """Budgets are dealt at random, anew in every repetition; the users' values stay the same."""
    rng = np.random.default_rng(10)
    categories, _, budgets = population(rng)
    truth = np.bincount(categories, minlength=K) / USERS
    randomizer = KaryRandomizedResponse(K)
    values, errors, covered = [], [], np.zeros(K, int)
    for _ in range(REPEATS):
        dealt = rng.permutation(budgets)
        reports = randomizer.randomize(categories, dealt, rng)
        estimate = estimate_frequency(reports, dealt, randomizer, estimator=estimator)
        values.append(estimate.value)
        errors.append(estimate.error)
        covered += (estimate.low <= truth) & (truth <= estimate.high)
    spread = np.std(values, axis=0)
    assert (np.abs(np.mean(values, axis=0) - truth) < 5 * spread / math.sqrt(REPEATS)).all()
    assert (covered >= LEAST_COVERED).all() and (covered <= MOST_COVERED).all(), covered
    # The standard error is right within 15% (its sampling error here is 3%).
    assert np.sqrt(np.mean(np.square(errors), axis=0)) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        *(("laplace", estimator) for estimator in ESTIMATORS),
        ("duchi", "inverse-variance"),
    ],
)
def test_mean_is_unbiased_and_covered(name: str, estimator: str) -> None:
    rng = np.random.default_rng(11)
    _, numbers, budgets = population(rng)
    randomizer = of_numbers(name)
    values, covered = [], 0
    for _ in range(REPEATS):
        dealt = rng.permutation(budgets)
        reports = randomizer.randomize(numbers, dealt, rng)
        estimate = estimate_mean(reports, dealt, randomizer, estimator=estimator)
        values.append(estimate.value[0])
        covered += int(estimate.low[0] <= numbers.mean() <= estimate.high[0])
    spread = float(np.std(values))
    assert abs(np.mean(values) - numbers.mean()) < 5 * spread / math.sqrt(REPEATS)
    # Unequal weights let in the data's spread, which is bounded from above: then longer is fine.
    conservative = name == "duchi" or estimator == "inverse-variance"
    assert LEAST_COVERED <= covered <= (REPEATS if conservative else MOST_COVERED)


def test_only_equal_weights_are_unbiased_when_budgets_go_with_the_data() -> None:
    rng = np.random.default_rng(12)
    categories, numbers, budgets = population(rng)
    # Who has more budget has the larger value.
    ranks = np.argsort(np.argsort(budgets))
    categories, numbers = np.sort(categories)[ranks], np.sort(numbers)[ranks]
    share = np.mean(categories == 0)
    krr, laplace = KaryRandomizedResponse(K), of_numbers("laplace")
    errors: dict[tuple[str, str], list[float]] = {}
    for _ in range(300):
        reports = krr.randomize(categories, budgets, rng)
        numeric = laplace.randomize(numbers, budgets, rng)
        for name in ESTIMATORS:
            top = estimate_frequency(reports, budgets, krr, estimator=name).value[0]
            mean = estimate_mean(numeric, budgets, laplace, estimator=name).value[0]
            errors.setdefault(("share", name), []).append(top - share)
            errors.setdefault(("mean", name), []).append(mean - numbers.mean())
    score = {k: abs(np.mean(e)) / (np.std(e) / math.sqrt(300)) for k, e in errors.items()}
    assert score["share", "unbiased"] < 5 and score["mean", "unbiased"] < 5
    # Algorithm 1 is the plain average; Algorithm 2 is not unbiased here.
    assert score["mean", "published"] < 5 and score["share", "published"] > 10
    assert score["share", "inverse-variance"] > 10 and score["mean", "inverse-variance"] > 10


def test_published_forms_by_hand() -> None:
    """Algorithm 2: A = sum y, B = sum 1/(1 + e^eps), z = (A - B)/(n - 2B). Algorithm 1: average."""
    epsilon0 = np.array([0.5, 1.0, 2.0, 0.1, 1.5])
    bits = np.array([1, 0, 1, 1, 0])
    a, b = bits.sum(), (1 / (1 + np.exp(epsilon0))).sum()
    krr = KaryRandomizedResponse(2)
    estimate = estimate_frequency(bits, epsilon0, krr, estimator="published")
    assert estimate.value[1] == pytest.approx((a - b) / (5 - 2 * b), rel=1e-12)
    reports = np.array([3.0, 40.0, 100.0, -7.0, 55.5])
    mean = estimate_mean(reports, epsilon0, of_numbers("laplace"), estimator="published")
    assert mean.value[0] == pytest.approx(reports.mean(), rel=1e-12)
    deviation = math.sqrt((2 * (60 / epsilon0) ** 2).sum()) / 5
    assert mean.error[0] == pytest.approx(deviation, rel=1e-12)
    assert mean.high[0] - mean.value[0] == pytest.approx(1.959964 * deviation, rel=1e-6)


@pytest.mark.parametrize(
    ("reports", "epsilon0", "more", "told"),
    [
        (np.array([]), 1.0, {}, "reports"),
        (np.array([1.0, np.nan]), 1.0, {}, "reports"),
        (np.zeros(3), 1.0, {"confidence": 1.0}, "confidence"),
        (np.zeros(2), np.array([1.0, 0.0]), {}, "epsilon0"),
        (np.zeros(2), 1.0, {"estimator": "best"}, "estimator"),
        (np.array([], dtype=int), 1.0, {}, "reports"),
        (np.array([0, 1]), np.array([1.0, 1e-300]), {}, "too small to estimate"),
        (np.array([0, 1]), 1.0, {"estimator": "publishd"}, "did you mean 'published'"),
    ],
)
def test_bad_reports_budgets_and_names(
    reports: Any, epsilon0: Any, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidValueError, match=told):
        if reports.dtype.kind == "i":
            estimate_frequency(reports, epsilon0, KaryRandomizedResponse(2), **more)
        else:
            estimate_mean(reports, epsilon0, of_numbers("laplace"), **more)
