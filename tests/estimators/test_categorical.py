"""Categorical randomizers: exact local privacy by enumeration, and samplers that follow the law."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import linalg, stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import CATEGORICAL, Reports, categorical_randomizer

EPSILONS = [0.1, 1.0, 4.0]
K = 5
SAMPLES = 200_000
ALARM = 1e-6  # False-alarm probability of each chi-square test, were the seed fresh.


def law(name: str, k: int, epsilon0: float) -> np.ndarray:
    """The law of the report, [k inputs, outputs], written from the definitions.

    oue and rappor: outputs are the 2^k bit vectors; blh: the bit XOR h(value) agreement for the
    four kinds of hash on two values; hadamard: the columns.
    """
    e = math.exp(epsilon0)
    if name == "krr":
        return (np.ones((k, k)) + (e - 1) * np.eye(k)) / (e + k - 1)
    if name == "hadamard":
        size = 1
        while size <= k:
            size *= 2
        signs = linalg.hadamard(size)[1 : k + 1]
        return np.where(signs == 1, 2 * e, 2) / (size * (e + 1))
    one, zero = {
        "oue": (0.5, 1 / (e + 1)),
        "rappor": (math.sqrt(e) / (math.sqrt(e) + 1), 1 / (math.sqrt(e) + 1)),
    }[name]
    table = []
    for value in range(k):
        chances = np.where(np.arange(k) == value, one, zero)
        table.append(
            [
                np.prod(np.where(bits, chances, 1 - chances))
                for bits in itertools.product((False, True), repeat=k)
            ]
        )
    return np.array(table)


def output_index(name: str, reports: Reports, k: int) -> np.ndarray:
    if name in ("oue", "rappor"):
        return reports.codes.astype(int) @ (2 ** np.arange(k)[::-1])
    return reports.codes.astype(int)


@pytest.mark.parametrize("name", ["krr", "oue", "rappor", "hadamard"])
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_local_privacy_is_exactly_epsilon0(name: str, epsilon0: float) -> None:
    table = law(name, K, epsilon0)
    assert table.sum(axis=1) == pytest.approx(np.ones(K))
    ratio = np.max(table[:, None, :] / table[None, :, :])
    assert math.log(ratio) == pytest.approx(epsilon0, rel=1e-9)


@pytest.mark.parametrize("name", ["krr", "oue", "rappor", "hadamard"])
@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_samples_follow_the_law(name: str, epsilon0: float) -> None:
    randomizer = categorical_randomizer(name, K)
    table = law(name, K, epsilon0)
    rng = np.random.default_rng(5)
    for value in (0, K - 1):
        reports = randomizer.randomize(np.full(SAMPLES, value), epsilon0, rng)
        counts = np.bincount(output_index(name, reports, K), minlength=table.shape[1])
        expected = SAMPLES * table[value]
        rare = expected < 5
        assert counts[rare].sum() < 5 * expected[rare].sum() + 25
        kept = ~rare
        assert chisquare(counts[kept], expected[kept]) > ALARM
        # Power: 10% more budget is noticed wherever the budget matters at this sample size.
        if epsilon0 >= 1:
            wrong = SAMPLES * law(name, K, 1.1 * epsilon0)[value]
            assert chisquare(counts[kept], wrong[kept]) < ALARM


def chisquare(counts: np.ndarray, expected: np.ndarray) -> float:
    scaled = expected * counts.sum() / expected.sum()
    return float(stats.chisquare(counts, scaled).pvalue)


@pytest.mark.parametrize("epsilon0", EPSILONS)
def test_binary_local_hashing_follows_its_definition(epsilon0: float) -> None:
    """Given the hash, only the bit depends on the value: chances e^eps : 1, exactly epsilon0."""
    randomizer = categorical_randomizer("blh", K)
    values = np.arange(SAMPLES) % K
    reports = randomizer.randomize(values, epsilon0, np.random.default_rng(6))
    hashed = np.array(
        [
            ((int(a) * int(v) + int(b)) % 2**64) >> 63
            for (a, b, _), v in zip(reports.codes[:20_000], values, strict=False)
        ]
    )
    agree = int((hashed == reports.codes[:20_000, 2]).sum())
    chance = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
    assert stats.binomtest(agree, 20_000, chance).pvalue > ALARM
    # The hash itself says nothing: multipliers and offsets are uniform whatever the value.
    for column in (0, 1):
        uniform = reports.codes[:, column].astype(np.float64) / 2.0**64
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
@pytest.mark.parametrize("k", [2, 3, 7, 16])
def test_weighted_support_against_the_definition(name: str, k: int) -> None:
    rng = np.random.default_rng(8)
    randomizer = categorical_randomizer(name, k)
    reports = randomizer.randomize(rng.integers(0, k, 50), rng.uniform(0.1, 3, 50), rng)
    weights = rng.normal(size=(2, 50))
    table = np.array([supports(name, report, k) for report in reports.codes])
    np.testing.assert_allclose(randomizer.supported(reports, weights), weights @ table, atol=1e-12)
    np.testing.assert_allclose(
        randomizer.supported(reports, weights[0]), weights[0] @ table, atol=1e-12
    )


@pytest.mark.parametrize(
    ("values", "epsilon0"),
    [
        (np.array([0, 4]), 1.0),
        (np.array([-1]), 1.0),
        (np.array([0.5]), 1.0),
        (np.array([], dtype=int), 1.0),
        (np.array([[0]]), 1.0),
        (np.array([True]), 1.0),
        (np.array([0, 1]), 0.0),
        (np.array([0, 1]), np.inf),
        (np.array([0, 1]), np.array([1.0, np.nan])),
        (np.array([0, 1]), np.array([1.0, 1.0, 1.0])),
        (np.array([0, 1]), "1"),
    ],
)
def test_bad_inputs(values: np.ndarray, epsilon0: Any) -> None:
    for name in CATEGORICAL:
        with pytest.raises(InvalidValueError):
            randomizer = categorical_randomizer(name, 4)
            randomizer.randomize(values, epsilon0, np.random.default_rng(0))


@pytest.mark.parametrize("categories", [1, 0, 2.0, 2**32, True])
def test_bad_number_of_categories(categories: object) -> None:
    with pytest.raises(InvalidValueError, match="categories"):
        categorical_randomizer("krr", categories)  # type: ignore[arg-type]


def test_unknown_randomizer_gets_a_suggestion() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'hadamard'"):
        categorical_randomizer("hadamrd", 3)
