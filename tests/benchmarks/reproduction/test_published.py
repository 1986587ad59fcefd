"""Bounds as papers print them: formulas by hand, and where they are no bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.reproduction.published import (
    gspa_exact_curve,
)
from fl_shuffle.accounting.bounds.clones import standard_clone
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from tests.oracles import clone_pair, hockey_stick, krr_matrix, worst_delta


@settings(max_examples=12, deadline=None)
@given(
    budgets=st.lists(st.floats(0.0, 3.0), min_size=2, max_size=5),
    share=st.floats(0.0, 0.95),
)
def test_gspa_reduction_covers_binary_response(budgets: list[float], share: float) -> None:
    """Enumeration over all inputs, each client in turn the differing one."""
    epsilon = share * max(budgets)
    ours = gspa_exact_curve([LocalBudget(x) for x in budgets])(epsilon).delta
    for i in range(len(budgets)):
        order = [budgets[i], *budgets[:i], *budgets[i + 1 :]]
        exact = worst_delta([krr_matrix(x, 2) for x in order], epsilon)
        assert exact <= ours * (1 + 1e-9) + 1e-15


def test_the_printed_pair_of_the_renyi_paper_is_not_a_bound() -> None:
    """Theorem 1 as printed shifts one world by Bern(e^-eps0); the proven pair reaches more.

    At n = 120, eps0 = 1 its delta is already several times too small.
    """
    n, epsilon0, epsilon = 120, 1.0, 0.3
    right, printed = (
        hockey_stick(*clone_pair(epsilon0, n, each), epsilon) for each in (False, True)
    )
    assert printed < 0.5 * right
    assert standard_clone(epsilon0, n, epsilon=epsilon).delta >= right
