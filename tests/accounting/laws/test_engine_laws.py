"""Laws that must hold for every input: monotonicity, order, invariance, safe inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_shuffle.accounting.laws.frequency_oracles as oracles
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_delta
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer

SLACK = 1.0 + 3e-4
"""Two certified values may differ by their own numerical error; a law may be violated by that."""

VANISHING = 2e-278
"""Deltas below e^-640 are all reported as that number."""

FAMILIES = {
    "krr": lambda e: KRandomizedResponse(e, 10),
    "binary": lambda e: KRandomizedResponse(e, 2),
    "blh": oracles.BinaryLocalHashing,
    "hadamard": oracles.HadamardResponse,
    "rappor": oracles.Rappor,
    "rappor-3": lambda e: oracles.Rappor(e, 3),
    "oue": oracles.OptimizedUnaryEncoding,
}
families = st.sampled_from(sorted(FAMILIES)).map(FAMILIES.__getitem__)
budgets = st.floats(0.05, 5.0)
cohorts = st.integers(1, 100_000)
# Nearer to zero few reports may weigh nothing together: what is then certified is up to 1 % higher,
# and says so (`test_the_error_is_told_at_zero`).
shares = st.floats(0.02, 0.9)
quick = settings(max_examples=25, deadline=None)


@quick
@given(families, budgets, cohorts, shares, st.floats(0.0, 1.0))
def test_delta_falls_with_epsilon_and_lies_between_lower_bound_and_local(
    family, epsilon0: float, n: int, share: float, further: float
) -> None:
    randomizer = family(epsilon0)
    near, far = share * epsilon0, (share + (1.0 - share) * further) * epsilon0
    first = blanket_delta(randomizer, n, near)
    assert blanket_delta(randomizer, n, far).delta <= first.delta * SLACK + VANISHING
    assert lower_bound_delta(randomizer, n, near).delta <= first.delta
    local = max(case.local_delta(near) for case in randomizer.cases())
    assert first.delta <= local * (1.0 + 1e-12)
    assert 0.0 <= first.numerical_error <= 3e-4 * first.delta + VANISHING


@quick
@given(families, budgets, cohorts, shares, st.integers(0, 100_000))
def test_more_reports_never_hurt(family, epsilon0: float, n: int, share: float, more: int) -> None:
    randomizer, epsilon = family(epsilon0), share * epsilon0
    fewer = blanket_delta(randomizer, n, epsilon).delta
    assert blanket_delta(randomizer, n + more, epsilon).delta <= fewer * SLACK + VANISHING


@quick
@given(families, st.floats(0.1, 4.0), st.integers(1, 50_000), st.floats(-12.0, -1.0))
def test_epsilon_is_safe_and_tight(family, epsilon0: float, n: int, log_delta: float) -> None:
    randomizer, delta = family(epsilon0), 10.0**log_delta
    answer = blanket_epsilon(randomizer, n, delta)
    assert blanket_delta(randomizer, n, answer.epsilon).delta <= delta
    below = lower_bound_epsilon(randomizer, n, delta).epsilon
    assert below <= answer.epsilon
    if answer.epsilon > 0.0 and answer.epsilon < epsilon0 * (1.0 - 1e-9):
        assert blanket_delta(randomizer, n, answer.epsilon * (1.0 - 1e-3)).delta >= delta * 0.999


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_the_laplace_law_is_a_law_and_grows_in_convex_order_with_the_distance(
    epsilon: float,
) -> None:
    """By its stop-loss transform, which starts at the local curve."""
    law, far = LaplaceLaw(0.4, epsilon), LaplaceLaw(0.6, epsilon)
    t = np.linspace(far.lower, far.upper, 4001)
    g = law.stop_loss(t)
    assert np.all(np.diff(g) <= 1e-15)
    assert np.all(np.diff(g, 2) >= -1e-13)
    assert np.all(g <= far.stop_loss(t) * (1 + 1e-9) + 1e-14)
    local = laplace_delta(epsilon, 0.8)
    assert float(law.stop_loss(np.zeros(1))[0]) == pytest.approx(local, rel=1e-12)


def test_disjoint_supports_give_the_local_answer() -> None:
    silent = MatrixRandomizer([[1.0, 0.0], [0.0, 1.0]])
    assert blanket_delta(silent, 10**6, 3.0).delta == 1.0
    assert blanket_epsilon(silent, 10**6, 1e-6).epsilon == math.inf
    partly = MatrixRandomizer([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert blanket_delta(partly, 10**6, 1.0).delta >= 0.5
    assert lower_bound_delta(partly, 1000, 1.0).delta >= 0.49


def test_cut_upper_tail_is_added() -> None:
    """A law cut at `upper` reports E(L - upper)_+ and the engine adds it."""
    law = LaplaceLaw(0.5, 0.05)

    class Cut:
        lower, upper, mean = law.lower, law.upper * 0.98, law.mean
        stop_loss = staticmethod(law.stop_loss)

    excess = float(law.stop_loss(np.array([Cut.upper]))[0])
    whole, cut = (amplified_delta(x, [(0.6, 300)], relative_error=1e-3) for x in (law, Cut()))
    assert excess > 0.0
    assert whole.lower <= cut.delta
    assert cut.delta <= whole.delta + 1.01 * excess
