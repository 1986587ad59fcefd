"""Gaussian and Laplace local profiles and their inverses, against high-precision arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_delta, laplace_epsilon
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import PROFILE_INFLATION
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    analytic_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_profile,
)
from fl_shuffle.errors import InvalidValueError


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
            for found in (gaussian_delta(epsilon, mu), gaussian_profile([epsilon] * 2, mu)[1]):
                worst = max(worst, abs(float((mpmath.mpf(float(found)) - truth) / truth)))
    # Beside it the rounding of a logarithm, whose error the tails multiply by up to 37^2.
    assert 5e-12 < worst < (PROFILE_INFLATION - 1.0) - 37.0**2 * 2.0**-53


NEARLY_ONE = st.floats(-12.0, -0.4).map(lambda log: 1.0 - 10.0**log)


@settings(max_examples=150, deadline=None)
@given(st.floats(-3, 3), st.floats(1e-12, 0.4) | NEARLY_ONE)
def test_gaussian_inverses_are_on_the_safe_side_and_tight(log_mu: float, delta: float) -> None:
    mu = 10.0**log_mu
    epsilon = gaussian_epsilon(delta, mu)
    assert exact_delta(epsilon, mu) <= delta
    if delta > 0.4:
        return
    if epsilon > 1e-6:
        assert exact_delta(epsilon * (1 - 1e-7), mu) > delta
    largest = gaussian_mu(epsilon, delta)
    assert exact_delta(epsilon, largest) <= delta
    assert exact_delta(epsilon, largest * (1 + 1e-7)) > delta


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_numbers_are_refused(bad: float) -> None:
    for call in (
        lambda: gaussian_delta(1.0, bad),
        lambda: gaussian_epsilon(1e-5, bad),
        lambda: gaussian_mu(bad, 1e-5),
        lambda: laplace_epsilon(1e-5, bad),
        lambda: analytic_sigma(1.0, bad, 1.0),
    ):
        with pytest.raises(InvalidValueError):
            call()
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidValueError):
            gaussian_epsilon(delta, 1.0)


def test_laplace_profile_by_quadrature() -> None:
    y = np.linspace(-40.0, 41.3, 2_000_001)
    for ratio, epsilon in ((1.3, 0.0), (1.3, 0.7), (0.2, 0.1)):
        p, q = 0.5 * np.exp(-np.abs(y)), 0.5 * np.exp(-np.abs(y - ratio))
        truth = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), y)
        assert laplace_delta(epsilon, ratio) == pytest.approx(truth, rel=1e-6)


def test_laplace_rounds_against_enumeration_and_pure_privacy() -> None:
    """T = 2 on a fine grid of the two losses; never above T times the pure budget."""
    ratio, delta = 0.8, 0.05
    cells = np.linspace(-ratio, ratio, 4001)
    # Loss of one round: ratio w.p. 1/2, -ratio w.p. e^-ratio/2, else density e^((l - ratio)/2)/4.
    middle = 0.5 * (cells[1:] + cells[:-1])
    mass = 0.25 * np.exp((middle - ratio) / 2) * np.diff(cells)
    losses = np.concatenate([[ratio], middle, [-ratio]])
    masses = np.concatenate([[0.5], mass, [0.5 * math.exp(-ratio)]])
    assert masses.sum() == pytest.approx(1.0, abs=1e-6)

    def two_rounds(epsilon: float) -> float:
        total = losses[:, None] + losses[None, :]
        gain = -np.expm1(np.minimum(epsilon - total, 0.0))
        return float(masses @ gain @ masses)

    epsilon = laplace_epsilon(delta, ratio, 2)
    assert 0.97 * delta <= two_rounds(epsilon) <= delta * (1 + 1e-3)
    assert two_rounds(epsilon) <= laplace_delta(epsilon, ratio, 2) * (1 + 1e-3)
    assert epsilon < 2 * ratio
    assert laplace_epsilon(0.0, ratio, 5) == pytest.approx(4.0)
    assert laplace_epsilon(1e-6, ratio, 1000) < 0.5 * 800
    assert laplace_delta(1.6, ratio, 2) == 0.0


@pytest.mark.parametrize("mu", [1e3, 1e8, 1e12, 1e100])
def test_huge_parameters_lose_everything_and_overflow_nowhere(mu: float) -> None:
    """Below mu^2/2 delta is 1; a difference of exponentials would have said 0, or overflowed."""
    assert gaussian_delta(0.4 * mu * mu, mu) == 1.0
    assert gaussian_profile(0.4 * mu * mu, mu) == 1.0
    epsilon = gaussian_epsilon(1e-5, mu)
    assert 0.5 * mu * mu <= epsilon <= 0.5 * mu * mu * (1.0 + 1e-9) + 5.0 * mu
