"""GSPA, Echo and the closed forms: formulas, conditions, and what is wrong with them."""

from __future__ import annotations

import math

import mpmath as mp
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
from fl_shuffle.accounting.bounds.published.gspa import (
    binary_response_mu,
    gspa_epsilon,
    gspa_exact_curve,
    gspa_mu,
)
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.errors import NotApplicableError
from tests.accounting.bounds.bounds_oracles import randomized_response, worst_delta

MIXED = (LocalBudget(0.5, 0.0, 5000), LocalBudget(0.01, 0.0, 5000))


def test_gspa_mu_is_the_printed_formula() -> None:
    budgets = [LocalBudget(0.3, 1e-5), LocalBudget(1.1, 1e-6), LocalBudget(0.01), LocalBudget(2.0)]
    shares = [(1 - b.delta0) / (1 + math.exp(b.epsilon0)) for b in budgets]
    expected = math.sqrt(2 / (sum(shares) - max(shares)))
    assert gspa_mu(budgets) == pytest.approx(expected, rel=1e-14)
    assert gspa_mu(budgets, rounds=50) == pytest.approx(expected * math.sqrt(50), rel=1e-14)
    assert gspa_mu(budgets, group=3) == pytest.approx(3 * expected, rel=1e-14)


def test_gspa_mu_does_not_vanish_with_the_budgets() -> None:
    """All eps = 0: reports carry nothing, the published number still says .0586 at 1e-5."""
    budgets = [LocalBudget(0.0, 0.0, 10_000)]
    assert gspa_epsilon(budgets, 1e-5) == pytest.approx(0.0586, abs=1e-4)
    assert gspa_exact_curve(budgets)(0.0).delta == 0.0
    assert binary_response_mu(budgets) == 0.0


def test_gspa_worst_client_is_the_least_exposed_one() -> None:
    """Its formula depends on the *smallest* budget; the exposed client is the largest one."""
    rare = [LocalBudget(4.0, 0.0, 1), LocalBudget(0.01, 0.0, 9_999)]
    none = [LocalBudget(0.01, 0.0, 10_000)]
    assert gspa_mu(rare) == pytest.approx(gspa_mu(none), rel=1e-4)
    assert binary_response_mu(rare) > 20 * binary_response_mu(none)


def test_two_readings_of_the_clone_probability_differ_by_root_two() -> None:
    """Cells of the reduction must sum to one: 2 s_i + (1 - 2 s_i); half of it gives sqrt(2) mu."""
    budgets = [LocalBudget(0.5, 0.0, 1000)]
    share = 1 / (1 + math.exp(0.5))
    assert share + share + (1 - 2 * share) == pytest.approx(1.0)
    halved = math.sqrt(2 / (999 * share / 2))
    assert halved == pytest.approx(math.sqrt(2) * gspa_mu(budgets), rel=1e-12)


def test_number_of_shuffled_reports_must_be_stated() -> None:
    """The algorithm's n/m and m readings (100 or 600 reports) differ by sqrt(6) or so in mu."""
    few, many = gspa_mu([LocalBudget(0.5, 0.0, 100)]), gspa_mu([LocalBudget(0.5, 0.0, 600)])
    assert few / many == pytest.approx(math.sqrt(599 / 99), rel=1e-12)


def test_gaussian_limit_does_not_certify_the_clone_counts() -> None:
    """n = 100, eps0 = 2, own noise not credited: delta 5.8, 19.5, 2266 times the target."""
    n, share = 100, 1 / (1 + math.exp(2.0))
    mu = math.sqrt(2 / ((n - 1) * share))
    for target, factor in ((1e-4, 5.8), (1e-5, 19.5), (1e-8, 2266.0)):
        epsilon = gaussian_epsilon(target, mu)
        true = _shift_divergence(n - 1, 2 * share, epsilon)
        assert true / target == pytest.approx(factor, rel=0.02)


def _shift_divergence(others: int, clone: float, epsilon: float) -> float:
    """(A + 1, C - A) against (A, C - A + 1), C ~ Bin(others, clone): ratio a/b."""
    from scipy.stats import binom

    total = 0.0
    for c in range(others + 1):
        a = np.arange(1, c + 2)
        b = c + 1 - a
        mass = binom.pmf(a - 1, c, 0.5)
        with np.errstate(divide="ignore"):
            gain = np.maximum(0.0, 1.0 - math.exp(epsilon) * b / a)
        total += binom.pmf(c, others, clone) * float(mass @ gain)
    return total


def test_mu_and_epsilon_delta_convert_both_ways() -> None:
    mp.mp.dps = 40
    for mu, epsilon in ((0.01, 0.03), (0.5, 1.0), (3.0, 2.0)):
        exact = mp.ncdf(mu / 2 - epsilon / mp.mpf(mu)) - mp.exp(epsilon) * mp.ncdf(
            -mp.mpf(mu) / 2 - epsilon / mp.mpf(mu)
        )
        assert gaussian_delta(epsilon, mu) == pytest.approx(float(exact), rel=1e-9)
        assert gaussian_epsilon(float(exact), mu) == pytest.approx(epsilon, rel=1e-6)


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


def test_figure_two_order_of_the_bounds() -> None:
    """Chen, Cao, Ge 2024, Figure 2, constant .5, delta 1e-4: its curve is below the others."""
    for n in (1000, 5000, 10_000):
        asked = {"epsilon0": 0.49, "clients": n, "delta": 1e-4}
        gspa = bound(BoundQuery(**asked, method="gspa")).epsilon
        echo = bound(BoundQuery(**asked, method="echo")).epsilon
        feldman = bound(BoundQuery(**asked, method="feldman2022")).epsilon
        erlingsson = bound(BoundQuery(**asked, method="erlingsson2019")).epsilon
        ours = bound(BoundQuery(**asked, method="clone")).epsilon
        assert ours < gspa < max(echo, feldman) < erlingsson


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
    numeric = bound(BoundQuery(method="clone", epsilon0=epsilon0, clients=n, delta=delta)).epsilon
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


def test_second_moment_of_a_continuous_law_is_bounded_from_above() -> None:
    case = LaplaceRandomizer(1.0).cases()[0]
    law = case.law(0.15)
    rng = np.random.default_rng(11)
    energy = rng.exponential(size=400_000)
    side = rng.random(400_000) < 0.5
    c = 0.5
    up = np.exp(2 * np.minimum(energy, c) - c) - math.exp(0.15 - c)
    down = math.exp(-c) - np.exp(0.15 + 2 * np.minimum(energy, c) - c)
    sample = np.where(side, up, down)
    bound_on_square = BlanketMoments.of_law(law, case.blanket_mass).second
    assert np.mean(sample**2) - 5 * np.std(sample**2) / 632 <= bound_on_square
    assert bound_on_square <= 1.02 * np.mean(sample**2)


def test_generic_moment_bounds_hold_for_enumerated_response() -> None:
    for epsilon0, n, epsilon in ((0.8, 3, 0.2), (1.5, 4, 0.5)):
        exact = worst_delta([randomized_response(epsilon0)] * n, epsilon)
        moments = BlanketMoments.generic(epsilon0, epsilon)
        assert exact <= hoeffding_delta(moments, n, epsilon)
        assert exact <= bennett_delta(moments, n, epsilon)


def test_status_of_the_personal_reduction() -> None:
    def status(**given: object) -> Status:
        return bound(BoundQuery(method="gspa-exact", epsilon=0.01, **given)).status

    assert status(randomizer="krr", k=2, budgets=MIXED) is Status.PROVEN
    assert status(randomizer="krr", k=3, budgets=MIXED) is Status.AS_PUBLISHED
    assert status(randomizer="krr", k=3, epsilon0=1.0, clients=100) is Status.PROVEN
    assert status(randomizer="laplace", epsilon0=1.0, clients=100) is Status.PROVEN
    assert status(randomizer="rappor", epsilon0=1.0, clients=100) is Status.AS_PUBLISHED
    assert status(epsilon0=1.0, delta0=1e-6, clients=100) is Status.AS_PUBLISHED


def test_personal_noise_scales_break_the_published_mu() -> None:
    """One eps = 4 client among .01 clients, common noise: proven .0938 at 1e-5, published .0588."""
    budgets = (LocalBudget(4.0), LocalBudget(0.01, 0.0, 9_999))
    published = bound(BoundQuery(method="gspa", budgets=budgets, delta=1e-5)).epsilon
    proven = bound(
        BoundQuery(method="blanket", randomizer="laplace", budgets=budgets, delta=1e-5)
    ).epsilon
    assert published == pytest.approx(0.0588, abs=2e-4)
    assert proven == pytest.approx(0.0938, rel=5e-3)


def test_common_noise_anchor_values() -> None:
    """Laplace clipping personalisation at n = 1e4, delta = 1e-5."""
    constant = BoundQuery(randomizer="laplace", epsilon0=0.5, clients=10_000, delta=1e-5)
    assert bound(constant).epsilon == pytest.approx(0.0132, rel=5e-3)
    mixed = BoundQuery(randomizer="laplace", budgets=MIXED, delta=1e-5)
    assert bound(mixed).epsilon == pytest.approx(0.0123, rel=5e-3)


def test_rounds_anchor_and_one_round_is_itself() -> None:
    asked = {"randomizer": "laplace", "epsilon0": 0.5, "clients": 1000, "delta": 1e-6}
    one = bound(BoundQuery(**asked)).epsilon
    assert one == pytest.approx(0.05801, rel=2e-3)
    fifty = bound(BoundQuery(**asked, rounds=50)).epsilon
    assert 0.470 < fifty < 0.4725
    published = bound(BoundQuery(**asked | {"randomizer": None}, method="gspa", rounds=50)).epsilon
    assert published == pytest.approx(2.33, abs=0.01)


def test_joint_reports_share_the_budget() -> None:
    """Four answers of 10-RR in one report of total eps0 = 4: .0211, not the printed .0354."""
    query = BoundQuery(randomizer="krr", k=10, joint=4, epsilon0=4.0, clients=100_000, delta=1e-6)
    assert bound(query).epsilon == pytest.approx(0.0211, abs=2e-4)


@pytest.mark.parametrize("method", ["hoeffding", "bennett", "rdp", "clone", "gspa-exact"])
@pytest.mark.parametrize("epsilon0", [0.0, 1e-6, 30.0, 200.0])
def test_extreme_local_budgets_never_exceed_the_local_guarantee(
    method: str, epsilon0: float
) -> None:
    for clients in (1, 2, 50):
        query = BoundQuery(method=method, epsilon0=epsilon0, clients=clients, delta=1e-6)
        assert 0.0 <= bound(query).epsilon <= epsilon0 * (1 + 1e-9)
