"""Vector reports that may be absent in secret: on a fine grid (n = 2), and the blanket bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.bounds.check_in import CheckInCurve
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.bounds.vector_blanket import VectorBlanket
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.reports import ReportClass, RoundType


def exact_pair(noise: str, scale: float, rate: float, epsilon: float, other: float) -> float:
    """Two clients on a line, the first at -1 or 1, the other at `other`: divergence on a grid."""
    grid = np.linspace(-1.0 - 9.0 * scale, 1.0 + 9.0 * scale, 1601)

    def law(centre: float) -> np.ndarray:
        z = np.abs(grid - centre) / scale
        mass = np.exp(-0.5 * z * z) if noise == "gaussian" else np.exp(-z)
        return np.append(rate * mass / mass.sum(), 1.0 - rate)

    second = law(other)

    def shuffled(centre: float) -> np.ndarray:
        joint = np.outer(law(centre), second)
        return 0.5 * (joint + joint.T)

    first, last = shuffled(-1.0), shuffled(1.0)
    a = math.exp(epsilon)
    forward = float(np.maximum(first - a * last, 0.0).sum())
    return max(forward, float(np.maximum(last - a * first, 0.0).sum()))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("scale", "rate"), [(1.0, 0.2), (3.0, 0.6)])
def test_no_data_set_of_two_clients_exceeds_the_curve(
    noise: str, scale: float, rate: float
) -> None:
    classes = [ReportClass(noise, scale, 1.0, 2.0, 2)]
    curve = CheckInCurve(RoundType.of(classes, participation=rate))
    for epsilon in (0.0, 0.05, 0.3):
        worst = max(exact_pair(noise, scale, rate, epsilon, x) for x in (-1.0, 0.0, 1.0))
        # The grid gives the divergence up to its step.
        assert worst <= curve.delta(epsilon) * (1.0 + 5e-3)
        assert curve.delta(epsilon) <= rate * VectorCurve(RoundType.of(classes)).local_delta(
            epsilon
        )


@pytest.mark.parametrize("rate", [0.02, 0.4])
def test_laplace_vectors_agree_with_the_blanket_bound(rate: float) -> None:
    curve = VectorBlanket(
        RoundType.of([ReportClass("laplace", 2.0, 1.0, 2.0, 1000)], participation=rate)
    )
    for epsilon in (0.001, 0.02):
        bound = blanket_delta(LaplaceRandomizer(1.0), 1000, epsilon, participation=rate).delta
        assert curve.delta(epsilon) == pytest.approx(bound, rel=2e-3)
