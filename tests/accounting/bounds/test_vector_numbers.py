"""Reference values of the vector bounds, their lower bounds, and what no credit means."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.laws.gaussian_mechanism import classical_sigma, gaussian_epsilon
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from tests.accounting.chosen_vector_datasets import (
    vector_lower_delta,
    vector_lower_epsilon,
)


def gaussian_batch(epsilon0: float, n: int) -> list[ReportClass]:
    return [ReportClass("gaussian", classical_sigma(epsilon0, 1e-5, 2.0), 1.0, 2.0, n)]


# Local (epsilon0, 1e-5), n, proven, exact on a dataset.
REFERENCE = [
    (0.5, 10**4, 0.00294, 0.0028),
    (1.0, 10**3, 0.0229, 0.0215),
    (1.0, 10**4, 0.00638, 0.0061),
    (2.0, 10**4, 0.0142, 0.0136),
    (4.0, 10**4, 0.0360, None),
]


@pytest.mark.parametrize(("epsilon0", "n", "reference", "lower"), REFERENCE)
def test_gaussian_reference_values(
    epsilon0: float, n: int, reference: float, lower: float | None
) -> None:
    """Not above what was reached before, and near what an attack certainly gets."""
    classes = gaussian_batch(epsilon0, n)
    upper = VectorCurve(classes).epsilon(1e-6)
    assert 0.9 * reference < upper < 1.01 * reference
    assert upper < gaussian_epsilon(1e-6, 2.0 / classes[0].scale)
    if lower is not None:
        certain = vector_lower_epsilon(classes, 0, 1e-6).epsilon
        assert certain == pytest.approx(lower, rel=0.015)
        assert certain < upper
        assert upper <= 1.08 * certain


def laplace(radius: float, count: int, scale: float = 1.0) -> ReportClass:
    return ReportClass("laplace", scale, radius, 2.0 * radius, count)


def test_laplace_reference_values_with_personal_clips() -> None:
    """Radius eps0/2 at scale 1: local budget eps0."""
    assert VectorCurve([laplace(0.25, 10**4)]).epsilon(1e-5) == pytest.approx(0.0132, rel=0.01)
    mixed = [laplace(0.25, 5000), laplace(0.005, 5000)]
    assert VectorCurve(mixed, 0).epsilon(1e-5) == pytest.approx(0.0123, rel=0.01)
    assert VectorCurve(mixed, 1).epsilon(1e-5) == pytest.approx(1e-4, rel=0.02)
    one = [laplace(2.0, 1), laplace(0.005, 9999)]
    assert VectorCurve(one, 0).epsilon(1e-5) == pytest.approx(0.0938, rel=0.01)
    assert VectorCurve([laplace(0.25, 1000)]).epsilon(1e-6) == pytest.approx(0.05801, rel=2e-3)
    uniform = [laplace(x / 2, 500) for x in np.linspace(0.01, 2.0, 21)[:-1] + 0.04975]
    worst = VectorCurve([*uniform, laplace(1.0, 1)], 20).epsilon(1e-5)
    assert worst == pytest.approx(0.0588, rel=0.02)


def test_the_curve_decreases_and_stays_below_the_local_one() -> None:
    curve = VectorCurve(gaussian_batch(1.0, 500))
    grid = np.linspace(0.0, 0.3, 13)
    values = np.array([curve.delta(float(epsilon)) for epsilon in grid])
    assert np.all(np.diff(values) <= 0.0)
    assert all(v <= curve.local_delta(e) for v, e in zip(values, grid, strict=True))


def test_more_reports_and_smaller_balls_never_hurt() -> None:
    def at(n: int, radius: float) -> float:
        classes = [
            ReportClass("gaussian", 8.0, 1.0, 2.0, 1),
            ReportClass("gaussian", 8.0, radius, 0.0, n),
        ]
        return VectorCurve(classes).epsilon(1e-6)

    by_count = [at(n, 1.0) for n in (10, 100, 1000, 10_000)]
    by_radius = [at(1000, r) for r in (0.1, 0.5, 1.0, 2.0)]
    assert by_count == sorted(by_count, reverse=True)
    assert by_radius == sorted(by_radius)


def test_record_level_noise_buys_no_credit() -> None:
    """600 records clipped one by one: the others lie 60 noise widths away."""
    classes = [ReportClass("gaussian", classical_sigma(0.5, 1e-5, 2 / 600), 1.0, 2 / 600, 100)]
    curve = VectorCurve(classes)
    assert not curve.credit
    assert curve.epsilon(1e-5) == curve.local_epsilon(1e-5)
    with pytest.raises(NotApplicableError, match="gives itself away"):
        vector_lower_delta(classes, 0, 0.01)


def test_the_midpoint_reference_gives_small_batches_of_records_credit() -> None:
    classes = [ReportClass("gaussian", 1.0, 0.2, 0.02, 10_000)]
    shuffled = VectorCurve(classes).epsilon(1e-6)
    client = VectorCurve([ReportClass("gaussian", 1.0, 0.2, 0.4, 10_000)]).epsilon(1e-6)
    assert shuffled < 0.2 * client
    assert shuffled < 0.2 * gaussian_epsilon(1e-6, 0.02)


def test_other_noise_scales_do_not_hide() -> None:
    own = ReportClass("gaussian", 8.0, 1.0, 2.0, 50)
    others = [
        ReportClass("gaussian", 8.001, 1.0, 2.0, 10_000),
        ReportClass("laplace", 8.0, 1.0, 2.0, 10_000),
    ]
    alone = VectorCurve([own])
    together = VectorCurve([own, *others])
    assert together.anonymity == 50
    assert together.epsilon(1e-5) == alone.epsilon(1e-5)


def test_concentration_shortcut_is_an_upper_bound_and_close() -> None:
    classes = [ReportClass("gaussian", 10.0, r, 2 * r, 50_000) for r in np.linspace(0.05, 1, 20)]
    exact = VectorCurve(classes, 19)
    quick = VectorCurve(classes, 19, concentrate=True)
    for epsilon in (2e-4, 5e-4, 7e-4):
        assert exact.delta(epsilon) * 0.999 <= quick.delta(epsilon)
    assert quick.epsilon(1e-6) == pytest.approx(exact.epsilon(1e-6), rel=0.01)


def test_a_client_with_nothing_to_lose_loses_nothing() -> None:
    curve = VectorCurve([ReportClass("gaussian", 1.0, 0.0, 0.0, 10)])
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
        VectorCurve([ReportClass(**{**good, "count": 0})])
    with pytest.raises(InvalidValueError, match="index"):
        VectorCurve([ReportClass(**good)], 1)
