"""The largest value over boxes that cover all others of one group: branch and bound.

docs/proofs.md, section 12, Theorem 1: a box counts with its corner, so how boxes were chosen never
matters, only that they cover. A box is kept once its value is at most 1 + tolerance times the
largest one found; else it is taken with finer nodes, or halved both ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import Nodes
from fl_shuffle.accounting.bounds.partial_shuffle.gram import Cover
from fl_shuffle.accounting.laws.amplification import FloatArray

COARSE, FINE = Nodes.of(32, 19), Nodes.of(96, 27)
"""Nodes of the finite laws; any are valid."""
NEAR = 0.3
"""A box whose log-value is this near to the largest deserves the finer nodes ..."""
PAYS = 0.6
"""... and so does one whose halves keep this share of the excess."""
PROMISING = 2
"""Boxes whose middle is tried, to know the largest value better."""
CELLS = 8
"""The first grid of boxes has so many to a side."""
MOST_BOXES = 2000
"""Once so many were asked for, boxes are kept as they come: valid, only larger."""

Value = Callable[[FloatArray, Nodes], FloatArray]
"""What the corners of boxes say, with these nodes: positive."""


def worst_box(area: Cover, value: Value, tolerance: float) -> float:
    """At least the largest `value` of all others in `area`, and about 1 + `tolerance` times it.

    Infinite where a kept box has no value that is a number.
    """

    def said(boxes: FloatArray, nodes: Nodes) -> FloatArray:
        result: FloatArray = np.nan_to_num(value(boxes, nodes), nan=math.inf, posinf=math.inf)
        return result

    best, top, asked = float(said(area.ends, FINE).max()), 0.0, 0
    if not math.isfinite(best):
        return math.inf
    start = area.start(CELLS)
    # A box and the excess of the one it is a part of.
    coarse = np.column_stack([start, np.full(len(start), math.inf)])
    fine = np.empty((0, 5))
    while len(coarse) or len(fine):
        rough = len(coarse) > 0
        boxes, before = (coarse, fine)[not rough][:, :4], (coarse, fine)[not rough][:, 4]
        v = said(boxes, COARSE if rough else FINE)
        asked += len(boxes)
        if float(v.max()) > best * (1.0 + tolerance):
            # Perhaps the ends are not the worst: what one configuration in a box says.
            promising = area.middles(boxes[np.argsort(v)[-PROMISING:]])
            best = max(best, float(said(promising, FINE).max()))
        enough = asked > MOST_BOXES
        done = (v <= best * (1.0 + tolerance)) | (enough and not rough)
        top = max(top, float(np.max(v[done], initial=0.0)))
        left, excess, before = boxes[~done], np.log(v[~done] / best), before[~done]
        if not rough:
            fine = area.halves(np.column_stack([left, excess]))
            continue
        finer = (excess < NEAR) | (excess > PAYS * before) | enough
        raised = np.column_stack([left[finer], np.full(int(finer.sum()), math.inf)])
        fine = np.concatenate([fine, raised])
        coarse = area.halves(np.column_stack([left[~finer], excess[~finer]]))
    return top
