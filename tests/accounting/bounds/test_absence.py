"""Secret check-in: the bound against exact enumeration with absence as an outcome of its own."""

from __future__ import annotations

import itertools
import math

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta
from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.worst_client import worst_client_curve
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer, Randomizer
from fl_shuffle.accounting.laws.frequency_oracles import Rappor
from fl_shuffle.accounting.queries.methods import METHODS
from tests.oracles import (
    Matrix,
    absent_too,
    hockey_stick,
    krr_matrix,
    rappor_matrix,
    shuffled_law,
    worst_divergence,
)

OWN = [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]
HALF_HIDDEN = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25]]
SMALL: list[tuple[Randomizer, Matrix, int]] = [
    (KRandomizedResponse(1.0, 2), krr_matrix(1.0, 2), 5),
    (KRandomizedResponse(3.0, 2), krr_matrix(3.0, 2), 5),
    (KRandomizedResponse(1.5, 3), krr_matrix(1.5, 3), 5),
    (Rappor(2.0, 2), rappor_matrix(2.0, 2), 4),
    (MatrixRandomizer(OWN), OWN, 4),
    (MatrixRandomizer(HALF_HIDDEN), HALF_HIDDEN, 4),
]


@pytest.mark.parametrize(
    ("randomizer", "matrix", "most"), SMALL, ids=lambda value: getattr(value, "name", "")
)
@pytest.mark.parametrize("rate", [0.02, 0.9])
def test_bounds_bracket_every_neighbouring_pair(
    randomizer: Randomizer, matrix: Matrix, most: int, rate: float
) -> None:
    seen = absent_too(matrix, rate)
    for n in (1, 2, most):
        for epsilon in (0.0, 0.01, 0.3, 0.9):
            worst, _ = worst_divergence(seen, n, epsilon)
            upper = blanket_delta(randomizer, n, epsilon, participation=rate).delta
            lower = lower_bound_delta(randomizer, n, epsilon, participation=rate).delta
            assert lower * (1.0 - 1e-12) <= worst <= upper * (1.0 + 1e-12)
            public = (
                rate * math.exp(0.0) * max(case.local_delta(epsilon) for case in randomizer.cases())
            )
            assert upper <= public * (1.0 + 1e-9)


@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("budgets", [(0.3, 1.0, 2.5), (1.0, 4.0)])
def test_others_with_budgets_of_their_own(budgets: tuple[float, ...], rate: float) -> None:
    """One client of budget 1.5 among others with these: every data set of theirs, k = 3."""
    own = absent_too(krr_matrix(1.5, 3), rate)
    curve = worst_client_curve(
        [LocalBudget(1.5), *map(LocalBudget, budgets)],
        lambda epsilon0: KRandomizedResponse(epsilon0, 3).cases()[0].law,
        lambda own, other: KRandomizedResponse(other.epsilon0, 3).cases()[0].blanket_mass,
        participation=rate,
    )
    for epsilon in (0.0, 0.05, 0.5):
        worst = 0.0
        for inputs in itertools.product(range(3), repeat=len(budgets)):
            rows = [
                absent_too(krr_matrix(budget, 3), rate)[value]
                for value, budget in zip(inputs, budgets, strict=True)
            ]
            laws = [shuffled_law([own[x], *rows]) for x in range(3)]
            for a, b in itertools.permutations(laws, 2):
                worst = max(worst, hockey_stick(a, b, epsilon))
        assert worst <= curve(epsilon).delta * (1.0 + 1e-12)


KNOWING_ABSENCE = [name for name, method in METHODS.items() if method.absence and name != "proven"]


@pytest.mark.parametrize("method", KNOWING_ABSENCE)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_method_that_knows_of_absence_brackets_the_truth(method: str, rate: float) -> None:
    """Through the public face; `proven` is about vectors (`test_vector_absence`)."""
    question = {"randomizer": "krr", "k": 2, "epsilon0": 1.0, "participation": rate}
    seen = absent_too(krr_matrix(1.0, 2), rate)
    for n in (1, 2, 5):
        for epsilon in (0.05, 0.3):
            worst, _ = worst_divergence(seen, n, epsilon)
            answer = fs.bound(**question, clients=n, epsilon=epsilon, method=method)
            if answer.status is Status.LOWER_BOUND:
                assert answer.delta <= worst * (1.0 + 1e-9)
            else:
                assert answer.delta >= worst * (1.0 - 1e-9)
            if n == 1:
                # Nobody hides the client but its own coin.
                assert answer.delta == pytest.approx(worst, rel=1e-6)
