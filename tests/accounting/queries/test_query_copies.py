"""A query is data: a copy under another method's name asks the same question."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.methods import bound, compare
from fl_shuffle.errors import InvalidValueError


def test_a_single_budget_class_can_be_copied_and_compared() -> None:
    query = BoundQuery(budgets=(LocalBudget(0.5, 0.0, 1000),), delta=1e-4)
    assert replace(query, method="echo").epsilon0 == 0.5
    assert isinstance(compare(query)["clone"], Guarantee)


def test_a_second_budget_beside_personal_budgets_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="epsilon0"):
        BoundQuery(budgets=(LocalBudget(0.5, 0.0, 1000),), epsilon0=0.4, delta=1e-4)
    two = (LocalBudget(0.5, 0.0, 500), LocalBudget(0.4, 0.0, 500))
    with pytest.raises(InvalidValueError, match="epsilon0"):
        BoundQuery(budgets=two, epsilon0=0.4, delta=1e-4)


def test_laplace_answers_can_be_joined() -> None:
    single = bound(BoundQuery(randomizer="laplace", epsilon0=1.0, clients=1000, delta=1e-6))
    joint = bound(BoundQuery(randomizer="laplace", epsilon0=1.0, clients=1000, delta=1e-6, joint=4))
    # The same local budget spread over four answers shuffles better than one answer with all of it.
    assert 0.0 < joint.epsilon < single.epsilon
    assert joint.is_guarantee
