"""Bad input: a defined answer or one clear error, each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import (
    blanket_delta,
    blanket_epsilon,
)
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import CapRandomizer, KRandomizedResponse, MatrixRandomizer
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    HadamardResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from fl_shuffle.accounting.laws.products import JointComposition, ParallelComposition
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError, NotApplicableError, PrecisionError

KRR = KRandomizedResponse(1.0, 10)
ONE_BUDGET = [
    lambda e: KRandomizedResponse(e, 3),
    BinaryLocalHashing,
    HadamardResponse,
    Rappor,
    OptimizedUnaryEncoding,
    LaplaceRandomizer,
    lambda e: CapRandomizer(e, 0.1),
]


@pytest.mark.parametrize("n", [0, -5, 2.5, 1000.0, 10**18, "1000", True, None, math.nan])
def test_number_of_reports(n: object) -> None:
    for ask in (blanket_delta, lower_bound_delta):
        with pytest.raises(InvalidValueError, match="n = "):
            ask(KRR, n, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="n = "):
        blanket_epsilon(KRR, n, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon0", [-1.0, math.nan, math.inf, 800.0, "1", None])
@pytest.mark.parametrize("family", ONE_BUDGET)
def test_local_budget(family, epsilon0: object) -> None:
    with pytest.raises(InvalidValueError, match="epsilon0"):
        family(epsilon0)


@pytest.mark.parametrize("family", ONE_BUDGET)
def test_local_budget_zero_reveals_nothing(family) -> None:
    randomizer = family(0.0)
    assert blanket_delta(randomizer, 10, 0.0).delta == 0.0
    assert blanket_epsilon(randomizer, 10, 1e-6).epsilon == 0.0
    assert lower_bound_delta(randomizer, 10, 0.0).delta == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, 2.0, math.nan, math.inf])
def test_target_delta(delta: float) -> None:
    for ask in (blanket_epsilon, lower_bound_epsilon):
        with pytest.raises(InvalidValueError, match="delta"):
            ask(KRR, 100, delta)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf, "0.1"])
def test_central_budget(epsilon: object) -> None:
    with pytest.raises(InvalidValueError, match="epsilon"):
        blanket_delta(KRR, 100, epsilon)  # type: ignore[arg-type]


def test_central_budget_beyond_the_local_one_costs_nothing() -> None:
    assert blanket_delta(KRR, 100, 1.0).delta == 0.0
    assert blanket_delta(KRR, 100, 1e6).delta == 0.0
    assert lower_bound_delta(KRR, 100, 1e6).delta == 0.0


@pytest.mark.parametrize("k", [1, 0, -2, 2.0, math.nan])
def test_domain_size(k: object) -> None:
    with pytest.raises(InvalidValueError, match="k = "):
        KRandomizedResponse(1.0, k)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="k = "):
        Rappor(1.0, k)  # type: ignore[arg-type]


@pytest.mark.parametrize("cap", [0.0, 0.6, -0.1, math.nan])
def test_cap_probability(cap: float) -> None:
    with pytest.raises(InvalidValueError, match="cap_probability"):
        CapRandomizer(1.0, cap)


@pytest.mark.parametrize(
    "matrix, complaint",
    [
        ([[0.5, 0.4], [0.5, 0.5]], "row 0"),
        ([[1.5, -0.5], [0.5, 0.5]], "entries"),
        ([[math.nan, 1.0], [0.5, 0.5]], "entries"),
        ([[0.5, 0.5]], "inputs"),
        ([0.5, 0.5], "inputs"),
    ],
)
def test_probability_matrix(matrix: object, complaint: str) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        MatrixRandomizer(matrix)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "weights", [(0.5, 0.4), (0.7, 0.7), (0.0, 1.0), (-0.5, 1.5), (math.nan, 1)]
)
def test_parallel_weights(weights: tuple[float, float]) -> None:
    with pytest.raises(InvalidValueError, match="weight"):
        ParallelComposition(tuple((w, KRR) for w in weights))


def test_compositions_of_nothing_or_of_the_wrong_kind() -> None:
    with pytest.raises(InvalidValueError, match="parts"):
        JointComposition(())
    with pytest.raises(InvalidValueError, match="parts"):
        ParallelComposition(())
    mixed = ParallelComposition(((0.5, KRR), (0.5, LaplaceRandomizer(1.0))))
    assert JointComposition((KRR, mixed)).pairs()
    with pytest.raises(NotApplicableError, match="at most"):
        JointComposition(tuple(KRandomizedResponse(0.1 * 1.07**i, 3) for i in range(16))).pairs()


def test_other_clients() -> None:
    with pytest.raises(InvalidValueError, match="n - 1 = 9"):
        blanket_delta(KRR, 10, 0.1, others=[(KRR, 5)])
    with pytest.raises(NotApplicableError, match="does not share the blanket"):
        blanket_delta(KRR, 10, 0.1, others=[(KRandomizedResponse(1.0, 9), 9)])
    mixed = [(KRandomizedResponse(0.2, 10), 4), (KRandomizedResponse(3.0, 10), 5)]
    assert 0.0 < blanket_delta(KRR, 10, 0.1, others=mixed).delta < 1.0


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, math.nan])
def test_participation(rate: float) -> None:
    with pytest.raises(InvalidValueError, match="participation"):
        blanket_delta(KRR, 10, 0.1, participation=rate)


@pytest.mark.parametrize("classes", [[(1.5, 3)], [(-0.1, 3)], [(0.5, -1)], [(0.5, 1.5)]])
def test_blanket_classes(classes: list[tuple[float, int]]) -> None:
    law = KRR.pairs()[0].law(0.1)
    assert law is not None
    with pytest.raises(InvalidValueError):
        amplified_delta(law, classes)


def test_empty_blanket_is_the_local_divergence() -> None:
    law = KRR.pairs()[0].law(0.3)
    assert law is not None
    local = (math.exp(1.0) - math.exp(0.3)) / (math.exp(1.0) + 9.0)
    for classes in ([], [(0.0, 10**6)], [(0.7, 0)]):
        assert amplified_delta(law, classes).delta == pytest.approx(local, rel=1e-12)


def test_unattainable_accuracy_is_refused_by_name() -> None:
    law = KRR.pairs()[0].law(3e-6)
    assert law is not None
    with pytest.raises(PrecisionError, match="limited by"):
        amplified_delta(law, [(0.7, 10**12)], relative_error=1e-9)
    with pytest.raises(InvalidValueError, match="relative_error"):
        amplified_delta(law, [(0.7, 100)], relative_error=0.0)


def test_atoms() -> None:
    with pytest.raises(InvalidValueError, match="sum to one"):
        AtomicLaw.of([1.0, 2.0], [0.5, 0.4])
    with pytest.raises(InvalidValueError, match="finite"):
        AtomicLaw.of([1.0, math.inf], [0.5, 0.5])
    with pytest.raises(InvalidValueError, match=">= 0"):
        AtomicLaw.of([1.0, 2.0], [1.5, -0.5])


def test_statements_carry_their_status() -> None:
    query = Question(randomizer="krr", k=10, epsilon0=1.0, clients=100, epsilon=0.2)
    upper, lower = (bound(replace(query, method=name)) for name in ("blanket", "lower"))
    assert upper.status is Status.PROVEN and upper.is_guarantee
    assert lower.status is Status.LOWER_BOUND and not lower.is_guarantee
    assert upper.relation == "replace-one"
    assert upper.to_dict()["details"]["clients"] == 100
