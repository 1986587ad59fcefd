"""Sums of reports, and whether each stays within its limit, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle.compiled import kernel

COLUMNS = 4096
"""Columns at a time: their sums and marks stay in the first-level cache."""


@kernel()
def sum_within(rows: Any, limits: Any, group: int, total: Any) -> bool:
    """total (float64 [d]) += the sum of `rows` (float32 [K, d]); returns whether no number of a row
    is larger in size than that row's of `limits` (float32 [K]), nor NaN.

    Float32 sums of `group` rows must be exact.
    """
    part = np.empty(COLUMNS, np.float32)
    marks = np.empty(COLUMNS, np.int32)
    marks[:] = 0
    for left in range(0, rows.shape[1], COLUMNS):
        width = min(COLUMNS, rows.shape[1] - left)
        own, beyond, target = part[:width], marks[:width], total[left : left + width]
        for first in range(0, rows.shape[0], group):
            last = min(first + group, rows.shape[0])
            row, limit = rows[first, left : left + width], limits[first]
            for j in range(width):
                own[j] = row[j]
                beyond[j] |= np.int32(not abs(row[j]) <= limit)
            for r in range(first + 1, last):
                row, limit = rows[r, left : left + width], limits[r]
                for j in range(width):
                    own[j] += row[j]
                    beyond[j] |= np.int32(not abs(row[j]) <= limit)
            for j in range(width):
                target[j] += own[j]
    return not marks.any()
