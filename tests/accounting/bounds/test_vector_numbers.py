"""What never hurts a client among vector reports, what costs nothing, and what is refused."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.errors import InvalidValueError


def test_more_reports_and_smaller_balls_never_hurt() -> None:
    def at(n: int, radius: float) -> float:
        classes = [
            ReportClass("gaussian", 8.0, 1.0, 2.0, 1),
            ReportClass("gaussian", 8.0, radius, 0.0, n),
        ]
        return VectorCurve(RoundType.of(classes)).epsilon(1e-6)

    by_count = [at(n, 1.0) for n in (10, 100, 1000, 10_000)]
    by_radius = [at(1000, r) for r in (0.1, 0.5, 1.0, 2.0)]
    assert by_count == sorted(by_count, reverse=True)
    assert by_radius == sorted(by_radius)


def test_a_client_with_nothing_to_lose_loses_nothing() -> None:
    curve = VectorCurve(RoundType.of([ReportClass("gaussian", 1.0, 0.0, 0.0, 10)]))
    assert curve.delta(0.0) == 0.0
    assert curve.epsilon(1e-6) == 0.0


@pytest.mark.parametrize(
    "field", [("scale", 0.0), ("scale", math.nan), ("radius", -1.0), ("sensitivity", math.inf)]
)
def test_bad_report_classes_are_refused(field: tuple[str, float]) -> None:
    good = {"noise": "gaussian", "scale": 1.0, "radius": 1.0, "sensitivity": 2.0, "count": 3}
    with pytest.raises(InvalidValueError, match=field[0]):
        ReportClass(**{**good, field[0]: field[1]})
    with pytest.raises(InvalidValueError, match="noise"):
        ReportClass(**{**good, "noise": "gausian"})
    with pytest.raises(InvalidValueError):
        VectorCurve(RoundType.of([ReportClass(**{**good, "count": 0})]))
    with pytest.raises(InvalidValueError, match="index"):
        VectorCurve(RoundType.of([ReportClass(**good)], 1))


@pytest.mark.parametrize("move", [1e-12, 1e-9, 1e-7])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_move_of_almost_nothing_costs_no_more_than_alone(noise: str, move: float) -> None:
    curve = VectorCurve(RoundType(noise, 1.0, 1.0, move, ((1.0, 10**6),)))
    for epsilon in (0.0, move, 1.0):
        assert 0.0 <= curve.delta(epsilon) <= curve.local_delta(epsilon)


def test_the_widest_others_are_left_out_where_that_pays() -> None:
    def at(*others: tuple[float, int]) -> float:
        return VectorCurve(RoundType("gaussian", 1.0, 0.2, 0.4, others)).epsilon(1e-6)

    alone = at((0.2, 1999))
    assert at((0.2, 1999), (1.2, 300)) <= alone * 1.003
    assert at((0.2, 1999), (0.25, 2000)) < 0.85 * alone
