"""One call from raw values and budgets: what it estimates, expects, and guarantees; bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators import (
    ESTIMATORS,
    ORACLES,
    BoundedRandomizer,
    HadamardOracle,
    KaryRandomizedResponse,
    central_guarantee,
    expected_frequency_error,
    expected_mean_error,
)
from tests import oracles

ALARM = 1e-6
THRESHOLD = -norm.ppf(0.5 * ALARM)
RUNS, USERS = 100, 400
BUDGETS = np.repeat([0.3, 1.0, 2.0], [200, 150, 50])


def hadamard_matrix(epsilon0: float, k: int) -> oracles.Matrix:
    """Three values: rows 1 to 3 of a Hadamard matrix of order 4, whose columns all differ.

    Order 8 has each of these columns twice, which hides and shows nothing more.
    """
    rows = [[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]][:k]
    high = math.exp(epsilon0) / (1.0 + math.exp(epsilon0))
    return [[(high if sign > 0 else 1.0 - high) / 2.0 for sign in row] for row in rows]


MATRICES = {
    "krr": oracles.krr_matrix,
    "oue": oracles.oue_matrix,
    "rappor": oracles.rappor_matrix,
    "blh": oracles.hash_matrix,
    "hadamard": hadamard_matrix,
}


def exact_delta(
    name: str, k: int, budgets: tuple[float, ...], epsilon: float, *, shown: bool
) -> float:
    """The most exposed user's exact delta, everybody's value at its worst; `shown`: each report
    carries its budget."""
    levels = sorted(set(budgets))

    def law(row: list[float], budget: float) -> list[float]:
        if not shown:
            return row
        return [mass * (budget == level) for level in levels for mass in row]

    matrices = [[law(row, each) for row in MATRICES[name](each, k)] for each in budgets]
    return max(
        oracles.worst_delta([matrices[j], *matrices[:j], *matrices[j + 1 :]], epsilon)
        for j in range(len(budgets))
    )


@pytest.mark.parametrize("budgets", [(1.0, 0.5, 1.0), (2.0, 1.0, 1.0)])
@pytest.mark.parametrize("name", ORACLES)
def test_central_epsilon_is_above_the_exact_shuffle(name: str, budgets: tuple[float, ...]) -> None:
    """Three users. Where the estimator needs each report's budget, so does the attacker see it:
    then the epsilon without budgets would be too small."""
    k, delta = 2 if name == "blh" else 3, 0.05
    kind = ORACLES[name](k)
    for estimator in ESTIMATORS:
        answer = central_guarantee(kind, np.array(budgets), delta=delta, estimator=estimator)
        assert answer.status is Status.PROVEN
        shown = estimator != "published"
        assert exact_delta(name, k, budgets, answer.epsilon, shown=shown) <= delta * (1 + 1e-9)
        if estimator == "published" and name in ("krr", "blh", "hadamard"):
            assert exact_delta(name, k, budgets, answer.epsilon, shown=True) > 1.04 * delta


def test_equal_budgets_ask_the_accountant() -> None:
    for name, kind in ORACLES.items():
        k = None if name in ("blh", "hadamard") else 5
        question = {"randomizer": name, "k": k, "epsilon0": 1.0, "clients": 900, "delta": 1e-6}
        answer = fs.bound(**{key: value for key, value in question.items() if value is not None})
        for estimator in ESTIMATORS:
            found = central_guarantee(kind(5), np.full(900, 1.0), delta=1e-6, estimator=estimator)
            assert found.epsilon == answer.epsilon


def test_uneven_budgets_say_who_hides_whom() -> None:
    laplace, duchi = (BoundedRandomizer(name, 0.0, 1.0) for name in ("laplace", "duchi"))
    for kind, estimator, together in [
        (laplace, "published", True),
        (laplace, "unbiased", True),
        (laplace, "inverse-variance", False),
        (duchi, "published", True),
        (duchi, "unbiased", False),
        (HadamardOracle(9), "published", True),
        (HadamardOracle(9), "inverse-variance", False),
    ]:
        answer = central_guarantee(kind, BUDGETS, delta=1e-5, estimator=estimator)
        assert answer.status is Status.PROVEN and answer.epsilon < 2.0
        assert ("no report says" in answer.assumptions[-1]) == together
        assert ("only reports of equal budgets" in answer.assumptions[-1]) != together
    apart = central_guarantee(laplace, BUDGETS, delta=1e-5, estimator="inverse-variance")
    groups = [
        fs.bound(randomizer="laplace", epsilon0=level, clients=count, delta=1e-5).epsilon
        for level, count in ((0.3, 200), (1.0, 150), (2.0, 50))
    ]
    assert apart.epsilon == max(groups)
    assert central_guarantee(laplace, BUDGETS, delta=1e-5).epsilon < 0.8 * max(groups)


def test_the_smallest_class_may_be_the_most_exposed() -> None:
    """Ten users of a smaller budget beside 5,000 of a larger one."""
    kind, budgets = ORACLES["oue"](50), np.repeat([0.9, 1.0], [10, 5_000])
    small = fs.bound(randomizer="oue", k=50, epsilon0=0.9, clients=10, delta=1e-6)
    assert central_guarantee(kind, budgets, delta=1e-6).epsilon == small.epsilon


def test_error_of_algorithm_1_is_no_line_in_the_budget() -> None:
    """Figure 3 of Chen, Cao, Ge 2024 (GSPA): the mean absolute error by eps_C at f_C = 0.54."""
    kind, found = BoundedRandomizer("laplace", 20.0, 80.0), []
    for conservative in (0.05, 0.1, 0.5):
        budgets = np.repeat([conservative, 0.5, 1.0], [5_400, 3_700, 900])
        error = expected_mean_error(budgets, kind, estimator="published")
        found.append(math.sqrt(2.0 / math.pi) * error)
    assert found == pytest.approx([9.99, 5.05, 1.31], abs=0.005)
    on_the_line = found[0] + (found[2] - found[0]) * (0.1 - 0.05) / (0.5 - 0.05)
    assert on_the_line == pytest.approx(9.02, abs=0.005)


def test_a_user_alone_with_a_budget_has_no_amplification() -> None:
    kind, budgets = KaryRandomizedResponse(4), np.linspace(0.5, 1.0, 300)
    alone = central_guarantee(kind, budgets, delta=1e-5, estimator="unbiased")
    assert alone.epsilon == pytest.approx(1.0, rel=1e-3)
    assert central_guarantee(kind, budgets, delta=1e-5).epsilon < 0.5


def one_call(name: str, estimator: str, seed: int, rng: np.random.Generator) -> Any:
    """The estimate, and the exact truth."""
    shared = {"delta": 1e-5, "randomizer": name, "estimator": estimator, "seed": seed}
    budgets = rng.permutation(BUDGETS)
    if name in ORACLES:
        values = np.repeat([0, 1, 2], [240, 120, 40])
        return fs.private_frequencies(values, budgets, categories=3, **shared), [0.6, 0.3, 0.1]
    numbers = np.linspace(20.0, 50.0, USERS)
    return fs.private_mean(numbers, budgets, low=20, high=80, **shared), [35.0]


CALLS = [("krr", "published"), ("oue", "unbiased"), ("rappor", "published"),
         ("blh", "inverse-variance"), ("hadamard", "published"), ("laplace", "published"),
         ("laplace", "inverse-variance"), ("duchi", "published")]  # fmt: skip


@pytest.mark.parametrize(("name", "estimator"), CALLS)
def test_one_call_is_unbiased_with_the_expected_error(name: str, estimator: str) -> None:
    """False alarm 1e-6 an entry. A bias of 10 standard errors of the mean over the runs, one
    standard error of an estimate, is seen with probability above 0.999999."""
    rng = np.random.default_rng(8)
    calls = [one_call(name, estimator, seed, rng) for seed in range(RUNS)]
    values, truth = np.array([found.value for found, _ in calls]), np.array(calls[0][1])
    deviation = values.std(axis=0, ddof=1)
    score = np.abs(values.mean(axis=0) - truth) / (deviation / math.sqrt(RUNS))
    assert score.max() < THRESHOLD < 10.0 + norm.ppf(ALARM) + 1e-9
    expected = calls[0][0].expected_error
    # Five of its own deviations above: the largest that any data have.
    assert deviation.max() < expected * (1.0 + 5.0 / math.sqrt(2.0 * RUNS))
    assert deviation.max() > 0.5 * expected


def test_one_call_holds_what_the_steps_say() -> None:
    found, _ = one_call("krr", "published", 1, np.random.default_rng(0))
    kind = KaryRandomizedResponse(3)
    expected = expected_frequency_error(BUDGETS, kind, estimator="published")
    assert found.expected_error == pytest.approx(expected, rel=1e-12)
    assert found.central == central_guarantee(kind, BUDGETS, delta=1e-5)
    assert found.local_epsilon == 2.0 and found.unbiased.startswith("only if")
    again, _ = one_call("krr", "published", 1, np.random.default_rng(0))
    assert (again.value == found.value).all()
    mean, _ = one_call("laplace", "published", 1, np.random.default_rng(0))
    assert mean.unbiased == "always" and mean.value.shape == (1,)
    expected = expected_mean_error(BUDGETS, BoundedRandomizer("laplace", 20.0, 80.0))
    assert mean.expected_error == pytest.approx(expected, rel=1e-12)


def test_what_does_not_come_from_reports_is_free_of_data() -> None:
    """Expected error and guarantee are the same whatever the values are."""
    answers = [
        fs.private_frequencies(values, BUDGETS, categories=3, delta=1e-5, randomizer="oue")
        for values in (np.zeros(USERS, dtype=int), np.arange(USERS) % 3)
    ]
    assert answers[0].expected_error == answers[1].expected_error
    assert answers[0].central == answers[1].central


def test_long_reports_are_counted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 users at 7 a time, with a budget at which nearly every report is honest."""
    monkeypatch.setattr("fl_shuffle.estimators.private.CHUNK_REPORTS", 21)
    values = np.repeat([0, 1, 2], [240, 120, 40])
    found = fs.private_frequencies(
        values, 12.0, categories=3, delta=1e-5, randomizer="rappor", seed=4
    )
    assert found.value == pytest.approx([0.6, 0.3, 0.1], abs=6 * found.expected_error)


V, X = np.array([0, 1, 1]), np.array([20.0, 30.0, 80.0])


def frequencies(values: Any = V, epsilon0: Any = 1.0, **changed: Any) -> Any:
    given = {"categories": 2, "delta": 1e-6, **changed}
    return lambda: fs.private_frequencies(values, epsilon0, **given)


def mean(values: Any = X, epsilon0: Any = 1.0, **changed: Any) -> Any:
    given = {"low": 20.0, "high": 80.0, "delta": 1e-6, **changed}
    return lambda: fs.private_mean(values, epsilon0, **given)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (frequencies(categories=1), "categories = 1"),
    (frequencies(categories=2.0), "categories = 2.0"),
    (frequencies(epsilon0=math.nan), "epsilon0 = nan"),
    (frequencies(epsilon0=0.0), "epsilon0 = 0.0"),
    (frequencies(epsilon0=-1.0), "epsilon0 = -1.0"),
    (frequencies(epsilon0=math.inf), "epsilon0 = inf"),
    (frequencies(epsilon0=21.0), "epsilon0 = 21.0.*at most 20"),
    (frequencies(epsilon0=np.array([1.0, math.nan, 1.0])), "epsilon0 = nan"),
    (frequencies(epsilon0=np.ones(2)), r"epsilon0 = 'float64 \[2\]'.*one number, or 3"),
    (frequencies(epsilon0="1"), "epsilon0"),
    (frequencies(epsilon0=1e-300), "too small"),
    (frequencies(values=np.array([0, 2])), "value = 2"),
    (frequencies(values=np.array([0, -1])), "value = -1"),
    (frequencies(values=np.array([0.0, 1.0])), "values.*whole numbers"),
    (frequencies(values=np.array([], dtype=int)), "values"),
    (frequencies(values=np.zeros((2, 2), dtype=int)), "values"),
    (frequencies(randomizer="grr"), "randomizer = 'grr'"),
    (frequencies(randomizer="Hadamar"), "did you mean 'hadamard'"),
    (frequencies(estimator="publishd"), "did you mean 'published'"),
    (frequencies(delta=0.0), "delta = 0.0"),
    (frequencies(delta=1.0), "delta = 1.0"),
    (frequencies(delta=math.nan), "delta = nan"),
    (frequencies(confidence=1.0), "confidence = 1.0"),
    (frequencies(seed=-1), "seed = -1"),
    (frequencies(seed="a"), "seed = 'a'"),
    (mean(values=np.array([19.0, 30.0])), "value = 19.0.*clip"),
    (mean(values=np.array([30.0, math.nan])), "value = nan"),
    (mean(values=np.array([])), "values"),
    (mean(epsilon0=0.0), "epsilon0 = 0.0"),
    (mean(epsilon0=math.nan), "epsilon0 = nan"),
    (mean(epsilon0=math.inf), "epsilon0 = inf"),
    (mean(epsilon0=np.ones(4)), "one number, or 3"),
    (mean(epsilon0=30.0, randomizer="duchi"), "at most 20"),
    (mean(low=80.0), "high = 80.0"),
    (mean(high=math.inf), "high = inf"),
    (mean(randomizer="krr"), "randomizer = 'krr'"),
    (mean(delta=2.0), "delta = 2.0"),
    (lambda: central_guarantee(KaryRandomizedResponse(2), np.array([]), delta=0.1), "epsilon0"),
    (
        lambda: expected_frequency_error(np.ones(3), KaryRandomizedResponse(2), share=1.5),
        "share = 1.5",
    ),
    (
        lambda: expected_mean_error(np.ones(3), BoundedRandomizer("duchi", 0.0, 1.0), mean=2.0),
        "mean = 2.0",
    ),
    (
        lambda: expected_mean_error(
            np.ones(3), BoundedRandomizer("duchi", 0.0, 1.0), mean=0.1, spread=0.2
        ),
        "spread = 0.2",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_bad_input_is_one_line(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 200
