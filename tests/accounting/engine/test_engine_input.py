"""Bad input: a defined answer or one clear error, each."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    HadamardResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from fl_shuffle.errors import InvalidValueError

KRR = KRandomizedResponse(1.0, 10)
ONE_BUDGET = [
    lambda e: KRandomizedResponse(e, 3),
    BinaryLocalHashing,
    HadamardResponse,
    Rappor,
    OptimizedUnaryEncoding,
    LaplaceRandomizer,
]


def law(epsilon: float) -> AtomicLaw:
    found = KRR.pairs()[0].law(epsilon)
    assert isinstance(found, AtomicLaw)
    return found


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: blanket_delta(KRR, 0, 0.1), "n = "),
        (lambda: blanket_epsilon(KRR, 10**18, 1e-6), "n = "),
        (lambda: blanket_epsilon(KRR, 100, 0.0), "delta"),
        (lambda: blanket_delta(KRR, 100, -0.1), "epsilon"),
        (lambda: blanket_delta(KRR, 10, 0.1, participation=0.0), "participation"),
        (lambda: KRandomizedResponse(1.0, 1), "k = "),
        (lambda: MatrixRandomizer([[0.5, 0.4], [0.5, 0.5]]), "row 0"),
        (lambda: MatrixRandomizer([[math.nan, 1.0], [0.5, 0.5]]), "entries"),
        (lambda: MatrixRandomizer([[0.5, 0.5]]), "inputs"),
        (lambda: amplified_delta(law(0.1), [(1.5, 3)]), r"1\.5"),
        (lambda: amplified_delta(law(0.1), [(0.5, -1)]), "-1"),
        (lambda: AtomicLaw.of([1.0, 2.0], [0.5, 0.4]), "sum to one"),
        (lambda: AtomicLaw.of([1.0, 2.0], [1.5, -0.5]), ">= 0"),
    ],
)
def test_a_value_that_cannot_be_is_named(ask: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        ask()


@pytest.mark.parametrize("family", ONE_BUDGET)
def test_a_local_budget_is_finite_and_that_of_nothing_reveals_nothing(
    family: Callable[[object], KRandomizedResponse],
) -> None:
    for wrong in (-1.0, math.nan, 800.0, "1"):
        with pytest.raises(InvalidValueError, match="epsilon0"):
            family(wrong)
    assert blanket_delta(family(0.0), 10, 0.0).delta == 0.0
    assert blanket_epsilon(family(0.0), 10, 1e-6).epsilon == 0.0
    assert lower_bound_delta(family(0.0), 10, 0.0).delta == 0.0


def test_what_cannot_be_had_is_within_what_is_said() -> None:
    found = amplified_delta(law(3e-6), [(0.7, 10**12)], relative_error=1e-9)
    assert 1e-9 * found.delta < found.error <= found.delta


def test_empty_blanket_is_the_local_divergence() -> None:
    local = (math.exp(1.0) - math.exp(0.3)) / (math.exp(1.0) + 9.0)
    for classes in ([], [(0.0, 10**6)], [(0.7, 0)]):
        assert amplified_delta(law(0.3), classes).delta == pytest.approx(local, rel=1e-12)
