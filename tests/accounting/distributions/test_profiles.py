"""Gaussian and Laplace local profiles and their inverses: 50 digits, quadrature, dp-accounting."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_delta, laplace_epsilon
from fl_shuffle.accounting.distributions import gaussian_mechanism as law
from fl_shuffle.accounting.round_off import ROUND_OFF
from fl_shuffle.errors import InvalidValueError, NotApplicableError


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def test_a_local_profile_is_off_by_less_than_its_margin() -> None:
    """Against 50 digits: every mu, more of them where the formula changes (1e-3), and every
    epsilon that leaves a delta of 1e-290."""
    draw = np.random.default_rng(5)
    near = 1e-3 * (1.0 + np.concatenate([-(10.0 ** draw.uniform(-8, -0.5, 1000)),
                                         10.0 ** draw.uniform(-8, 1, 1000)]))  # fmt: skip
    mus = np.concatenate([10.0 ** draw.uniform(-12.0, 3.0, 1000), near])
    deviations = draw.uniform(-6.0, 37.0, len(mus))
    # Where both branches were worst when the margin was set.
    mus = np.append(mus, [1.0001113e-3, 1e-3, 9.9999e-4, 1.00494e-3, 1.03e-3, 1.08874e-3])
    deviations = np.append(deviations, [36.576, 24.4139, 30.009, 22.4643, 9.53, 11.5458])
    worst = 0.0
    for mu, deviation in zip(mus.tolist(), deviations.tolist(), strict=True):
        epsilon = (deviation + 0.5 * mu) * mu
        if 0.0 <= epsilon <= 700.0 and (truth := exact_delta(epsilon, mu)) > 1e-290:
            for found in (
                law.gaussian_delta(epsilon, mu),
                law.gaussian_profile([epsilon] * 2, mu)[1],
            ):
                worst = max(worst, abs(float((mpmath.mpf(float(found)) - truth) / truth)))
    # Beside it the rounding of a logarithm, whose error the tails multiply by up to 37^2.
    assert 5e-12 < worst < ROUND_OFF - 37.0**2 * 2.0**-53


NEARLY_ONE = st.floats(-12.0, -0.4).map(lambda log: 1.0 - 10.0**log)


@settings(max_examples=150, deadline=None)
@given(st.floats(-3, 3), st.floats(1e-12, 0.4) | NEARLY_ONE)
def test_gaussian_inverses_are_on_the_safe_side_and_tight(log_mu: float, delta: float) -> None:
    mu = 10.0**log_mu
    epsilon = law.gaussian_epsilon(delta, mu)
    assert exact_delta(epsilon, mu) <= delta
    if delta > 0.4:
        return
    if epsilon > 1e-6:
        assert exact_delta(epsilon * (1 - 1e-7), mu) > delta
    largest = law.gaussian_mu(epsilon, delta)
    assert exact_delta(epsilon, largest) <= delta
    assert exact_delta(epsilon, largest * (1 + 1e-7)) > delta


def test_calibrations_and_epsilons_of_many_are_those_of_each() -> None:
    rng = np.random.default_rng(5)
    epsilon, delta = rng.uniform(0.01, 2.0, 300), rng.choice([1e-5, 1e-7], 300)
    analytic = law.sigmas_of(law.gaussian_mus(epsilon, delta))
    classical = law.classical_sigmas(epsilon, delta)
    pairs = list(zip(epsilon.tolist(), delta.tolist(), strict=True))
    np.testing.assert_allclose(analytic, [law.analytic_sigma(*p, 1.0) for p in pairs], rtol=1e-11)
    np.testing.assert_array_equal(classical, [law.classical_sigma(*p, 1.0) for p in pairs])
    assert np.all(law.gaussian_profile(epsilon, 1.0 / analytic) <= delta)
    mus = [0.0, 1e-300, *np.geomspace(1e-8, 1e3, 120).tolist()]
    for each in (1e-200, 1e-5, 0.3, 1.0 - 1e-9):
        alone = [law.gaussian_epsilon(each, mu) for mu in mus]
        np.testing.assert_allclose(law.gaussian_epsilons(each, mus), alone, rtol=2e-10, atol=1e-300)
    with pytest.raises(NotApplicableError, match="20, 1e-05"):
        law.classical_sigmas(np.array([1.0, 20.0, 30.0]), 1e-5)
    for count in (1, 2, 3, 100):  # The smallest deltas have an inverse.
        assert 0.0 <= law.gaussian_mu(0.0, count * 5e-324) <= 3.0 * count * 5e-324


@pytest.mark.parametrize("mu", [1e3, 1e12, 1e100])
def test_huge_parameters_lose_everything_and_overflow_nowhere(mu: float) -> None:
    """Below mu^2/2 delta is 1; a difference of exponentials would have said 0, or overflowed."""
    assert law.gaussian_delta(0.4 * mu * mu, mu) == 1.0
    assert law.gaussian_profile(0.4 * mu * mu, mu) == 1.0
    epsilon = law.gaussian_epsilon(1e-5, mu)
    assert 0.5 * mu * mu <= epsilon <= 0.5 * mu * mu * (1.0 + 1e-9) + 5.0 * mu


def test_laplace_profile_by_quadrature() -> None:
    y = np.linspace(-40.0, 41.3, 2_000_001)
    for ratio, epsilon in ((1.3, 0.0), (1.3, 0.7), (0.2, 0.1)):
        p, q = 0.5 * np.exp(-np.abs(y)), 0.5 * np.exp(-np.abs(y - ratio))
        truth = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), y)
        assert laplace_delta(epsilon, ratio) == pytest.approx(truth, rel=1e-6)
    for wrong in (math.nan, -1.0):
        with pytest.raises(InvalidValueError, match="epsilon"):
            laplace_delta(np.array([0.1, wrong]), 1.3)


@pytest.mark.parametrize("ratio", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("rounds", [2, 6, 50])
def test_laplace_rounds_lie_between_dp_accountings_bounds(ratio: float, rounds: int) -> None:
    """From both sides, and never above the pure budget."""

    def reference(pessimistic: bool) -> float:
        one = pld.from_laplace_mechanism(
            1.0 / ratio,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=ratio / 500.0,
        )
        return float(one.self_compose(rounds).get_epsilon_for_delta(1e-5))

    epsilon = laplace_epsilon(1e-5, ratio, rounds)
    assert reference(False) * (1.0 - 1e-6) <= epsilon <= reference(True) * 1.02
    assert epsilon <= rounds * ratio == laplace_epsilon(0.0, ratio, rounds)
    assert laplace_delta(rounds * ratio, ratio, rounds) == 0.0


@pytest.mark.parametrize("ratio", [0.5, 150.0])
def test_more_laplace_rounds_never_cost_less(ratio: float) -> None:
    """Large losses once made huge round-off masses far below the answer look like the answer."""
    epsilons = [laplace_epsilon(1e-5, ratio, rounds) for rounds in range(1, 52)]
    assert np.all(np.diff(epsilons) > 0.0)
