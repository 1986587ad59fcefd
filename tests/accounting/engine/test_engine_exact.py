"""Exact enumeration for small n, and high-precision oracles: every randomizer, both directions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta
from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import (
    KRandomizedResponse,
    MatrixRandomizer,
    Randomizer,
)
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    OptimizedUnaryEncoding,
    Rappor,
)
from tests.oracles import (
    Matrix,
    hash_matrix,
    krr_matrix,
    oue_matrix,
    rappor_matrix,
    worst_divergence,
)

SMALL: list[tuple[Randomizer, Matrix, int]] = [
    (KRandomizedResponse(1.0, 2), krr_matrix(1.0, 2), 6),
    (KRandomizedResponse(2.0, 3), krr_matrix(2.0, 3), 5),
    (Rappor(1.0, 2), rappor_matrix(1.0, 2), 4),
    (Rappor(2.0), rappor_matrix(2.0, 3), 3),
    (OptimizedUnaryEncoding(1.5), oue_matrix(1.5, 3), 3),
    (BinaryLocalHashing(1.0), hash_matrix(1.0, 3), 3),
    (
        MatrixRandomizer([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]),
        [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]],
        5,
    ),
    (
        MatrixRandomizer([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25]]),
        [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25]],
        4,
    ),
]


@pytest.mark.parametrize(
    "randomizer, matrix, n", SMALL, ids=lambda value: getattr(value, "name", "")
)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7])
def test_upper_bound_covers_every_neighbouring_pair(
    randomizer: Randomizer, matrix: Matrix, n: int, share: float
) -> None:
    budget = min(randomizer.local_epsilon, 2.0)
    epsilon = share * budget
    worst, _ = worst_divergence(matrix, n, epsilon)
    upper = blanket_delta(randomizer, n, epsilon).delta
    lower = lower_bound_delta(randomizer, n, epsilon).delta
    assert worst <= upper * (1.0 + 1e-12)
    assert lower <= worst * (1.0 + 1e-12)


@pytest.mark.parametrize(
    ("epsilon0", "k", "n"), [(1.0, 2, 6), (4.0, 3, 5), (3.0, 4, 4), (8.0, 4, 4)]
)
def test_lower_bound_of_randomized_response_is_near_the_truth(
    epsilon0: float, k: int, n: int
) -> None:
    """Others at one third value only reach 0.11 of the truth in the worst of these."""
    for share in (0.0, 0.1, 0.5, 0.9):
        epsilon = share * epsilon0
        worst, _ = worst_divergence(krr_matrix(epsilon0, k), n, epsilon)
        reached = lower_bound_delta(KRandomizedResponse(epsilon0, k), n, epsilon).delta
        assert 0.8 * worst <= reached <= worst * (1.0 + 1e-12)


def enumerated(law: AtomicLaw, gammas: Sequence[float]) -> float:
    """E[L_1 1{L_1 + sum B_j L_j > 0}] by brute force."""
    total = []
    choices = [
        [
            (0.0, 1.0 - gamma),
            *((v, gamma * p) for v, p in zip(law.values, law.probabilities, strict=True)),
        ]
        for gamma in gammas
    ]
    for value, chance in zip(law.values, law.probabilities, strict=True):
        for others in itertools.product(*choices):
            if value + sum(v for v, _ in others) > 0.0:
                total.append(value * chance * math.prod(p for _, p in others))
    return math.fsum(total)


@pytest.mark.parametrize(
    "gammas", [(0.3, 0.7, 0.9, 0.05), (1.0, 1.0, 0.5), (0.2,) * 5, (1e-6, 0.4), (0.0, 0.6)]
)
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
    split = [(0.6 * (1.0 + i * 1e-15), n // 10) for i in range(10)]
    many = amplified_delta(law, split)
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
