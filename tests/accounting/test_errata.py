"""Claims of the papers that the accountant must not inherit (docs/errata.md): theirs and ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.gspa import gspa_mu
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws import gaussian_mechanism as gaussian
from fl_shuffle.accounting.laws.amplification import AtomicLaw
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
    assert gaussian.gaussian_epsilon(1e-5, gspa_mu(budgets)) == pytest.approx(0.0586, abs=1e-4)


def test_personal_noise_scales_break_the_published_mu() -> None:
    """One eps = 4 client among .01 clients, common noise: proven .0938 at 1e-5, published .0588."""
    budgets = (LocalBudget(4.0), LocalBudget(0.01, 0.0, 9_999))
    published, proven = (
        bound(Question(method=method, randomizer=randomizer, budgets=budgets, delta=1e-5)).epsilon
        for method, randomizer in (("gspa", None), ("blanket", "laplace"))
    )
    assert published == pytest.approx(0.0588, abs=2e-4)
    assert proven == pytest.approx(0.0938, rel=5e-3)


def test_variation_ratio_is_below_what_a_data_set_reaches() -> None:
    """n = 5, eps0 = 4, eps = 3, 10-RR: exact .37419 on a data set, published .36876."""
    asked = {"randomizer": "krr", "k": 10, "epsilon0": 4.0, "clients": 5, "epsilon": 3.0}
    reached = bound(Question(**asked, method="lower")).delta
    assert 0.3741 <= reached <= bound(Question(**asked)).delta


def test_the_arithmetic_mean_of_blanket_masses_is_refuted() -> None:
    """P = (3/4, 1/4), Q reversed, eps = 0, the others' masses (1, 1, 0): the truth is 1/4.

    A binomial with their mean mass 2/3 gives .2407, too little. The engine takes masses as they
    are, and their geometric mean (here zero: no blanket at all) is safe.
    """
    law, truth = AtomicLaw.of([1.0, -1.0], [0.5, 0.5]), 0.25
    assert amplified_delta(law, [(1.0, 2), (0.0, 1)]).delta == pytest.approx(truth, rel=1e-3)
    assert amplified_delta(law, [(2 / 3, 3)]).delta == pytest.approx(0.2407, abs=1e-4)
    assert amplified_delta(law, [(0.0, 3)]).delta >= truth


@pytest.mark.parametrize(
    ("records", "epsilon0", "truth"), [(100, 0.5, 96.0), (100, 2.0, 1027.0), (600, 0.5, 2180.0)]
)
def test_clipping_after_averaging_has_full_sensitivity(
    records: int, epsilon0: float, truth: float
) -> None:
    """Noise scaled to 2C/m while the clipped average moves by up to 2C: local epsilon at 1e-5."""
    move = 4.0
    sigma, honest = (gaussian.classical_sigma(epsilon0, 1e-5, x) for x in (move / records, move))
    assert gaussian.gaussian_epsilon(1e-5, move / sigma) == pytest.approx(truth, rel=0.01)
    assert gaussian.gaussian_epsilon(1e-5, move / honest) <= epsilon0


@pytest.mark.parametrize(("delta", "first"), [(1e-3, 7.5), (1e-5, 8.4), (1e-8, 9.4)])
def test_classical_gaussian_formula_is_conservative_where_used_and_fails_far_above(
    delta: float, first: float
) -> None:
    def excess(epsilon0: float) -> float:
        mu = epsilon0 / math.sqrt(2.0 * math.log(1.25 / delta))
        return gaussian.gaussian_delta(epsilon0, mu) / delta

    assert all(excess(x) < 1.0 for x in np.linspace(0.01, 2.0, 60))
    crossing = next(x for x in np.arange(2.0, 12.0, 0.05) if excess(x) > 1.0)
    assert crossing == pytest.approx(first, abs=0.11)
