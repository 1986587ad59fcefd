"""The search for an epsilon on curves that are nowhere smooth."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.engine.monotone_search import crossing

TARGET = 1e-6


@pytest.mark.parametrize("target", [TARGET, 0.3, 1e-140])
def test_a_stretch_one_unit_above_the_target_is_above_it(target: float) -> None:
    """Logarithms of neighbouring numbers are often one number: values are compared."""

    def curve(epsilon: float) -> float:
        return math.nextafter(target, 1.0) if epsilon < 0.7 else 0.5 * target

    above, below = crossing(curve, target, 1.0)
    assert above < 0.7 <= below
    assert curve(below) <= target


@pytest.mark.parametrize("above", [1e-1, 1e-4, 1e-9, -1e-3])
@pytest.mark.parametrize("end", [0.33, 0.5, 0.71, 0.999])
def test_a_flat_stretch_beside_the_target_is_crossed(above: float, end: float) -> None:
    start, asked = 0.37 * end, []

    def curve(epsilon: float) -> float:
        asked.append(epsilon)
        return 50 * TARGET if epsilon < start else TARGET * (1 + above if epsilon < end else 1e-6)

    at = end if above > 0 else start
    low, high = crossing(curve, TARGET, 1.0)
    assert low < at <= high
    assert high - at <= 2e-6 * at or curve(high) >= TARGET * (1 - 3e-4)
    assert len(asked) <= 150
