"""Branch and bound over boxes: never below the largest value, and honest where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.gram import cover
from fl_shuffle.accounting.bounds.partial_shuffle.worst_box import worst_box


def upper_ends(boxes: np.ndarray) -> np.ndarray:
    """A function of g_1 with its maximum inside, at its largest in each box."""
    nearest = np.clip(1.1, boxes[:, 0], boxes[:, 1])
    result: np.ndarray = np.exp(-np.abs(nearest - 1.1))
    return result


def test_the_largest_value_is_found() -> None:
    assert 1.0 <= worst_box(cover(0.4, 0.4, 0.8), upper_ends, 0.01) <= 1.01


@pytest.mark.parametrize("hole", [math.nan, math.inf])
def test_a_box_without_a_value_is_no_bound(hole: float) -> None:
    """What is not a number is not passed over."""

    def value(boxes: np.ndarray) -> np.ndarray:
        holds = (boxes[:, 0] <= 1.0) & (boxes[:, 1] >= 1.0)
        return np.where(holds, hole, upper_ends(boxes))

    assert worst_box(cover(0.4, 0.4, 0.8), value, 0.01) == math.inf


def test_ends_without_a_value_are_no_bound() -> None:
    assert worst_box(cover(0.4, 0.4, 0.8), lambda b: np.full(len(b), math.nan), 0.1) == math.inf
