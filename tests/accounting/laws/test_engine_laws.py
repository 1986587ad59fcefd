"""Laws that must hold for every input: monotonicity, order, invariance, safe inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds import (
    blanket_delta,
    blanket_epsilon,
    largest_local_budget,
    smallest_cohort,
)
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws import frequency_oracles as oracles
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer, Randomizer
from fl_shuffle.accounting.laws.products import JointComposition, ParallelComposition

SLACK = 1.0 + 3e-4
"""Two certified values may differ by their own numerical error; a law may be violated by that."""

VANISHING = 2e-278
"""Deltas below e^-640 are all reported as that number."""

FAMILIES = {
    "krr": lambda e: KRandomizedResponse(e, 10),
    "binary": lambda e: KRandomizedResponse(e, 2),
    "blh": oracles.BinaryLocalHashing,
    "hadamard": oracles.HadamardResponse,
    "rappor": oracles.Rappor,
    "rappor-3": lambda e: oracles.Rappor(e, 3),
    "oue": oracles.OptimizedUnaryEncoding,
}
families = st.sampled_from(sorted(FAMILIES)).map(FAMILIES.__getitem__)
budgets = st.floats(0.05, 5.0)
cohorts = st.integers(1, 100_000)
shares = st.floats(0.0, 0.9)
quick = settings(max_examples=25, deadline=None)


@quick
@given(families, budgets, cohorts, shares, st.floats(0.0, 1.0))
def test_delta_falls_with_epsilon_and_lies_between_lower_bound_and_local(
    family, epsilon0: float, n: int, share: float, further: float
) -> None:
    randomizer = family(epsilon0)
    near, far = share * epsilon0, (share + (1.0 - share) * further) * epsilon0
    first = blanket_delta(randomizer, n, near)
    assert blanket_delta(randomizer, n, far).delta <= first.delta * SLACK + VANISHING
    assert lower_bound_delta(randomizer, n, near).delta <= first.delta
    local = max(case.local_delta(near) for case in randomizer.cases())
    assert first.delta <= local * (1.0 + 1e-12)
    assert 0.0 <= first.numerical_error <= 3e-4 * first.delta + VANISHING


@quick
@given(families, budgets, cohorts, shares, st.integers(0, 100_000))
def test_more_reports_never_hurt(family, epsilon0: float, n: int, share: float, more: int) -> None:
    randomizer, epsilon = family(epsilon0), share * epsilon0
    fewer = blanket_delta(randomizer, n, epsilon).delta
    assert blanket_delta(randomizer, n + more, epsilon).delta <= fewer * SLACK + VANISHING


@quick
@given(families, budgets, cohorts, st.floats(0.0, 0.5), st.floats(1.0, 1.5))
def test_larger_local_budgets_never_help(
    family, epsilon0: float, n: int, epsilon: float, factor: float
) -> None:
    small = blanket_delta(family(epsilon0), n, epsilon).delta
    larger = blanket_delta(family(epsilon0 * factor), n, epsilon).delta
    assert small <= larger * SLACK + VANISHING


@quick
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 500)), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.floats(0.2, 3.0),
    shares,
)
def test_order_of_the_other_clients_does_not_matter(classes, random, epsilon0, share) -> None:
    law = KRandomizedResponse(epsilon0, 4).pairs()[0].law(share * epsilon0)
    shuffled = list(classes)
    random.shuffle(shuffled)
    assert amplified_delta(law, classes) == amplified_delta(law, shuffled)


@quick
@given(st.floats(0.02, 1.0), st.integers(1, 3000), st.integers(1, 3000), st.floats(0.0, 0.9))
def test_hiding_better_helps(gamma: float, few: int, many: int, share: float) -> None:
    """Raising some blanket masses, or adding classes, never raises delta."""
    law = KRandomizedResponse(1.0, 10).pairs()[0].law(share)
    base = amplified_delta(law, [(0.5 * gamma, few), (gamma, many)]).delta
    assert amplified_delta(law, [(gamma, few + many)]).delta <= base * SLACK + VANISHING
    assert base <= amplified_delta(law, [(gamma, many)]).delta * SLACK + VANISHING


@quick
@given(families, budgets, st.integers(2, 10_000), shares)
def test_composition_of_one_is_itself(family, epsilon0: float, n: int, share: float) -> None:
    alone = family(epsilon0)
    expected = blanket_delta(alone, n, share * epsilon0).delta
    joint = blanket_delta(JointComposition((alone,)), n, share * epsilon0).delta
    parallel = blanket_delta(ParallelComposition(((1.0, alone),)), n, share * epsilon0).delta
    assert joint == pytest.approx(expected, rel=1e-9)
    assert parallel == pytest.approx(expected, rel=1e-9)


@quick
@given(budgets, st.integers(2, 10_000), shares, st.integers(1, 20))
def test_equal_personal_budgets_are_the_homogeneous_bound(
    epsilon0: float, n: int, share: float, pieces: int
) -> None:
    own = KRandomizedResponse(epsilon0, 5)
    split = [(n - 1) // pieces] * (pieces - 1)
    others = [(own, count) for count in [*split, n - 1 - sum(split)]]
    whole = blanket_delta(own, n, share * epsilon0)
    assert blanket_delta(own, n, share * epsilon0, others=others).delta == whole.delta


@quick
@given(families, st.floats(0.1, 4.0), st.integers(1, 50_000), st.floats(-12.0, -1.0))
def test_epsilon_is_safe_and_tight(family, epsilon0: float, n: int, log_delta: float) -> None:
    randomizer, delta = family(epsilon0), 10.0**log_delta
    answer = blanket_epsilon(randomizer, n, delta)
    assert blanket_delta(randomizer, n, answer.epsilon).delta <= delta
    below = lower_bound_epsilon(randomizer, n, delta).epsilon
    assert below <= answer.epsilon
    if answer.epsilon > 0.0 and answer.epsilon < epsilon0 * (1.0 - 1e-9):
        assert blanket_delta(randomizer, n, answer.epsilon * (1.0 - 1e-3)).delta >= delta * 0.999


def test_joint_composition_amplifies_more_than_its_total_budget() -> None:
    """4 answers at eps0/4 are hidden better than one at eps0; permuting them changes nothing."""
    parts = tuple(KRandomizedResponse(e, 10) for e in (0.1, 0.2, 0.3, 0.4))
    joint = blanket_epsilon(JointComposition(parts), 2000, 1e-6).epsilon
    assert joint < blanket_epsilon(KRandomizedResponse(1.0, 10), 2000, 1e-6).epsilon
    again = blanket_epsilon(JointComposition(parts[::-1]), 2000, 1e-6).epsilon
    assert joint == pytest.approx(again, rel=1e-9)
    lower = lower_bound_epsilon(JointComposition(parts), 2000, 1e-6).epsilon
    assert lower <= joint


def test_eight_different_parts_can_be_joined() -> None:
    joint = JointComposition(tuple(KRandomizedResponse(0.02 * i, 10) for i in range(1, 9)))
    assert joint.local_epsilon == pytest.approx(0.72)
    upper, lower = blanket_epsilon(joint, 10_000, 1e-6), lower_bound_epsilon(joint, 10_000, 1e-6)
    assert 0.0 < lower.epsilon <= upper.epsilon < 1.2 * lower.epsilon


@pytest.mark.parametrize("epsilon0", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("cells", [3, 20, 400])
def test_finite_laplace_pair_dominates_in_convex_order(epsilon0: float, cells: int) -> None:
    for epsilon in (0.0, 0.3 * epsilon0):
        exact = LaplaceLaw(0.5 * epsilon0, epsilon)
        rounded = LaplaceRandomizer(epsilon0).dominating_pair(cells).law(epsilon)
        assert rounded is not None
        grid = np.linspace(exact.lower, exact.upper, 501)
        assert np.all(rounded.stop_loss(grid) >= exact.stop_loss(grid) * (1.0 - 1e-12) - 1e-15)
        assert rounded.mean == pytest.approx(exact.mean, abs=1e-13)


def test_laplace_parts_can_be_joined() -> None:
    laplace = LaplaceRandomizer(1.0)
    alone = blanket_epsilon(laplace, 1000, 1e-6).epsilon
    assert blanket_epsilon(JointComposition((laplace,)), 1000, 1e-6).epsilon == pytest.approx(
        alone, rel=1e-4
    )
    halves = JointComposition((LaplaceRandomizer(0.5), LaplaceRandomizer(0.5)))
    mixed = JointComposition((LaplaceRandomizer(0.5), KRandomizedResponse(0.5, 10)))
    for joint in (halves, mixed):
        upper = blanket_epsilon(joint, 1000, 1e-6).epsilon
        assert lower_bound_epsilon(joint, 1000, 1e-6).epsilon < upper < alone


def test_parallel_lies_between_its_parts_and_takes_continuous_ones() -> None:
    krr, laplace = KRandomizedResponse(1.0, 10), LaplaceRandomizer(1.0)
    alone = [blanket_epsilon(part, 1000, 1e-6).epsilon for part in (krr, laplace)]
    mixed = blanket_epsilon(ParallelComposition(((0.3, krr), (0.7, laplace))), 1000, 1e-6).epsilon
    assert min(alone) < mixed < max(alone)


def test_matrix_form_of_randomized_response_is_the_named_one() -> None:
    low = 1.0 / (math.e + 2.0)
    matrix = np.full((3, 3), low) + np.eye(3) * low * (math.e - 1.0)
    named, given_ = KRandomizedResponse(1.0, 3), MatrixRandomizer(matrix)
    for n, epsilon in ((7, 0.4), (1000, 0.1)):
        expected = blanket_delta(named, n, epsilon).delta
        assert blanket_delta(given_, n, epsilon).delta == pytest.approx(expected, rel=1e-9)
    assert given_.local_epsilon == pytest.approx(1.0)


def test_disjoint_supports_give_the_local_answer() -> None:
    silent = MatrixRandomizer([[1.0, 0.0], [0.0, 1.0]])
    assert blanket_delta(silent, 10**6, 3.0).delta == 1.0
    assert blanket_epsilon(silent, 10**6, 1e-6).epsilon == math.inf
    partly = MatrixRandomizer([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert blanket_delta(partly, 10**6, 1.0).delta >= 0.5
    assert lower_bound_delta(partly, 1000, 1.0).delta >= 0.49


def test_cohort_and_budget_searches_are_safe_and_minimal() -> None:
    randomizer = KRandomizedResponse(1.0, 10)
    n = smallest_cohort(randomizer, 0.1, 1e-6)
    assert blanket_delta(randomizer, n, 0.1).delta <= 1e-6
    assert blanket_delta(randomizer, n - 1, 0.1).delta > 1e-6
    assert smallest_cohort(randomizer, 1.0, 1e-6) == 1
    budget = largest_local_budget(lambda e: KRandomizedResponse(e, 10), 10_000, 0.1, 1e-6)
    assert blanket_delta(KRandomizedResponse(budget, 10), 10_000, 0.1).delta <= 1e-6
    assert blanket_delta(KRandomizedResponse(budget * 1.001, 10), 10_000, 0.1).delta > 1e-6
    assert largest_local_budget(KRR2, 1, 0.7, 1e-9) == pytest.approx(0.7, rel=1e-5)


def KRR2(epsilon0: float) -> Randomizer:
    return KRandomizedResponse(epsilon0, 2)


def test_law_given_by_its_stop_loss_is_never_below_its_own_atoms() -> None:
    """A finite law passed through the convex rounding stays above its exact bound, within 1e-3."""
    atoms = KRandomizedResponse(1.0, 10).pairs()[0].law(0.15)
    assert atoms is not None

    class Hidden:
        """The same law, known only through its stop-loss transform."""

        lower, upper, mean = atoms.lower, atoms.upper, atoms.mean
        stop_loss = staticmethod(atoms.stop_loss)

    for n in (20, 1000, 100_000):
        exact = amplified_delta(atoms, [(0.8, n)])
        rounded = amplified_delta(Hidden(), [(0.8, n)], relative_error=5e-4)
        assert exact.lower <= rounded.delta <= exact.delta * (1.0 + 1e-3)


def test_cut_upper_tail_is_added() -> None:
    """A law cut at `upper` reports E(L - upper)_+ and the engine adds it."""
    law = LaplaceLaw(0.5, 0.05)

    class Cut:
        lower, upper, mean = law.lower, law.upper * 0.98, law.mean
        stop_loss = staticmethod(law.stop_loss)

    excess = float(law.stop_loss(np.array([Cut.upper]))[0])
    whole, cut = (amplified_delta(x, [(0.6, 300)], relative_error=1e-3) for x in (law, Cut()))
    assert excess > 0.0
    assert whole.lower <= cut.delta
    assert cut.delta <= whole.delta + 1.01 * excess


def test_law_of_atoms_has_the_right_transform() -> None:
    law = AtomicLaw.of([2.0, -1.0, 0.5, 2.0], [0.1, 0.5, 0.2, 0.2])
    assert law.values.tolist() == [-1.0, 0.5, 2.0]
    assert law.mean == pytest.approx(0.2)
    grid = np.array([-5.0, -1.0, 0.0, 0.5, 1.0, 2.0, 7.0])
    expected = [float(np.maximum(law.values - t, 0) @ law.probabilities) for t in grid]
    assert law.stop_loss(grid) == pytest.approx(expected, abs=1e-15)
