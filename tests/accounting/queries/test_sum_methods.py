"""Questions about sums: `bound`, `compare` and plans with `release = "sum"`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    analytic_sigma,
    gaussian_delta,
    gaussian_epsilon,
)
from fl_shuffle.accounting.queries.methods import bound, compare
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError, NotApplicableError

ASKED = Question(
    method="sum",
    randomizer="gaussian",
    epsilon0=1.0,
    delta0=1e-5,
    clients=100,
    rounds=20,
    delta=1e-6,
    unit="client",
    release="sum",
)
SIGMA = analytic_sigma(1.0, 1e-5, 2.0)


def test_the_formula_written_out() -> None:
    mu = 2.0 / SIGMA * math.sqrt(20 / 100)
    answer = bound(ASKED)
    assert answer.status is Status.PROVEN
    assert gaussian_epsilon(1e-6, mu) <= answer.epsilon < gaussian_epsilon(1e-6, mu) * (1 + 1e-6)
    asked = replace(ASKED, delta=None, epsilon=0.2)
    exact = gaussian_delta(0.2, mu)
    assert exact <= bound(asked).delta < exact * (1 + 1e-5)
    assert "at least 100 reports" in answer.assumptions[0]
    lower = bound(replace(ASKED, method="sum-attack"))
    assert lower.status is Status.LOWER_BOUND
    assert 0.98 * answer.epsilon < lower.epsilon < answer.epsilon
    assert bound(replace(asked, method="sum-attack")).delta < exact


def test_compare_knows_what_is_released() -> None:
    asked = replace(ASKED, rounds=1)
    answers = compare(asked)
    proven = [
        name
        for name, value in answers.items()
        if isinstance(value, Guarantee) and value.status is Status.PROVEN
    ]
    # What holds for all reports holds for their sum; the sum alone says less.
    assert proven[0] == "sum" and "proven" in proven
    for name in ("attack", "lower"):
        assert "release = 'reports'" in str(answers[name])
    shuffled = compare(replace(asked, release="reports"))
    for name in ("sum", "sum-attack"):
        assert "release = 'sum'" in str(shuffled[name])
    assumed = compare(replace(asked, assumed_honest=10))
    assert "assumed_honest" in str(assumed["proven"])
    assert isinstance(assumed["sum"], Guarantee)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="assumed_honest"):
        replace(ASKED, release="reports", assumed_honest=5)
    with pytest.raises(NotApplicableError, match="participation"):
        bound(replace(ASKED, participation=0.5))
    with pytest.raises(NotApplicableError, match="vector reports"):
        bound(replace(ASKED, randomizer="krr", k=3, delta0=0.0))
