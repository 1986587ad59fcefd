"""Defects measured in other accountants, each with the right answer beside the wrong one."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon, smallest_cohort
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    HadamardResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from fl_shuffle.accounting.laws.products import JointComposition


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


def test_four_fold_joint_report() -> None:
    """The published code prints .0354 for four 10-RR at eps0 = 4 in all; near-exact is .0211."""
    joint = JointComposition(tuple(KRandomizedResponse(1.0, 10) for _ in range(4)))
    upper = blanket_epsilon(joint, 100_000, 1e-6).epsilon
    lower = lower_bound_epsilon(joint, 100_000, 1e-6).epsilon
    assert lower <= upper < 0.0354
    assert upper == pytest.approx(0.0211, rel=3e-3)


def test_lower_bound_is_not_rounded_into_the_ground() -> None:
    """Same rounding in the published lower bound: .0718 where the dataset attains .1099."""
    assert lower_bound_epsilon(KRandomizedResponse(4.0, 10), 100_000, 1e-6).epsilon > 0.1098


def test_hadamard_lower_bound_stays_below_its_upper_bound() -> None:
    for epsilon0 in (0.1, 1.0, 4.0):
        for n in (10, 1_000, 100_000):
            upper = blanket_epsilon(HadamardResponse(epsilon0), n, 1e-6).epsilon
            assert lower_bound_epsilon(HadamardResponse(epsilon0), n, 1e-6).epsilon <= upper


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


def test_variation_ratio_numbers_are_below_what_a_dataset_attains() -> None:
    """n = 50, eps0 = 4: variation-ratio prints 3.41497 where 3.80644 is attained at 1e-6."""
    randomizer = KRandomizedResponse(4.0, 10)
    attained = lower_bound_epsilon(randomizer, 50, 1e-6).epsilon
    upper = blanket_epsilon(randomizer, 50, 1e-6).epsilon
    assert attained > 3.41497
    assert 3.80644 < attained <= upper
    assert upper >= attained
    small = lower_bound_delta(randomizer, 5, 3.0, both_directions=True).delta
    assert small > 0.36876
    assert small == pytest.approx(0.37419, rel=5e-4)


def test_gspa_at_a_thousand_clients() -> None:
    """GSPA prints 1.449 at eps0 = 4 and .250 at eps0 = 0.1; 1.527 and .0099 are the facts."""
    assert lower_bound_epsilon(KRandomizedResponse(4.0, 10), 1000, 1e-6).epsilon > 1.52
    worst = blanket_epsilon(KRandomizedResponse(0.1, 2), 1000, 1e-6).epsilon
    assert worst == pytest.approx(0.0099, rel=0.05)
    assert worst < 0.250 / 20.0


def test_tiny_cohorts_are_answered_honestly() -> None:
    """Published clone codes print .0039 at n = 100, eps0 = 4 and .00098 at n = 1."""
    for n in (1, 2, 100):
        randomizer = BinaryLocalHashing(4.0)
        upper = blanket_epsilon(randomizer, n, 1e-6)
        assert lower_bound_epsilon(randomizer, n, 1e-6).epsilon <= upper.epsilon <= 4.0 * (1 + 1e-9)
    alone = blanket_epsilon(KRandomizedResponse(4.0, 10), 1, 1e-6).epsilon
    assert alone == pytest.approx(4.0, rel=1e-4)


def test_smallest_safe_batch_is_answered() -> None:
    n = smallest_cohort(KRandomizedResponse(2.0, 10), 0.2, 1e-6)
    assert blanket_epsilon(KRandomizedResponse(2.0, 10), n, 1e-6).epsilon <= 0.2 * (1.0 + 1e-6)
