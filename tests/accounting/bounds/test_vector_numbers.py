"""Reference values of the bounds for Laplace vectors; what never hurts, and what costs nothing."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.errors import InvalidValueError


def laplace(radius: float, count: int, scale: float = 1.0) -> ReportClass:
    return ReportClass("laplace", scale, radius, 2.0 * radius, count)


def test_laplace_reference_values_with_personal_clips() -> None:
    """Radius eps0/2 at scale 1: local budget eps0."""
    assert VectorCurve(RoundType.of([laplace(0.25, 10**4)])).epsilon(1e-5) == pytest.approx(
        0.0132, rel=0.01
    )
    mixed = [laplace(0.25, 5000), laplace(0.005, 5000)]
    assert VectorCurve(RoundType.of(mixed, 0)).epsilon(1e-5) == pytest.approx(0.0123, rel=0.01)
    assert VectorCurve(RoundType.of(mixed, 1)).epsilon(1e-5) == pytest.approx(1e-4, rel=0.02)
    one = [laplace(2.0, 1), laplace(0.005, 9999)]
    assert VectorCurve(RoundType.of(one, 0)).epsilon(1e-5) == pytest.approx(0.0938, rel=0.01)
    assert VectorCurve(RoundType.of([laplace(0.25, 1000)])).epsilon(1e-6) == pytest.approx(
        0.05801, rel=2e-3
    )


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
