"""Defects measured in other accountants, each with the right answer beside the wrong one."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.accounting.laws.frequency_oracles import OptimizedUnaryEncoding, Rappor


@pytest.mark.parametrize(
    "epsilon0, n, exact",
    [
        (0.1, 100, 0.014873),
        (0.1, 1_000, 0.0041971),
        (0.1, 10_000, 0.0011601),
        (0.1, 100_000, 0.00030836),
        (4.0, 1_000, 1.52744),
        (4.0, 10_000, 0.380493),
        (4.0, 100_000, 0.109909),
    ],
)
def test_epsilon_has_no_rounding_slack(epsilon0: float, n: int, exact: float) -> None:
    """Ceil rounding on the published grid prints 15% too much at eps0 = 0.1, n = 1e5."""
    answer = blanket_epsilon(KRandomizedResponse(epsilon0, 10), n, 1e-6).epsilon
    assert answer == pytest.approx(exact, rel=2e-5 + 0.5e-4 * (epsilon0 < 1.0))


@pytest.mark.parametrize(
    "epsilon, exact",
    [
        (0.0792072, 1.18721307465049582620e-6),
        (0.157216, 2.95021068882512531620e-15),
        (0.240684, 1.48561431151956345603e-30),
    ],
)
def test_no_floor_at_one_in_a_hundred_billion(epsilon: float, exact: float) -> None:
    """Untilted transforms lose everything below about 1e-11."""
    bound = blanket_delta(KRandomizedResponse(1.0, 10), 1000, epsilon)
    assert exact <= bound.delta <= exact * (1.0 + 3e-4)


@pytest.mark.parametrize("k", [2, 3, 5, 100])
@pytest.mark.parametrize("kind", [Rappor, OptimizedUnaryEncoding])
def test_finite_domain_encodings_are_probability_laws(kind, k: int) -> None:
    """The published finite-domain RAPPOR has negative probabilities."""
    for epsilon0 in (0.1, 1.0, 4.0):
        for pair in (*kind(epsilon0, k).pairs(), *kind(epsilon0, k).witnesses()):
            for masses in (pair.p, pair.q, pair.omega):
                assert (masses >= 0.0).all()
                assert math.fsum(masses.tolist()) == pytest.approx(1.0, abs=1e-14)
            assert pair.blanket_mass <= 1.0
        finite = blanket_delta(kind(epsilon0, k), 100, 0.1 * epsilon0).delta
        assert finite <= blanket_delta(kind(epsilon0), 100, 0.1 * epsilon0).delta * (1.0 + 3e-4)
