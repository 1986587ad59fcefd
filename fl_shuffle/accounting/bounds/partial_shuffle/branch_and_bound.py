"""The largest value over boxes that cover all others of one group: branch and bound.

docs/research/proofs, section 12, Theorem 1: a box counts with its corner, so how boxes were chosen
never matters, only that they cover. A box is kept once its value is at most 1 + tolerance times the
largest one found; else it is halved both ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.gram import Cover

PROMISING = 2
"""Boxes whose middle is tried, to know the largest value better ..."""
PROMISING_LEVEL = 3
"""... once boxes were halved twice: the ends are nearly always the worst."""
CELLS = 8
"""Number of boxes on a side of the first grid."""
MOST_BOXES = 2000
"""After this number of evaluations, boxes are kept as they come: valid, only larger."""

Value = Callable[[FloatArray], FloatArray]
"""What the corners of boxes say, [boxes, numbers]: positive, the first number first of all."""


class SaysMore(Exception):
    """One configuration says more than the boxes together were allowed to."""

    def __init__(self, row: FloatArray) -> None:
        super().__init__(f"a configuration says {row[0]:g}")
        self.row = row
        """What it says, as a row of `Value`."""


def kept_boxes(
    area: Cover, value: Value, tolerance: float, *, known: float = 0.0, most: float = math.inf
) -> FloatArray:
    """Return the rows of `value` of boxes that together hold all others in `area`.

    Parameters
    ----------
    area : Cover
        Boxes for one group of others.
    value : callable
        What the corners of boxes say, shape (boxes, numbers): positive, the first number first of
        all.
    tolerance : float
        A box is kept once its first number is at most 1 + `tolerance` times the largest that was
        found.
    known : float, default 0.0
        What some others are known to say.
    most : float, default infinity
        What no configuration may exceed.

    Returns
    -------
    ndarray, shape (boxes, numbers)
        The largest first number is at most about 1 + `tolerance` times that of the worst others.
        What is no number counts as infinite.

    Raises
    ------
    SaysMore
        At the first configuration found that says more than `most`.

    Notes
    -----
    Source: docs/research/proofs, section 12, Theorem 1. The maximum over the rows is an upper bound
    however boxes were chosen, as long as they cover `area`.
    """

    def said(boxes: FloatArray) -> FloatArray:
        # What round-off spoils may only raise the maximum.
        result: FloatArray = np.nan_to_num(value(boxes), nan=math.inf, posinf=math.inf)
        return result

    def largest(configurations: FloatArray) -> float:
        rows = said(configurations)
        row = rows[int(np.argmax(rows[:, 0]))]
        if row[0] > most:
            raise SaysMore(row)
        return max(best, float(row[0]))

    best, asked, level = known, 0, 0
    # Others on one line with the differing client are nearly always the worst: a good value to
    # compare with from the start. It only decides which boxes are halved.
    best = largest(area.ends)
    kept = []
    boxes = area.start(CELLS)
    while len(boxes):
        rows = said(boxes)
        v = rows[:, 0]
        asked += len(boxes)
        level += 1
        above = float(v.max())
        # Early only where it may end the search.
        if above > best * (1.0 + tolerance) and (level >= PROMISING_LEVEL or above > most):
            # Perhaps the ends are not the worst: what one configuration in a box says.
            best = largest(area.middles(boxes[np.argsort(v)[-PROMISING:]]))
        # A kept box counts with its own value, so the maximum over `kept` bounds all of the area,
        # however early a box is kept.
        done = (v <= best * (1.0 + tolerance)) | (asked > MOST_BOXES)
        kept.append(rows[done])
        boxes = area.halves(boxes[~done])
    return np.concatenate(kept)
