"""The stop-loss transform of the Gaussian amplification variable, by quadrature and laws."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta


def exact_stop_loss(c: float, epsilon: float, t: float) -> mpmath.mpf:
    """E(L - t)_+ from its three normal probabilities, in 50 digits."""
    with mpmath.workdps(50):
        c_, e, t_ = mpmath.mpf(c), mpmath.mpf(epsilon), mpmath.mpf(t)
        x = (t_ + mpmath.sqrt(t_ * t_ + 4 * mpmath.exp(e - c_ * c_))) / 2
        w = mpmath.log(x) / c_ + c_ / 2
        return mpmath.ncdf(c_ - w) - mpmath.exp(e) * mpmath.ncdf(-w - c_) - t_ * mpmath.ncdf(-w)


@settings(max_examples=200, deadline=None)
@given(st.floats(-3, 0.5), st.floats(0, 3), st.floats(-8, 8))
def test_stop_loss_is_accurate_and_does_not_cancel(log_c: float, epsilon: float, w: float) -> None:
    c = 10.0**log_c
    law = GaussianLaw(c, epsilon)
    t = law._value(w)
    truth = exact_stop_loss(c, epsilon, t)
    value = float(law.stop_loss(np.array([t]))[0])
    # t itself is rounded, and at small c a whole deviation of L is only c wide.
    slack = 1e-9 * abs(truth) + 4e-16 * (abs(t) + math.exp(epsilon))
    assert abs(value - truth) <= slack


@pytest.mark.parametrize("make", [GaussianLaw, LaplaceLaw])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_stop_loss_is_convex_and_starts_at_the_local_curve(make: type, epsilon: float) -> None:
    law = make(0.4, epsilon)
    t = np.linspace(law.lower, law.upper, 4001)
    g = law.stop_loss(t)
    assert np.all(np.diff(g) <= 1e-15)
    assert np.all(np.diff(g, 2) >= -1e-13)
    assert g[0] == pytest.approx(law.mean - law.lower, rel=1e-6)
    local = (
        gaussian_delta(epsilon, 0.8) if make is GaussianLaw else -math.expm1((epsilon - 0.8) / 2)
    )
    assert float(law.stop_loss(np.zeros(1))[0]) == pytest.approx(local, rel=1e-12)


def test_what_lies_above_the_cut_is_as_small_as_asked() -> None:
    for tail in (1e-6, 1e-12, 1e-20):
        law = GaussianLaw(0.5, 0.1, tail)
        assert 0.0 < float(law.stop_loss(np.array([law.upper]))[0]) <= tail


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 1.0), st.floats(1.01, 2.0), st.floats(0.0, 1.0))
def test_the_law_grows_in_convex_order_with_the_distance(
    c: float, factor: float, epsilon: float
) -> None:
    for make in (GaussianLaw, LaplaceLaw):
        near, far = make(c, epsilon), make(min(c * factor, 2.0), epsilon)
        t = np.linspace(far.lower, min(far.upper, 20.0), 300)
        assert np.all(near.stop_loss(t) <= far.stop_loss(t) * (1 + 1e-9) + 1e-14)
