"""Randomizers of categories and of bounded numbers: laws, exact local privacy, variances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import BOUNDED, BoundedRandomizer, KaryRandomizedResponse

K = 5
SAMPLES = 200_000
ALARM = 1e-6  # False-alarm probability of each test, were the seed fresh.


@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
def test_categories_follow_a_law_of_exactly_this_privacy(epsilon0: float) -> None:
    """A budget 10% larger is noticed."""
    rng = np.random.default_rng(5)
    for value in (0, K - 1):
        reports = KaryRandomizedResponse(K).randomize(np.full(SAMPLES, value), epsilon0, rng)
        counts = np.bincount(reports, minlength=K)
        for budget, right in ((epsilon0, True), (1.1 * epsilon0, False)):
            law = np.where(np.arange(K) == value, math.exp(budget), 1.0)
            expected = SAMPLES * law / law.sum()
            assert (stats.chisquare(counts, expected).pvalue > ALARM) == right


def bounded(name: str) -> BoundedRandomizer:
    return BoundedRandomizer(name, -2.0, 6.0)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize(("value", "epsilon0"), [(-2.0, 0.3), (1.0, 2.0)])
def test_numbers_are_unbiased_with_the_stated_law_and_variance(
    name: str, value: float, epsilon0: float
) -> None:
    """Five standard errors: false alarm below 1e-6; a 3% wrong variance is 8 or more of them."""
    randomizer = bounded(name)
    reports = randomizer.randomize(np.full(SAMPLES, value), epsilon0, np.random.default_rng(1))
    scales = randomizer.scales(np.full(1, epsilon0))
    variance = float(randomizer.variances(scales, mean=value)[0])
    assert abs(reports.mean() - value) < 5 * math.sqrt(variance / SAMPLES)
    squares = (reports - value) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(SAMPLES) + 1e-9
    assert float(randomizer.variances(scales)[0]) >= variance
    if name == "laplace":
        assert stats.kstest((reports - value) * epsilon0 / 8.0, "laplace").pvalue > ALARM


def test_duchi_is_binary_randomized_response_of_a_random_end() -> None:
    randomizer, e = bounded("duchi"), math.e
    (scale,) = randomizer.scales(np.array([1.0]))
    assert scale == pytest.approx(4.0 * (e + 1) / (e - 1))
    chance = {x: 0.5 + 0.5 * (x - 2.0) / scale for x in (-2.0, 0.5, 6.0)}
    assert chance[6.0] / chance[-2.0] == pytest.approx(e)
    assert (1 - chance[-2.0]) / (1 - chance[6.0]) == pytest.approx(e)
    for value, high in chance.items():
        reports = randomizer.randomize(np.full(SAMPLES, value), 1.0, np.random.default_rng(3))
        assert np.unique(reports) == pytest.approx([2.0 - scale, 2.0 + scale])
        assert stats.binomtest(int((reports > 2).sum()), SAMPLES, high).pvalue > ALARM


@pytest.mark.parametrize(
    ("values", "epsilon0"),
    [
        ([0, 7], 1.0),
        ([0.5, math.nan], 1.0),
        ([], 1.0),
        ([[0]], 1.0),
        (["1"], 1.0),
        ([0, 1], 0.0),
        ([0, 1], math.nan),
        ([0, 1], [1.0, 1.0, 1.0]),
        ([0, 1], "1"),
    ],
)
def test_bad_inputs(values: list[Any], epsilon0: Any) -> None:
    epsilon0 = np.array(epsilon0) if isinstance(epsilon0, list) else epsilon0
    for randomizer in (KaryRandomizedResponse(4), *map(bounded, BOUNDED)):
        with pytest.raises(InvalidValueError):
            randomizer.randomize(np.array(values), epsilon0, np.random.default_rng(0))


@pytest.mark.parametrize(
    "arguments",
    [
        ("cauchy", 0.0, 1.0),
        ("laplace", 1.0, 1.0),
        ("laplace", 0.0, math.inf),
    ],
)
def test_bad_randomizers_of_numbers(arguments: tuple) -> None:
    with pytest.raises(InvalidValueError):
        BoundedRandomizer(*arguments)


def test_bad_randomizers_of_categories() -> None:
    for categories in (1, 2.0, 2**32, True):
        with pytest.raises(InvalidValueError, match="categories"):
            KaryRandomizedResponse(categories)  # type: ignore[arg-type]
