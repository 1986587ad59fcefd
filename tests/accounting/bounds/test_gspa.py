"""GSPA's parameter: the printed formula, and what is wrong with it."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.bounds.gspa import gspa_mu
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import NotApplicableError


def test_gspa_mu_is_the_printed_formula() -> None:
    budgets = [LocalBudget(0.3, 1e-5), LocalBudget(1.1, 1e-6), LocalBudget(0.01), LocalBudget(2.0)]
    shares = [(1 - b.delta0) / (1 + math.exp(b.epsilon0)) for b in budgets]
    expected = math.sqrt(2 / (sum(shares) - max(shares)))
    assert gspa_mu(budgets) == pytest.approx(expected, rel=1e-14)
    assert gspa_mu(budgets, rounds=50) == pytest.approx(expected * math.sqrt(50), rel=1e-14)
    with pytest.raises(NotApplicableError, match="two clients"):
        gspa_mu([LocalBudget(1.0)])


def test_gspa_mu_does_not_vanish_with_the_budgets() -> None:
    """All eps = 0: reports carry nothing, the published number still says .0586 at 1e-5."""
    budgets = [LocalBudget(0.0, 0.0, 10_000)]
    assert gaussian_epsilon(1e-5, gspa_mu(budgets)) == pytest.approx(0.0586, abs=1e-4)


def test_personal_noise_scales_break_the_published_mu() -> None:
    """One eps = 4 client among .01 clients, common noise: proven .0938 at 1e-5, published .0588."""
    budgets = (LocalBudget(4.0), LocalBudget(0.01, 0.0, 9_999))
    published = bound(Question(method="gspa", budgets=budgets, delta=1e-5)).epsilon
    proven = bound(
        Question(method="blanket", randomizer="laplace", budgets=budgets, delta=1e-5)
    ).epsilon
    assert published == pytest.approx(0.0588, abs=2e-4)
    assert proven == pytest.approx(0.0938, rel=5e-3)
