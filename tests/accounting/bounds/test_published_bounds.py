"""GSPA, Echo and the closed forms: formulas, conditions, and what is wrong with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.blanket_moments import (
    BlanketMoments,
    bennett_delta,
    hoeffding_delta,
)
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.published.closed_form import (
    erlingsson2019_epsilon,
    feldman2022_epsilon,
    feldman2023_epsilon,
    smallest_delta,
)
from fl_shuffle.accounting.bounds.published.echo_of_neighbors import echo_epsilon, echo_sum
from fl_shuffle.accounting.bounds.published.gspa import gspa_exact_curve, gspa_mu
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import NotApplicableError

MIXED = (LocalBudget(0.5, 0.0, 5000), LocalBudget(0.01, 0.0, 5000))


def test_gspa_mu_is_the_printed_formula() -> None:
    budgets = [LocalBudget(0.3, 1e-5), LocalBudget(1.1, 1e-6), LocalBudget(0.01), LocalBudget(2.0)]
    shares = [(1 - b.delta0) / (1 + math.exp(b.epsilon0)) for b in budgets]
    expected = math.sqrt(2 / (sum(shares) - max(shares)))
    assert gspa_mu(budgets) == pytest.approx(expected, rel=1e-14)
    assert gspa_mu(budgets, rounds=50) == pytest.approx(expected * math.sqrt(50), rel=1e-14)


def binary_response_mu(budgets: list[LocalBudget]) -> float:
    """The true limit for binary randomized response, for the client with the largest budget.

    mu^2 = tanh^2(eps_1/2) / sum_{j != 1} e^eps_j/(1 + e^eps_j)^2: the count of ones is the whole
    output, so its variance is what hides the shift. Asymptotic; pure budgets only.
    """
    classes = sorted(budgets)
    top = classes[-1]
    variance = math.fsum(
        (budget.count - (budget is top)) * 0.25 / math.cosh(0.5 * budget.epsilon0) ** 2
        for budget in classes
    )
    return math.tanh(0.5 * top.epsilon0) / math.sqrt(variance)


def test_gspa_mu_does_not_vanish_with_the_budgets() -> None:
    """All eps = 0: reports carry nothing, the published number still says .0586 at 1e-5."""
    budgets = [LocalBudget(0.0, 0.0, 10_000)]
    assert gaussian_epsilon(1e-5, gspa_mu(budgets)) == pytest.approx(0.0586, abs=1e-4)
    assert gspa_exact_curve(budgets)(0.0).delta == 0.0
    assert binary_response_mu(budgets) == 0.0


def test_echo_by_its_double_sum() -> None:
    rng = np.random.default_rng(3)
    eps = rng.uniform(0.2, 2.0, 60)
    total = 0.0
    first = int(np.argmax(eps))
    for i in range(60):
        if i == first:
            continue
        for j in range(60):
            ratio = eps[i] / eps[j] * (1 - math.exp(-eps[j])) / (1 - math.exp(-eps[i]))
            total += ratio * math.exp(-max(eps[i], eps[j])) / 60
    budgets = [LocalBudget(float(x)) for x in eps]
    assert echo_sum(budgets) == pytest.approx(total, rel=1e-12)
    # Too few echoes for its condition: the local budget is all that is left.
    assert echo_epsilon(budgets, 1e-6) == pytest.approx(float(eps.max()))
    with pytest.raises(NotApplicableError, match="epsilon0 must be > 0"):
        echo_epsilon([LocalBudget(0.0), LocalBudget(1.0)], 1e-6)


def test_closed_forms_by_hand() -> None:
    n, e0, d = 10_000, 0.4, 1e-5
    high = math.exp(e0)
    clone = math.log(
        1 + (high - 1) / (high + 1) * (8 * math.sqrt(high * math.log(4 / d) / n) + 8 * high / n)
    )
    strong = math.log(
        1 + (high - 1) * (4 * math.sqrt(2 * math.log(4 / d)) / math.sqrt((high + 1) * n) + 4 / n)
    )
    assert feldman2022_epsilon(e0, n, d) == pytest.approx(clone, rel=1e-11)
    assert feldman2023_epsilon(e0, n, d) == pytest.approx(strong, rel=1e-11)
    assert erlingsson2019_epsilon(e0, n, d) == pytest.approx(
        12 * e0 * math.sqrt(math.log(1 / d) / n), rel=1e-11
    )


@settings(max_examples=25, deadline=None)
@given(epsilon0=st.floats(0.05, 2.0), n=st.integers(2000, 10**6), exponent=st.floats(-12, -3))
def test_closed_forms_are_above_the_numeric_clone(epsilon0: float, n: int, exponent: float) -> None:
    delta = 10.0**exponent
    try:
        closed = feldman2022_epsilon(epsilon0, n, delta)
    except NotApplicableError:
        return
    numeric = bound(Question(method="clone", epsilon0=epsilon0, clients=n, delta=delta)).epsilon
    assert numeric <= closed * (1 + 1e-6)
    assert smallest_delta(lambda d: feldman2022_epsilon(epsilon0, n, d), closed) <= delta * 1.001


@pytest.mark.parametrize(
    ("call", "condition"),
    [
        (lambda: erlingsson2019_epsilon(0.4, 999, 1e-5), "clients >= 1000"),
        (lambda: erlingsson2019_epsilon(0.5, 1000, 1e-5), "epsilon0 < 0.5"),
        (lambda: erlingsson2019_epsilon(0.4, 1000, 0.02), "delta < 0.01"),
        (lambda: feldman2022_epsilon(8.0, 1000, 1e-6), "epsilon0 <= ln"),
        (lambda: feldman2023_epsilon(8.0, 1000, 1e-6), "epsilon0 <= ln"),
        (lambda: gspa_mu([LocalBudget(1.0)]), "two clients"),
    ],
)
def test_conditions_are_named(call, condition: str) -> None:
    with pytest.raises(NotApplicableError, match=condition):
        call()


def test_centred_variance_in_bennett_would_be_unsafe() -> None:
    """k-RR, k = 1000, eps0 = 1, eps = .95, one report: truth 1.3e-4; with the variance 3.3e-10."""
    case = KRandomizedResponse(1.0, 1000).cases()[0]
    law = case.law(0.95)
    truth = float(law.stop_loss(np.zeros(1))[0])
    right = BlanketMoments.of_law(law, 1.0)
    assert truth == pytest.approx(1.3e-4, rel=0.05)
    assert _one_report(right) >= truth
    centred = BlanketMoments(1.0, law.lower, law.upper, right.second - law.mean**2)
    assert _one_report(centred) < 1e-8


def _one_report(moments: BlanketMoments) -> float:
    return bennett_delta(moments, 1, 0.95)


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(-3.0, 2.0), min_size=2, max_size=5),
    gamma=st.floats(0.1, 1.0),
    n=st.integers(1, 6),
)
def test_moment_bounds_cover_enumerated_sums(values: list[float], gamma: float, n: int) -> None:
    """Any law with mean 1 - e^eps: (1/(gamma n)) E (sum over Bin(n, gamma) draws)_+ exactly."""
    weights = np.full(len(values), 1.0 / len(values))
    v = np.array(values)
    epsilon = 0.3
    v = v - v.mean() - math.expm1(epsilon)
    law = AtomicLaw.of(v, weights)
    draws = AtomicLaw.of(np.append(gamma_zero(v), v), np.append([1 - gamma], gamma * weights))
    total, mass = np.zeros(1), np.ones(1)
    for _ in range(n):
        total = np.add.outer(total, draws.values).ravel()
        mass = np.multiply.outer(mass, draws.probabilities).ravel()
        total, inverse = np.unique(np.round(total, 12), return_inverse=True)
        mass = np.bincount(inverse, weights=mass)
    exact = float(mass @ np.maximum(total, 0.0)) / (gamma * n)
    moments = BlanketMoments.of_law(law, gamma)
    assert exact <= hoeffding_delta(moments, n, epsilon) * (1 + 1e-9) + 1e-12
    assert exact <= bennett_delta(moments, n, epsilon) * (1 + 1e-9) + 1e-12


def gamma_zero(values: np.ndarray) -> list[float]:
    """The value of a client that did not draw from the blanket."""
    del values
    return [0.0]


def test_status_of_the_personal_reduction() -> None:
    def status(**given: object) -> Status:
        return bound(Question(method="gspa-exact", epsilon=0.01, **given)).status

    assert status(randomizer="krr", k=2, budgets=MIXED) is Status.PROVEN
    assert status(randomizer="krr", k=3, budgets=MIXED) is Status.AS_PUBLISHED
    assert status(randomizer="krr", k=3, epsilon0=1.0, clients=100) is Status.PROVEN
    assert status(randomizer="laplace", epsilon0=1.0, clients=100) is Status.PROVEN
    assert status(randomizer="rappor", epsilon0=1.0, clients=100) is Status.AS_PUBLISHED
    assert status(epsilon0=1.0, delta0=1e-6, clients=100) is Status.AS_PUBLISHED


def test_personal_noise_scales_break_the_published_mu() -> None:
    """One eps = 4 client among .01 clients, common noise: proven .0938 at 1e-5, published .0588."""
    budgets = (LocalBudget(4.0), LocalBudget(0.01, 0.0, 9_999))
    published = bound(Question(method="gspa", budgets=budgets, delta=1e-5)).epsilon
    proven = bound(
        Question(method="blanket", randomizer="laplace", budgets=budgets, delta=1e-5)
    ).epsilon
    assert published == pytest.approx(0.0588, abs=2e-4)
    assert proven == pytest.approx(0.0938, rel=5e-3)


@pytest.mark.parametrize("method", ["hoeffding", "bennett", "rdp", "clone", "gspa-exact"])
@pytest.mark.parametrize("epsilon0", [0.0, 1e-6, 30.0, 200.0])
def test_extreme_local_budgets_never_exceed_the_local_guarantee(
    method: str, epsilon0: float
) -> None:
    for clients in (1, 2, 50):
        query = Question(method=method, epsilon0=epsilon0, clients=clients, delta=1e-6)
        assert 0.0 <= bound(query).epsilon <= epsilon0 * (1 + 1e-9)
