"""Randomizers of one bounded number: laws, exact privacy, unbiasedness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma, gaussian_delta
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import BOUNDED, BoundedRandomizer

SAMPLES = 200_000


def make(name: str, low: float = -2.0, high: float = 6.0) -> BoundedRandomizer:
    return BoundedRandomizer(name, low, high, 1e-5 if name == "gaussian" else 0.0)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("value", [-2.0, 1.0])
@pytest.mark.parametrize("epsilon0", [0.3, 2.0])
def test_reports_are_unbiased_with_the_stated_variance(
    name: str, value: float, epsilon0: float
) -> None:
    """Five standard errors: false alarm below 1e-6; a 3% wrong variance is 8 or more of them."""
    randomizer = make(name)
    reports = randomizer.randomize(np.full(SAMPLES, value), epsilon0, np.random.default_rng(1))
    scales = randomizer.scales(np.full(1, epsilon0))
    variance = float(randomizer.variances(scales, mean=value)[0])
    assert abs(reports.mean() - value) < 5 * math.sqrt(variance / SAMPLES)
    squares = (reports - value) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(SAMPLES) + 1e-9
    assert float(randomizer.variances(scales)[0]) >= variance


def test_laws() -> None:
    rng = np.random.default_rng(2)
    values = np.full(SAMPLES, 1.0)
    laplace = (make("laplace").randomize(values, 0.5, rng) - 1.0) / (8.0 / 0.5)
    assert stats.kstest(laplace, "laplace").pvalue > 1e-6
    assert stats.kstest(1.02 * laplace, "laplace").pvalue < 1e-2
    sigma = analytic_sigma(0.5, 1e-5, 1.0) * 8.0
    gaussian = (make("gaussian").randomize(values, 0.5, rng) - 1.0) / sigma
    assert stats.kstest(gaussian, "norm").pvalue > 1e-6
    assert gaussian_delta(0.5, 8.0 / sigma) <= 1e-5


@pytest.mark.parametrize("epsilon0", [0.1, 1.0, 5.0])
def test_duchi_is_binary_randomized_response_of_a_random_end(epsilon0: float) -> None:
    randomizer = make("duchi")
    (scale,) = randomizer.scales(np.array([epsilon0]))
    e = math.exp(epsilon0)
    assert scale == pytest.approx(4.0 * (e + 1) / (e - 1))
    chance = {x: 0.5 + 0.5 * (x - 2.0) / scale for x in (-2.0, 0.5, 6.0)}
    assert chance[6.0] / chance[-2.0] == pytest.approx(e)
    assert (1 - chance[-2.0]) / (1 - chance[6.0]) == pytest.approx(e)
    for value, high in chance.items():
        reports = randomizer.randomize(np.full(SAMPLES, value), epsilon0, np.random.default_rng(3))
        ends = np.unique(reports)
        assert ends == pytest.approx([2.0 - scale, 2.0 + scale])
        assert stats.binomtest(int((reports > 2).sum()), SAMPLES, high).pvalue > 1e-6


def test_many_gaussian_budgets_are_rounded_to_the_safe_side() -> None:
    rng = np.random.default_rng(4)
    epsilon0 = np.concatenate([rng.uniform(0.5, 1, 3000), 2.0 ** (np.arange(-128, 1) / 128)])
    delta0 = np.where(np.arange(epsilon0.size) % 2, 1e-5, 1e-6)
    sigma = BoundedRandomizer("gaussian", 0.0, 1.0, delta0).scales(epsilon0)
    checked = np.r_[0:200, 3000:3129]
    exact = np.array([analytic_sigma(float(epsilon0[i]), float(delta0[i]), 1.0) for i in checked])
    ratio = sigma[checked] / exact
    assert ratio.min() >= 1.0 - 1e-12
    assert 1.001 < ratio.max() < 1.006
    few = BoundedRandomizer("gaussian", 0.0, 1.0, 1e-5).scales(np.repeat([0.3, 0.7], 2000))
    assert few[0] == analytic_sigma(0.3, 1e-5, 1.0)
    assert few[-1] == analytic_sigma(0.7, 1e-5, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("cauchy", 0.0, 1.0, 0.0),
        ("laplace", 1.0, 1.0, 0.0),
        ("laplace", 0.0, math.inf, 0.0),
        ("gaussian", 0.0, 1.0, 0.0),
        ("gaussian", 0.0, 1.0, np.array([1e-5, 0.0])),
    ],
)
def test_bad_randomizers(arguments: tuple) -> None:
    with pytest.raises(InvalidValueError):
        BoundedRandomizer(*arguments)


@pytest.mark.parametrize(
    ("values", "epsilon0"),
    [
        (np.array([6.1]), 1.0),
        (np.array([np.nan]), 1.0),
        (np.array([]), 1.0),
        (np.array([[1.0]]), 1.0),
        (np.array(["1"]), 1.0),
        (np.array([1.0]), 0.0),
        (np.array([1.0]), np.nan),
        (np.array([1.0, 2.0]), np.array([1.0])),
    ],
)
def test_bad_inputs(values: np.ndarray, epsilon0: Any) -> None:
    for name in BOUNDED:
        with pytest.raises(InvalidValueError):
            make(name).randomize(values, epsilon0, np.random.default_rng(0))
