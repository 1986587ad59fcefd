"""Frequency oracles: exact distributions, enumerated; unbiasedness and variance over these
distributions; samples."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import (
    ESTIMATORS,
    ORACLES,
    BoundedRandomizer,
    FrequencyOracle,
    estimate_frequency,
    estimate_mean,
    expected_frequency_error,
    expected_mean_error,
)
from fl_shuffle.estimators.oracles import walsh_hadamard

Law = dict[tuple[int, ...], Fraction]
SIZES = {"krr": 4, "oue": 3, "rappor": 3, "blh": 3, "hadamard": 5}
SAMPLES = 60_000
ALARM = 1e-6


def unary(k: int, x: int, p: Fraction, q: Fraction) -> Law:
    chances = [p if v == x else q for v in range(k)]
    return {
        bits: math.prod(c if bit else 1 - c for bit, c in zip(bits, chances, strict=True))
        for bits in itertools.product((0, 1), repeat=k)
    }


def exact_law(name: str, root: Fraction, x: int) -> Law:
    """Every report of value `x` with its probability, from the definition; e^epsilon0 = root^2."""
    k, e = SIZES[name], root**2
    p, q = e / (e + 1), 1 / (e + 1)
    if name == "krr":
        return {(y,): (e if y == x else Fraction(1)) / (e + k - 1) for y in range(k)}
    if name == "oue":
        return unary(k, x, Fraction(1, 2), q)
    if name == "rappor":
        return unary(k, x, root / (root + 1), 1 / (root + 1))
    if name == "blh":
        # Four vectors a, two bits c: the hash is <a, x> + c.
        hashed = {(a, c): (sum(a >> i & x >> i & 1 for i in (0, 1)) + c) % 2
                  for a in range(4) for c in (0, 1)}  # fmt: skip
        return {(4 * a + 2 * c + bit,): (p if bit == hashed[a, c] else q) / 8
                for a, c in hashed for bit in (0, 1)}  # fmt: skip
    matrix = reduce(np.kron, [np.array([[1, 1], [1, -1]])] * 3)
    return {(y,): (p if matrix[x + 1, y] > 0 else q) / 4 for y in range(8)}


def as_reports(name: str, outcomes: list[tuple[int, ...]]) -> np.ndarray:
    if name in ("oue", "rappor"):
        return np.array(outcomes, dtype=bool)
    return np.array(outcomes)[:, 0]


def oracle(name: str) -> FrequencyOracle:
    return ORACLES[name](SIZES[name])


@pytest.mark.parametrize("root", [Fraction(2), Fraction(11, 10)])
@pytest.mark.parametrize("name", ORACLES)
def test_every_report_has_a_ratio_of_at_most_e_epsilon(name: str, root: Fraction) -> None:
    """Exactly, in fractions, and the ratio is reached."""
    laws = [exact_law(name, root, x) for x in range(SIZES[name])]
    assert all(sum(law.values()) == 1 for law in laws)
    ratios = [a[y] / b[y] for a, b in itertools.permutations(laws, 2) for y in a]
    assert max(ratios) == root**2


@pytest.mark.parametrize("name", ORACLES)
def test_support_has_the_stated_probabilities(name: str) -> None:
    """p and q, from every report's support as the code counts it and its exact probability."""
    root, kind = Fraction(3, 2), oracle(name)
    p, q = kind.probabilities(np.array([2 * math.log(1.5)]))
    for x in range(SIZES[name]):
        law = exact_law(name, root, x)
        reports = as_reports(name, list(law))
        supports = [kind.support(reports[i : i + 1], np.ones(1)) for i in range(len(law))]
        assert set(np.concatenate(supports).tolist()) <= {0.0, 1.0}
        chances = [float(mass) for mass in law.values()] @ np.array(supports)
        right = np.where(np.arange(SIZES[name]) == x, p[0], q[0])
        assert chances == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("name", ORACLES)
def test_reports_are_drawn_with_the_exact_law(name: str) -> None:
    """False alarm 1e-6; a budget 10% larger is noticed."""
    kind, x = oracle(name), SIZES[name] - 1
    for factor, right in ((1.0, True), (1.1, False)):
        law = exact_law(name, Fraction(2), x)
        reports = kind.randomize(
            np.full(SAMPLES, x), factor * math.log(4), np.random.default_rng(3)
        )
        drawn = reports.astype(int) if reports.ndim == 2 else reports[:, None]
        keys, times = np.unique(drawn, axis=0, return_counts=True)
        counts = dict(zip(map(tuple, keys.tolist()), times.tolist(), strict=True))
        assert counts.keys() <= law.keys()
        found = stats.chisquare(
            [counts.get(y, 0) for y in law], [float(mass) * SAMPLES for mass in law.values()]
        )
        assert (found.pvalue > ALARM) == right


@pytest.mark.parametrize("values", [(0, 1), (2, 2)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ORACLES)
def test_mean_and_variance_over_all_reports_are_exact(
    name: str, estimator: str, values: tuple[int, int]
) -> None:
    """Two users, budgets dealt to them at random: every pair of reports, with its probability."""
    kind, roots = oracle(name), (Fraction(2), Fraction(6, 5))
    budgets = np.array([2 * math.log(root) for root in roots])
    mean, square = np.zeros(SIZES[name]), np.zeros(SIZES[name])
    for dealt in (values, values[::-1]):
        laws = [exact_law(name, root, x) for root, x in zip(roots, dealt, strict=True)]
        average = np.zeros(SIZES[name])
        for pair in itertools.product(*laws):
            chance = float(laws[0][pair[0]] * laws[1][pair[1]])
            reports = as_reports(name, list(pair))
            found = estimate_frequency(reports, budgets, kind, estimator=estimator).value
            average += chance * found
            square += 0.5 * chance * found**2
        mean += 0.5 * average
        if estimator == "unbiased":
            assert average == pytest.approx(np.bincount(values, minlength=SIZES[name]) / 2)
    share = np.bincount(values, minlength=SIZES[name]) / 2
    assert mean == pytest.approx(share, abs=1e-12)
    expected = [
        expected_frequency_error(budgets, kind, estimator=estimator, share=one) for one in share
    ]
    assert np.sqrt(square - mean**2) == pytest.approx(expected, rel=1e-9)
    largest = expected_frequency_error(budgets, kind, estimator=estimator)
    grid = [
        expected_frequency_error(budgets, kind, estimator=estimator, share=one)
        for one in np.linspace(0, 1, 101)
    ]
    assert largest == pytest.approx(max(grid), rel=1e-3) and largest >= max(grid) * (1 - 1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("values", [(20.0, 80.0), (35.0, 60.0), (50.0, 50.0)])
def test_expected_error_of_a_mean_is_exact(estimator: str, values: tuple[float, float]) -> None:
    """Two users: duchi's four pairs of reports; Laplace's variance by hand. Budgets are dealt."""
    budgets, x = np.array([0.7, 2.0]), np.array(values)
    facts = {"mean": float(x.mean()), "spread": float(x.var())}
    kind = BoundedRandomizer("duchi", 20.0, 80.0)
    scales = kind.scales(budgets)
    first = second = 0.0
    for dealt in (x, x[::-1]):
        chances = 0.5 + 0.5 * (dealt - 50.0) / scales
        for signs in itertools.product((1, -1), repeat=2):
            chance = math.prod(c if s > 0 else 1 - c for c, s in zip(chances, signs, strict=True))
            reports = 50.0 + scales * np.array(signs)
            (found,) = estimate_mean(reports, budgets, kind, estimator=estimator).value
            first, second = first + 0.5 * chance * found, second + 0.5 * chance * found**2
    assert first == pytest.approx(x.mean(), rel=1e-12)
    expected = expected_mean_error(budgets, kind, estimator=estimator, **facts)
    assert expected == pytest.approx(math.sqrt(second - first**2), rel=1e-9)
    assert expected <= expected_mean_error(budgets, kind, estimator=estimator) * (1 + 1e-12)

    kind = BoundedRandomizer("laplace", 20.0, 80.0)
    noise = 2.0 * (60.0 / budgets) ** 2
    weights = 1.0 / noise if estimator == "inverse-variance" else np.ones(2)
    weights = weights / weights.sum()
    dealt_twice = [weights @ x, weights @ x[::-1]]
    by_hand = math.sqrt(weights**2 @ noise + np.var(dealt_twice))
    expected = expected_mean_error(budgets, kind, estimator=estimator, **facts)
    assert expected == pytest.approx(by_hand, rel=1e-12)
    assert expected <= expected_mean_error(budgets, kind, estimator=estimator) * (1 + 1e-12)


RUNS, USERS = 300, 500
THRESHOLD = -stats.norm.ppf(0.5 * ALARM)
SEEN = THRESHOLD - stats.norm.ppf(ALARM)
"""A bias of this many standard errors of the mean over all runs is seen but for `ALARM`."""


@pytest.mark.parametrize("factor", [1.0, 1.15])
@pytest.mark.parametrize("name", ORACLES)
def test_estimates_over_many_runs_have_no_bias(name: str, factor: float) -> None:
    """False alarm 1e-6 a category; a bias of 10 standard errors of the mean, 0.58 of one estimate's
    own, is seen with probability above 0.999999. Budgets that are told 15% too large bias an
    estimate by more, and are seen."""
    kind, rng = ORACLES[name](6), np.random.default_rng(21)
    values = rng.choice(6, USERS, p=[0.6, 0.2, 0.1, 0.05, 0.03, 0.02])
    budgets = rng.choice([1.0, 2.0, 3.0], USERS)
    truth = np.bincount(values, minlength=6) / USERS
    found = np.array([
        estimate_frequency(kind.randomize(values, budgets, rng), factor * budgets, kind).value
        for _ in range(RUNS)
    ])  # fmt: skip
    error = found.std(axis=0, ddof=1) / math.sqrt(RUNS)
    scores = np.abs(found.mean(axis=0) - truth) / error
    assert SEEN < 10.0
    assert (scores.max() < THRESHOLD) == (factor == 1.0)
    if factor == 1.0:
        expected = [
            expected_frequency_error(budgets, kind, estimator="unbiased", share=one)
            for one in truth
        ]
        assert found.std(axis=0, ddof=1) == pytest.approx(expected, rel=0.2)  # 4.9 deviations


@pytest.mark.parametrize("name", ORACLES)
def test_published_estimate_knows_no_reports_budget(name: str) -> None:
    """Budgets dealt to the same reports in another order change neither values nor errors."""
    kind, rng = ORACLES[name](5), np.random.default_rng(2)
    budgets = rng.choice([0.5, 1.0, 3.0], 300)
    reports = kind.randomize(rng.integers(0, 5, 300), budgets, rng)
    first, second = (
        estimate_frequency(reports, dealt, kind, estimator="published")
        for dealt in (budgets, rng.permutation(budgets))
    )
    assert first.value == pytest.approx(second.value, rel=1e-9, abs=1e-12)
    assert first.error == pytest.approx(second.error, rel=1e-9)


def test_published_mean_knows_no_reports_budget() -> None:
    """The same for Laplace reports, and for the signs of duchi."""
    rng, values = np.random.default_rng(2), np.linspace(20.0, 80.0, 300)
    budgets = rng.choice([0.5, 1.0, 3.0], 300)
    for name in ("laplace", "duchi"):
        kind, found = BoundedRandomizer(name, 20.0, 80.0), []
        reports = kind.randomize(values, budgets, rng)
        for dealt in (budgets, rng.permutation(budgets)):
            if name == "duchi":
                reports = 50.0 + np.sign(reports - 50.0) * kind.scales(dealt)
            found.append(estimate_mean(reports, dealt, kind, estimator="published"))
        assert found[0].value == pytest.approx(found[1].value, rel=1e-9)
        assert found[0].error == pytest.approx(found[1].error, rel=1e-9)


def test_walsh_hadamard_is_the_matrix_product() -> None:
    values = np.random.default_rng(0).normal(size=16)
    matrix = reduce(np.kron, [np.array([[1, 1], [1, -1]])] * 4)
    assert walsh_hadamard(values) == pytest.approx(matrix @ values, abs=1e-12)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("k", [2, 7, 8, 9, 1000])
def test_any_number_of_categories_is_counted(name: str, k: int) -> None:
    """With a budget so large that nearly every report is honest."""
    kind, rng = ORACLES[name](k), np.random.default_rng(k)
    values = np.repeat([0, k - 1], [3000, 1000])
    found = estimate_frequency(kind.randomize(values, 12.0, rng), 12.0, kind)
    assert found.value.shape == (k,)
    assert found.value[[0, k - 1]] == pytest.approx([0.75, 0.25], abs=6 * found.error.max())


def test_reports_of_another_randomizer_are_refused() -> None:
    weights = np.ones(2)
    refused = [
        ("krr", np.array([0, 4]), "report = 4"),
        ("blh", np.array([0, 16]), "report = 16"),
        ("hadamard", np.array([8, 0]), "report = 8"),
        ("hadamard", np.array([0.5, 1.0]), "reports"),
        ("oue", np.array([0, 1]), "reports"),
        ("rappor", np.zeros((2, 4), dtype=bool), "reports"),
        ("oue", np.zeros((0, 3), dtype=bool), "at least one"),
        ("blh", np.array([], dtype=int), "at least one"),
        ("krr", np.array([0, 1, 2]), "weights"),
    ]
    for name, reports, told in refused:
        with pytest.raises(InvalidValueError, match=told) as error:
            oracle(name).support(reports, weights)
        assert "\n" not in str(error.value)
