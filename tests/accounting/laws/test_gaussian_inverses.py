"""Inverses for many clients at once are those for one, and hold wherever they are claimed."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.laws.gaussian_mechanism import (
    analytic_sigma,
    classical_sigma,
    classical_sigmas,
    gaussian_epsilon,
    gaussian_epsilons,
    gaussian_mu,
    gaussian_mus,
    gaussian_profile,
    sigmas_of,
)
from fl_shuffle.errors import InvalidValueError, NotApplicableError


def test_calibrations_of_many_budgets_are_those_of_each() -> None:
    rng = np.random.default_rng(5)
    epsilon, delta = rng.uniform(0.01, 2.0, 300), rng.choice([1e-5, 1e-7], 300)
    analytic = sigmas_of(gaussian_mus(epsilon, delta))
    classical = classical_sigmas(epsilon, delta)
    pairs = list(zip(epsilon.tolist(), delta.tolist(), strict=True))
    np.testing.assert_allclose(analytic, [analytic_sigma(*p, 1.0) for p in pairs], rtol=1e-11)
    np.testing.assert_array_equal(classical, [classical_sigma(*p, 1.0) for p in pairs])
    assert np.all(gaussian_profile(epsilon, 1.0 / analytic) <= delta)


def test_epsilons_of_many_are_those_of_each() -> None:
    mus = [0.0, 1e-300, *np.geomspace(1e-8, 1e3, 120).tolist()]
    for delta in (1e-200, 1e-5, 0.3, 1.0 - 1e-9):
        alone = [gaussian_epsilon(delta, mu) for mu in mus]
        np.testing.assert_allclose(gaussian_epsilons(delta, mus), alone, rtol=1e-11, atol=1e-300)


def test_a_budget_without_a_calibration_is_refused() -> None:
    with pytest.raises(NotApplicableError, match="20, 1e-05"):
        classical_sigmas(np.array([1.0, 20.0, 30.0]), 1e-5)
    with pytest.raises(InvalidValueError, match="delta"):
        classical_sigmas(np.array([1.0, 2.0]), np.array([1e-5, 0.0]))
    with pytest.raises(InvalidValueError, match="delta"):
        gaussian_mus(np.linspace(0.1, 1.0, 100), 0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_the_smallest_deltas_have_an_inverse(count: int) -> None:
    assert 0.0 <= gaussian_mu(0.0, count * 5e-324) <= 3.0 * count * 5e-324
