"""Randomizers against exact values: enumerated small shuffles, 30-digit records, quadrature."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta
from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.bounds.clones import clone_curve, standard_clone
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.worst_client import safe_groups, worst_client_curve
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.amplification import AtomicLaw, Case
from fl_shuffle.accounting.laws.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer, Randomizer
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    OptimizedUnaryEncoding,
    Rappor,
)
from fl_shuffle.accounting.queries.methods import METHODS
from tests import oracles
from tests.repository import ROOT

RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/golden/exact_delta.json").read_text("utf-8")
)["records"]
ROUND_OFF = 1e-13

RANDOMIZERS: dict[str, Callable[[float], Randomizer]] = {
    "10-RR": lambda e: KRandomizedResponse(e, 10),
    "2-RR": lambda e: KRandomizedResponse(e, 2),
    "BLH": BinaryLocalHashing,
    "OUE": OptimizedUnaryEncoding,
    "RAPPOR": Rappor,
}
SMALL: list[tuple[Randomizer, oracles.Matrix, int]] = [
    (KRandomizedResponse(1.0, 2), oracles.krr_matrix(1.0, 2), 6),
    (KRandomizedResponse(4.0, 3), oracles.krr_matrix(4.0, 3), 4),
    (Rappor(1.0, 2), oracles.rappor_matrix(1.0, 2), 4),
    (OptimizedUnaryEncoding(1.5), oracles.oue_matrix(1.5, 3), 3),
    (BinaryLocalHashing(1.0), oracles.hash_matrix(1.0, 3), 3),
    (MatrixRandomizer(oracles.OWN), oracles.OWN, 5),
    (MatrixRandomizer(oracles.HALF_HIDDEN), oracles.HALF_HIDDEN, 4),
]


@pytest.mark.parametrize(
    ("randomizer", "matrix", "most"), SMALL, ids=lambda value: getattr(value, "name", "")
)
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.02])
def test_bounds_bracket_every_neighbouring_pair(
    randomizer: Randomizer, matrix: oracles.Matrix, most: int, rate: float
) -> None:
    """Everybody takes part, or each at random; absence is an outcome of its own."""
    seen = matrix if rate == 1.0 else oracles.absent_too(matrix, rate)
    for n in (1, 2, most):
        exact = oracles.worst_curve(seen, n)
        for epsilon in (0.0, 0.01, 0.3, 0.9):
            worst = exact(epsilon)
            upper = blanket_delta(randomizer, n, epsilon, participation=rate).delta
            lower = lower_bound_delta(randomizer, n, epsilon, participation=rate).delta
            assert lower * (1.0 - 1e-12) <= worst <= upper * (1.0 + 1e-12)
            local = max(case.local_delta(epsilon) for case in randomizer.cases())
            assert upper <= rate * local * (1.0 + 1e-9)
            if rate == 1.0 and isinstance(randomizer, KRandomizedResponse):
                # Others at one third value only reach 0.11 of the truth in the worst of these.
                assert 0.8 * worst <= lower


@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("budgets", [(0.3, 1.0, 2.5), (1.0, 4.0)])
def test_others_with_budgets_of_their_own(budgets: tuple[float, ...], rate: float) -> None:
    """One client of budget 1.5 among others with these: every data set of theirs, k = 3."""
    curve = worst_client_curve(
        [LocalBudget(1.5), *map(LocalBudget, budgets)],
        lambda epsilon0: KRandomizedResponse(epsilon0, 3).cases()[0].law,
        lambda own, other: KRandomizedResponse(other.epsilon0, 3).cases()[0].blanket_mass,
        participation=rate,
    )
    matrices = [
        oracles.absent_too(oracles.krr_matrix(budget, 3), rate) for budget in (1.5, *budgets)
    ]
    for epsilon in (0.0, 0.05, 0.5):
        assert oracles.worst_delta(matrices, epsilon) <= curve(epsilon).delta * (1.0 + 1e-12)


KNOWING_ABSENCE = [name for name, method in METHODS.items() if method.absence and name != "proven"]


@pytest.mark.parametrize("method", KNOWING_ABSENCE)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_method_that_knows_of_absence_brackets_the_truth(method: str, rate: float) -> None:
    """Through the public face; `proven` is about vectors (test_check_in.py)."""
    question = {"randomizer": "krr", "k": 2, "epsilon0": 1.0, "participation": rate}
    seen = oracles.absent_too(oracles.krr_matrix(1.0, 2), rate)
    for n in (1, 2, 5):
        exact = oracles.worst_curve(seen, n)
        for epsilon in (0.05, 0.3):
            worst = exact(epsilon)
            answer = fs.bound(**question, clients=n, epsilon=epsilon, method=method)
            if answer.status is Status.LOWER_BOUND:
                assert answer.delta <= worst * (1.0 + 1e-9)
            else:
                assert answer.delta >= worst * (1.0 - 1e-9)
            if n == 1:
                # Nobody hides the client but its own coin.
                assert answer.delta == pytest.approx(worst, rel=1e-6)


def records(name: str) -> list[tuple[int, float, float, float]]:
    """(n, eps0, eps, exact delta), by ball arithmetic, good to 30 digits."""
    found = [(r["n"], r["eps0"], r["eps"], float(r["delta"])) for r in RECORDS if r["mech"] == name]
    assert found, name
    return found


@pytest.mark.parametrize("name", RANDOMIZERS)
def test_upper_bound_is_above_and_within_three_parts_in_ten_thousand(name: str) -> None:
    for n, epsilon0, epsilon, exact in records(name):
        bound = blanket_delta(RANDOMIZERS[name](epsilon0), n, epsilon)
        assert -ROUND_OFF <= bound.delta / exact - 1.0 <= 3e-4, (n, epsilon0, epsilon)
        assert bound.delta - bound.numerical_error <= exact * (1.0 + ROUND_OFF)


class FirstWitness:
    """A randomizer whose lower bound tries one data set only, that of the golden numbers."""

    def __init__(self, randomizer: Randomizer) -> None:
        self._randomizer = randomizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._randomizer, name)

    def witness_cases(self) -> tuple[Case, ...]:
        return self._randomizer.witness_cases()[:1]


@pytest.mark.parametrize("name", ["10-RR", "2-RR"])
def test_lower_bound_is_below_and_within_five_parts_in_ten_thousand(name: str) -> None:
    for n, epsilon0, epsilon, exact in records(f"{name}-lower"):
        bound = lower_bound_delta(FirstWitness(RANDOMIZERS[name](epsilon0)), n, epsilon)
        assert -ROUND_OFF <= 1.0 - bound.delta / exact <= 5e-4, (n, epsilon0, epsilon)


def test_standard_clone_matches_every_exact_record_from_above() -> None:
    for n, epsilon0, epsilon, exact in records("clone"):
        ours = standard_clone(epsilon0, n, epsilon=epsilon).delta
        assert exact * (1.0 - ROUND_OFF) <= ours <= exact * (1.0 + 1e-3), (n, epsilon0, epsilon)


def test_grouping_many_budgets_is_safe_and_tight() -> None:
    """The grouped curve is above the ungrouped one, by little."""
    rng = np.random.default_rng(5)
    masses = [(float(p), 1) for p in rng.uniform(0.2, 0.9, 200)]
    exact, grouped = clone_curve(1.0, masses), clone_curve(1.0, safe_groups(masses, 12))
    for epsilon in (0.0, 0.2, 0.4):
        assert exact(epsilon).lower <= grouped(epsilon).delta <= exact(epsilon).delta * 1.02


def enumerated(law: AtomicLaw, gammas: Sequence[float]) -> float:
    """E[L_1 1{L_1 + sum B_j L_j > 0}] by brute force."""
    total, chance = np.zeros(1), np.ones(1)
    for gamma in gammas:
        total = np.add.outer(total, [0.0, *law.values]).ravel()
        drawn = [1.0 - gamma, *(gamma * law.probabilities)]
        chance = np.multiply.outer(chance, drawn).ravel()
    positive = np.add.outer(law.values, total) > 0.0
    return float((law.values * law.probabilities) @ positive @ chance)


@pytest.mark.parametrize("gammas", [(0.3, 0.7, 0.9, 0.05), (1.0, 1.0, 0.5), (1e-6, 0.4, 0.0)])
def test_personal_blanket_masses_against_enumeration(gammas: tuple[float, ...]) -> None:
    for epsilon in (0.0, 0.4, 1.2):
        law = KRandomizedResponse(1.5, 3).pairs()[0].law(epsilon)
        assert law is not None
        exact = enumerated(law, gammas)
        bound = amplified_delta(law, [(gamma, 1) for gamma in gammas])
        assert exact * (1.0 - 1e-12) <= bound.delta <= exact * (1.0 + 1.5e-4)
        assert bound.lower <= exact * (1.0 + 1e-12)


@pytest.mark.parametrize("n", [3_000, 40_000])
def test_count_representations_agree(n: int) -> None:
    """Many classes, number by number, against the closed form of one, with equal masses."""
    law = KRandomizedResponse(1.0, 10).pairs()[0].law(2.0 / math.sqrt(n))
    assert law is not None
    one = amplified_delta(law, [(0.6, n)])
    many = amplified_delta(law, [(0.6 * (1.0 + i * 1e-15), n // 10) for i in range(10)])
    assert many.delta == pytest.approx(one.delta, rel=1e-4)
    assert many.lower <= one.delta and one.lower <= many.delta


@pytest.mark.parametrize("epsilon0, epsilon", [(1.0, 0.3), (2.0, 0.1), (0.5, 0.4)])
def test_laplace_against_quadrature(epsilon0: float, epsilon: float) -> None:
    """n = 2: delta = (1 - gamma) E(L)_+ + gamma E(L_1 + L_2)_+ / 2, by quadrature on fine cells."""
    half = 0.5 * epsilon0
    law = LaplaceLaw(half, epsilon)

    def paired(x: np.ndarray) -> np.ndarray:
        """E(value + L_2)_+ over both signs of the first client's report, at its distance x."""
        z = 2.0 * np.minimum(x, half) - half
        up, down = np.exp(z) - math.exp(epsilon - half), math.exp(-half) - np.exp(epsilon + z)
        return 0.5 * (law.stop_loss(-up) + law.stop_loss(-down))

    node, weight = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(0.0, half, 20_001)
    width = 0.5 * (edges[1] - edges[0])
    x = 0.5 * (edges[:-1] + edges[1:])[:, None] + width * node
    pair = float(np.sum(np.exp(-x) * paired(x.ravel()).reshape(x.shape) * (width * weight)))
    pair += math.exp(-half) * float(paired(np.array([half]))[0])
    gamma = math.exp(-half)
    exact = (1.0 - gamma) * float(law.stop_loss(np.zeros(1))[0]) + gamma * 0.5 * pair
    bound = blanket_delta(LaplaceRandomizer(epsilon0), 2, epsilon)
    assert exact * (1.0 - 1e-6) <= bound.delta <= exact * (1.0 + 4e-4)
