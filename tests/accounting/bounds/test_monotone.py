"""More clients, a larger delta, a smaller local budget or fewer rounds never cost more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_shuffle as fs

ROUND_OFF = 1.0 + 1e-3
"""Curves are found to a thousandth of delta; the parameters of two batches differ."""


def proven(epsilon0: float, clients: int, delta: float, rounds: int) -> float:
    return fs.bound(
        randomizer="gaussian", unit="client", delta0=1e-5, calibration="analytic",
        epsilon0=epsilon0, clients=clients, delta=delta, rounds=rounds,
    ).epsilon  # fmt: skip


@pytest.mark.slow
@given(
    st.floats(math.log(0.3), math.log(8.0)).map(math.exp),
    st.floats(math.log(5), math.log(30_000)).map(lambda log: round(math.exp(log))),
    st.floats(-9.0, -3.0).map(lambda log: 10.0**log),
    st.integers(1, 3),
)
@settings(max_examples=5, deadline=None)
def test_an_epsilon_is_monotone_in_every_number(
    epsilon0: float, clients: int, delta: float, rounds: int
) -> None:
    here = proven(epsilon0, clients, delta, rounds)
    assert here <= proven(epsilon0, clients, delta, rounds + 1) * ROUND_OFF
    assert here <= proven(epsilon0, max(2, round(clients / 1.5)), delta, rounds) * ROUND_OFF
    assert here <= proven(epsilon0, clients, delta / 3.0, rounds) * ROUND_OFF
    assert here <= proven(1.2 * epsilon0, clients, delta, rounds) * ROUND_OFF


@pytest.mark.parametrize(
    ("epsilon0", "clients", "most"),
    [pytest.param(8.0, 1000, 2.7, marks=pytest.mark.slow), (5.0, 50, 2.46)],
)
def test_the_bound_is_asked_where_it_is_finite(epsilon0: float, clients: int, most: float) -> None:
    """Far out the theorem gives nothing; nearer by, where it does, it says far less than local."""
    question = {
        "randomizer": "gaussian", "unit": "client", "calibration": "classical",
        "epsilon0": epsilon0, "delta0": 1e-5, "clients": clients,
    }  # fmt: skip
    once = fs.bound(**question, delta=1e-6)
    assert once.epsilon <= most
    assert once.epsilon <= fs.bound(**question, delta=1e-6, rounds=2).epsilon
    # It is where the curve crosses the target, and the curve agrees with itself beyond.
    assert fs.bound(**question, epsilon=once.epsilon).delta <= 1e-6
    # (Its parameters jump a little where single large ratios decide.)
    assert fs.bound(**question, epsilon=0.97 * once.epsilon).delta > 1e-6
    assert fs.bound(**question, epsilon=2.0 * once.epsilon).delta <= 1.2e-6
