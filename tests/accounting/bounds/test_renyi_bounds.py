"""Renyi DP of the clone pair, Girgis et al., conversions; the slips of the published pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.clones import standard_clone
from fl_shuffle.accounting.bounds.published.renyi_closed_forms import (
    girgis_lower_rdp,
    girgis_upper_rdp,
)
from fl_shuffle.accounting.bounds.renyi import (
    clone_rdp,
    clone_rdp_curve,
    rdp_epsilon,
    rdp_floor_delta,
    useful_orders,
)
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError
from tests.oracles import clone_pair, pair_delta, pair_renyi


@pytest.mark.parametrize(
    ("epsilon0", "n", "order"),
    [(1.0, 1, 2.0), (1.0, 5, 3.0), (2.0, 12, 1.5), (0.5, 60, 8.0), (4.0, 30, 2.0), (1.0, 40, 20.0)],
)
def test_clone_divergence_matches_its_definition(epsilon0: float, n: int, order: float) -> None:
    exact = pair_renyi(*clone_pair(epsilon0, n), order)
    ours = clone_rdp(epsilon0, n, order)
    assert exact * (1 - 1e-10) <= ours <= exact * (1 + 1e-6)


def test_blocked_sum_is_above_the_full_one_by_little() -> None:
    """n = 3000, order 6: a plain double sum in floats against the blocked one."""
    from scipy.stats import binom

    epsilon0, n, order = 1.0, 3000, 6.0
    w = 1 / (1 + math.exp(-epsilon0))
    total = 0.0
    for v in range(900, 1350):
        a = np.arange(v + 2)
        x = a / (v + 1)
        first, second = 2 * (w * x + (1 - w) * (1 - x)), 2 * ((1 - w) * x + w * (1 - x))
        inner = binom.pmf(a, v + 1, 0.5) @ np.expm1(
            order * np.log(first) - (order - 1) * np.log(second)
        )
        total += binom.pmf(v, n - 1, math.exp(-epsilon0)) * inner
    plain = math.log1p(total) / (order - 1)
    assert plain * (1 - 1e-7) <= clone_rdp(epsilon0, n, order) <= plain * 1.003


def test_the_printed_pair_of_the_renyi_paper_is_not_a_bound() -> None:
    """Theorem 1 as printed shifts one world by Bern(e^-eps0); the proven pair reaches more.

    At n = 120, eps0 = 1 its delta is already several times too small.
    """
    n, epsilon0, epsilon = 120, 1.0, 0.3
    right = pair_delta(*clone_pair(epsilon0, n), epsilon)
    first, second = clone_pair(epsilon0, n, printed=True)
    printed = max(pair_delta(first, second, epsilon), pair_delta(second, first, epsilon))
    assert printed < 0.5 * right
    assert standard_clone(epsilon0, n, epsilon=epsilon).delta >= right


@settings(max_examples=25, deadline=None)
@given(epsilon0=st.floats(0.05, 3.0), n=st.integers(2, 20_000), order=st.integers(2, 40))
def test_girgis_lower_below_exact_below_girgis_upper(epsilon0: float, n: int, order: int) -> None:
    exact = clone_rdp(epsilon0, n, float(order))
    assert girgis_lower_rdp(epsilon0, n, order) <= exact * (1 + 1e-9)
    assert exact <= girgis_upper_rdp(epsilon0, n, order) * (1 + 3e-3)


@settings(max_examples=15, deadline=None)
@given(epsilon0=st.floats(0.2, 3.0), n=st.integers(2, 5000), share=st.floats(0.02, 0.95))
def test_conversion_never_beats_the_exact_profile(epsilon0: float, n: int, share: float) -> None:
    epsilon = share * epsilon0
    exact = standard_clone(epsilon0, n, epsilon=epsilon)
    via_rdp = bound(Question(method="rdp", epsilon0=epsilon0, clients=n, epsilon=epsilon)).delta
    floor = bound(
        Question(method="girgis-lower", epsilon0=epsilon0, clients=n, epsilon=epsilon)
    ).delta
    assert floor <= exact.delta * (1 + 1e-9)
    assert exact.delta - exact.numerical_error <= via_rdp * (1 + 1e-9)


def test_floor_from_divergence_holds_for_a_two_point_pair() -> None:
    """Randomized response itself: divergence known, delta known."""
    epsilon0 = 1.2
    p = 1 / (1 + math.exp(-epsilon0))
    for order in (2.0, 3.0, 8.0):
        rho = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order))
        rho /= order - 1
        for epsilon in (0.0, 0.3, 0.9):
            exact = p - math.exp(epsilon) * (1 - p)
            assert rdp_floor_delta(rho, order, epsilon0, epsilon) <= exact * (1 + 1e-9)


def test_composition_is_additive_and_never_below_one_round() -> None:
    one = bound(Question(method="rdp", epsilon0=1.0, clients=1000, delta=1e-6)).epsilon
    ten = bound(Question(method="rdp", epsilon0=1.0, clients=1000, delta=1e-6, rounds=10)).epsilon
    pld = bound(Question(method="clone", epsilon0=1.0, clients=1000, delta=1e-6, rounds=10)).epsilon
    assert one < pld < ten < 10 * one


def test_orders_are_safe_whatever_they_are() -> None:
    orders = useful_orders(1.0, 1000, delta=1e-6)
    values = clone_rdp_curve(1.0, 1000, orders)
    assert np.all(np.diff(values) > 0)
    few = rdp_epsilon(dict(zip(orders, values, strict=True)).__getitem__, 1e-6, orders[:2])
    assert few >= standard_clone(1.0, 1000, delta=1e-6).epsilon


@pytest.mark.parametrize("order", [1.0, 0.0, -2.0, math.nan, math.inf])
def test_orders_outside_the_domain_are_refused(order: float) -> None:
    with pytest.raises(InvalidValueError, match="order"):
        clone_rdp(1.0, 100, order)
