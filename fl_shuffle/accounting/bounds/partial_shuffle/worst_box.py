"""The largest value over boxes that cover all others of one group: branch and bound.

docs/proofs.md, section 12, Theorem 1: a box counts with its corner, so how boxes were chosen never
matters, only that they cover. A box is kept once its value is at most 1 + tolerance times the
largest one found; else it is halved both ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.gram import Cover
from fl_shuffle.accounting.laws.amplification import FloatArray

PROMISING = 2
"""Boxes whose middle is tried, to know the largest value better."""
CELLS = 8
"""The first grid of boxes has so many to a side."""
MOST_BOXES = 2000
"""Once so many were asked for, boxes are kept as they come: valid, only larger."""

Value = Callable[[FloatArray], FloatArray]
"""What the corners of boxes say: positive."""


def worst_box(area: Cover, value: Value, tolerance: float) -> float:
    """At least the largest `value` of all others in `area`, and about 1 + `tolerance` times it.

    Infinite where a kept box has no value that is a number.
    """

    def said(boxes: FloatArray) -> FloatArray:
        result: FloatArray = np.nan_to_num(value(boxes), nan=math.inf, posinf=math.inf)
        return result

    best, top, asked = float(said(area.ends).max()), 0.0, 0
    boxes = area.start(CELLS)
    while len(boxes):
        v = said(boxes)
        asked += len(boxes)
        if float(v.max()) > best * (1.0 + tolerance):
            # Perhaps the ends are not the worst: what one configuration in a box says.
            promising = area.middles(boxes[np.argsort(v)[-PROMISING:]])
            best = max(best, float(said(promising).max()))
        done = (v <= best * (1.0 + tolerance)) | (asked > MOST_BOXES)
        top = max(top, float(np.max(v[done], initial=0.0)))
        boxes = area.halves(boxes[~done])
    return top
