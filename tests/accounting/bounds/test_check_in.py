"""Secret check-in of vector reports: its theorem by enumeration, cells, and all of it at once."""

from __future__ import annotations

import math
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from fl_shuffle.accounting.bounds.check_in import CheckInCurve, _Cell, _of_cell
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.reports import RoundType
from tests.oracles import HALF_HIDDEN, OWN, Matrix, absent_too, cells, krr_matrix, worst_curve


def cell(curve: Any, weight: float, low: float, high: float) -> _Cell:
    return _Cell(weight, low, high, curve, curve)


@pytest.mark.parametrize(
    "matrix", [krr_matrix(1.0, 2), krr_matrix(2.5, 2), krr_matrix(1.0, 3), OWN, HALF_HIDDEN]
)
def test_the_theorem_against_every_data_set(matrix: Matrix) -> None:
    """Number by number of reports; and three quarters of the bound would be refuted."""
    closest = 0.0
    for n in (2, 3, 4):
        curves = {
            k: SimpleNamespace(delta=worst_curve(matrix, k), local_delta=lambda epsilon: 1.0)
            for k in range(1, n + 1)
        }
        for rate, epsilon in product((0.05, 0.3, 0.7, 0.95), (0.0, 0.02, 0.2, 0.6)):
            truth = worst_curve(absent_too(matrix, rate), n)(epsilon)
            bound = math.fsum(
                _of_cell(cell(curve, binom.pmf(k, n, rate), k / n, k / n), epsilon)
                for k, curve in curves.items()
            )
            assert truth <= bound * (1.0 + 1e-12) + 1e-15
            closest = max(closest, truth / bound if epsilon > 0.0 and bound > 0.0 else 0.0)
            # Dropping reports of a full shuffle gives this law.
            assert truth <= curves[n].delta(epsilon) * (1.0 + 1e-12) + 1e-15
    assert closest > 0.75


def falling(reports: int) -> Any:
    """A curve that falls with the number of reports, as every one does."""
    mu = 2.0 / math.sqrt(reports)
    return SimpleNamespace(
        delta=lambda epsilon: float(gaussian_profile(epsilon, mu)),
        local_delta=lambda epsilon: float(gaussian_profile(epsilon, 2.0)),
    )


@pytest.mark.parametrize(("n", "rate", "together"), [(12, 0.6, 2), (200, 0.1, 7)])
def test_cells_say_no_less_than_the_numbers_in_them(n: int, rate: float, together: int) -> None:
    for epsilon in (0.0, 0.01, 0.1, 0.5, 2.0):
        for low in range(1, n + 1, together):
            numbers = range(low, min(low + together, n + 1))
            weights = binom.pmf(numbers, n, rate)
            apart = math.fsum(
                _of_cell(cell(falling(k), weight, k / n, k / n), epsilon)
                for k, weight in zip(numbers, weights, strict=True)
            )
            one = cell(falling(low), weights.sum(), low / n, numbers[-1] / n)
            assert apart <= _of_cell(one, epsilon) * (1.0 + 1e-9) + 1e-15


@pytest.mark.parametrize(("n", "rate"), [(2, 0.5), (1000, 0.999), (10**6, 0.3)])
def test_cells_cover_every_number_once(n: int, rate: float) -> None:
    batch = RoundType("gaussian", 5.0, 1.0, 2.0, ((1.0, n - 1),), participation=rate)
    cells = sorted(CheckInCurve(batch)._cells, key=lambda each: each.low)
    assert cells[0].low * n == pytest.approx(1.0)
    assert cells[-1].high == 1.0
    for one, two in pairwise(cells):
        assert two.low * n - one.high * n == pytest.approx(1.0)
    present = 1.0 - (1.0 - rate) ** n
    assert math.fsum(each.weight for each in cells) == pytest.approx(present, rel=1e-9)


def test_others_with_other_balls() -> None:
    """Whoever takes the client's place may lie farther off; each counts as one of the widest."""
    batch = RoundType("gaussian", 5.0, 0.5, 0.1, ((0.5, 299), (1.0, 700)), participation=0.5)
    for each in CheckInCurve(batch)._cells:
        assert each.moved.batch.sensitivity == 1.5 and each.moved.batch.radius == 1.0
        assert each.replaced.batch.sensitivity == 0.1
        assert each.replaced.anonymity == round(each.low * 1000)


@pytest.mark.parametrize(("noise", "scale", "rate"), [("gaussian", 1, 0.2), ("laplace", 3, 0.6)])
def test_no_data_set_of_two_clients_exceeds_the_curve(
    noise: str, scale: float, rate: float
) -> None:
    """Means at the ends of a ball on a line and in its middle, reports in cells."""
    curve = CheckInCurve(RoundType(noise, scale, 1.0, 2.0, ((1.0, 1),), participation=rate))
    matrix = [cells([x / scale], np.linspace(-3.0, 3.0, 40), noise) for x in (-1.0, 0.0, 1.0)]
    exact, closest = worst_curve(absent_too(matrix, rate), 2), 0.0
    for epsilon in (0.0, 0.05, 0.3):
        assert exact(epsilon) <= curve.delta(epsilon)
        closest = max(closest, exact(epsilon) / curve.delta(epsilon))
    assert closest > 0.7
