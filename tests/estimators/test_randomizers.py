"""Randomizers of categories and of bounded numbers: laws, exact local privacy, variances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import linalg, stats

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import BOUNDED, CATEGORICAL, BoundedRandomizer, categorical_randomizer

K = 5
SAMPLES = 200_000
ALARM = 1e-6  # False-alarm probability of each test, were the seed fresh.


def law(name: str, epsilon0: float) -> np.ndarray:
    """The law of the report, [K inputs, outputs], written from the definitions.

    oue and rappor: outputs are the 2^K bit vectors; hadamard: the columns.
    """
    e = math.exp(epsilon0)
    if name == "krr":
        return (np.ones((K, K)) + (e - 1) * np.eye(K)) / (e + K - 1)
    if name == "hadamard":
        signs = linalg.hadamard(8)[1 : K + 1]
        return np.where(signs == 1, 2 * e, 2) / (8 * (e + 1))
    root = math.sqrt(e)
    one, zero = (0.5, 1 / (e + 1)) if name == "oue" else (root / (root + 1), 1 / (root + 1))
    bits = np.array(list(itertools.product((False, True), repeat=K)))
    chances = np.where(np.eye(K, dtype=bool), one, zero)
    return np.array([np.prod(np.where(bits, each, 1 - each), axis=1) for each in chances])


def chisquare(counts: np.ndarray, expected: np.ndarray) -> float:
    scaled = expected * counts.sum() / expected.sum()
    return float(stats.chisquare(counts, scaled).pvalue)


@pytest.mark.parametrize("name", ["krr", "oue", "rappor", "hadamard"])
@pytest.mark.parametrize("epsilon0", [1.0, 4.0])
def test_samples_follow_a_law_of_exactly_this_privacy(name: str, epsilon0: float) -> None:
    """A budget 10% larger is noticed."""
    table, wrong = law(name, epsilon0), law(name, 1.1 * epsilon0)
    assert table.sum(axis=1) == pytest.approx(np.ones(K))
    ratio = np.max(table[:, None, :] / table[None, :, :])
    assert math.log(ratio) == pytest.approx(epsilon0, rel=1e-9)
    rng = np.random.default_rng(5)
    for value in (0, K - 1):
        values = np.full(SAMPLES, value)
        codes = categorical_randomizer(name, K).randomize(values, epsilon0, rng).codes.astype(int)
        outputs = codes @ (2 ** np.arange(K)[::-1]) if name in ("oue", "rappor") else codes
        counts, expected = np.bincount(outputs, minlength=table.shape[1]), SAMPLES * table[value]
        kept = expected >= 5
        assert counts[~kept].sum() < 5 * expected[~kept].sum() + 25
        assert chisquare(counts[kept], expected[kept]) > ALARM
        assert chisquare(counts[kept], SAMPLES * wrong[value][kept]) < ALARM


def test_binary_local_hashing_follows_its_definition() -> None:
    """Given the hash, only the bit depends on the value: chances e^eps : 1, exactly epsilon0."""
    values = np.arange(SAMPLES) % K
    codes = categorical_randomizer("blh", K).randomize(values, 1.0, np.random.default_rng(6)).codes
    hashed = np.array(
        [
            ((int(a) * int(v) + int(b)) % 2**64) >> 63
            for (a, b, _), v in zip(codes[:20_000], values, strict=False)
        ]
    )
    agree = int((hashed == codes[:20_000, 2]).sum())
    assert stats.binomtest(agree, 20_000, math.e / (math.e + 1)).pvalue > ALARM
    # The hash itself says nothing: multipliers and offsets are uniform whatever the value.
    for column in (0, 1):
        uniform = codes[:, column].astype(np.float64) / 2.0**64
        assert stats.kstest(uniform[values == 0], uniform[values == 3]).pvalue > ALARM
        assert stats.kstest(uniform, "uniform").pvalue > ALARM


def supports(name: str, report: np.ndarray, k: int) -> list[bool]:
    """Which values one report supports, from the definition."""
    if name == "krr":
        return [v == report for v in range(k)]
    if name == "blh":
        a, b, bit = (int(part) for part in report)
        return [((a * v + b) % 2**64) >> 63 == bit for v in range(k)]
    if name == "hadamard":
        return [bin((v + 1) & int(report)).count("1") % 2 == 0 for v in range(k)]
    return [bool(bit) for bit in report]


@pytest.mark.parametrize("name", list(CATEGORICAL))
@pytest.mark.parametrize("k", [2, 7])
def test_weighted_support_against_the_definition(name: str, k: int) -> None:
    rng = np.random.default_rng(8)
    randomizer = categorical_randomizer(name, k)
    reports = randomizer.randomize(rng.integers(0, k, 50), rng.uniform(0.1, 3, 50), rng)
    weights = rng.normal(size=(2, 50))
    table = np.array([supports(name, report, k) for report in reports.codes])
    for each in (weights, weights[0]):
        found = randomizer.supported(reports, each)
        np.testing.assert_allclose(found, each @ table, atol=1e-12)


def bounded(name: str) -> BoundedRandomizer:
    return BoundedRandomizer(name, -2.0, 6.0, 1e-5 if name == "gaussian" else 0.0)


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
    if name != "duchi":
        laplace = name == "laplace"
        scale = 8.0 / epsilon0 if laplace else 8.0 * analytic_sigma(epsilon0, 1e-5, 1.0)
        assert stats.kstest((reports - value) / scale, name if laplace else "norm").pvalue > ALARM


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


def test_many_gaussian_budgets_are_rounded_to_the_safe_side() -> None:
    rng = np.random.default_rng(4)
    epsilon0 = np.concatenate([rng.uniform(0.5, 1, 3000), 2.0 ** (np.arange(-128, 1) / 128)])
    delta0 = np.where(np.arange(epsilon0.size) % 2, 1e-5, 1e-6)
    sigma = BoundedRandomizer("gaussian", 0.0, 1.0, delta0).scales(epsilon0)
    checked = np.r_[0:100, 3000:3129]
    exact = np.array([analytic_sigma(float(epsilon0[i]), float(delta0[i]), 1.0) for i in checked])
    ratio = sigma[checked] / exact
    assert ratio.min() >= 1.0 - 1e-12 and 1.001 < ratio.max() < 1.006
    few = BoundedRandomizer("gaussian", 0.0, 1.0, 1e-5).scales(np.repeat([0.3, 0.7], 2000))
    assert few[0] == analytic_sigma(0.3, 1e-5, 1.0)
    assert few[-1] == analytic_sigma(0.7, 1e-5, 1.0)


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
    of_all = [*(categorical_randomizer(name, 4) for name in CATEGORICAL), *map(bounded, BOUNDED)]
    for randomizer in of_all:
        with pytest.raises(InvalidValueError):
            randomizer.randomize(np.array(values), epsilon0, np.random.default_rng(0))


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
def test_bad_randomizers_of_numbers(arguments: tuple) -> None:
    with pytest.raises(InvalidValueError):
        BoundedRandomizer(*arguments)


def test_bad_randomizers_of_categories() -> None:
    for categories in (1, 2.0, 2**32, True):
        with pytest.raises(InvalidValueError, match="categories"):
            categorical_randomizer("krr", categories)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="did you mean 'hadamard'"):
        categorical_randomizer("hadamrd", 3)
