"""One round never costs more than two, and a bound is asked where it is finite."""

from __future__ import annotations

import pytest

import fl_shuffle as fs


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
