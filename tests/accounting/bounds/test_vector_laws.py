"""Blankets of Gaussian vectors: the stop-loss transform of L in 50 digits, and the penalty."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds import vector_blanket
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta
from fl_shuffle.accounting.reports import RoundType


def exact_stop_loss(c: float, epsilon: float, t: float) -> mpmath.mpf:
    """E(L - t)_+ from its three normal probabilities."""
    with mpmath.workdps(50):
        c_, e, t_ = mpmath.mpf(c), mpmath.mpf(epsilon), mpmath.mpf(t)
        x = (t_ + mpmath.sqrt(t_ * t_ + 4 * mpmath.exp(e - c_ * c_))) / 2
        w = mpmath.log(x) / c_ + c_ / 2
        return mpmath.ncdf(c_ - w) - mpmath.exp(e) * mpmath.ncdf(-w - c_) - t_ * mpmath.ncdf(-w)


@settings(max_examples=200, deadline=None)
@given(st.floats(-3, 0.5), st.floats(0, 3), st.floats(-8, 8))
def test_it_is_accurate_and_does_not_cancel(log_c: float, epsilon: float, w: float) -> None:
    c = 10.0**log_c
    law = GaussianLaw(c, epsilon)
    t = law._value(w)
    truth = exact_stop_loss(c, epsilon, t)
    # t itself is rounded, and at small c a whole deviation of L is only c wide.
    slack = 1e-9 * abs(truth) + 4e-16 * (abs(t) + math.exp(epsilon))
    assert abs(float(law.stop_loss(np.array([t]))[0]) - truth) <= slack


def test_it_starts_at_the_local_curve_and_ends_below_what_is_asked() -> None:
    for tail in (1e-6, 1e-12, 1e-20):
        law = GaussianLaw(0.4, 0.1, tail)
        at_zero, above = law.stop_loss(np.array([0.0, law.upper])).tolist()
        assert abs(at_zero / gaussian_delta(0.1, 0.8) - 1.0) < 1e-12
        assert 0.0 < above <= tail


def test_what_blankets_miss_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a depth where they miss much: far more than the blankets' own term, at most one."""
    depth, radius, epsilon, count = 0.3, 2.0, 3.0, 30
    monkeypatch.setattr(vector_blanket, "DEPTHS", np.array([depth]))
    batch = RoundType("gaussian", 1.0, radius, 2 * radius, ((radius, count),))
    bound = vector_blanket.VectorBlanket(batch, radius, np.array([radius])).delta(epsilon)
    exponent = depth * radius + 0.5 * radius**2
    missed = count * math.exp(-exponent) * gaussian_delta(exponent, radius)
    penalty = (math.expm1(epsilon) + 2 * gaussian_delta(epsilon, 2 * radius)) * missed
    assert penalty > 2 and penalty <= bound <= penalty + 1
