"""Sums of reports and the largest of their numbers, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle.compiled import kernel

COLUMNS = 4096
"""Columns at a time: their sums and largest numbers stay in the first-level cache."""


@kernel()
def sum_and_reach(rows: Any, group: int, total: Any) -> Any:
    """total (float64 [d]) += the sum of `rows` (float32 [K, d]); returns the largest size there is.

    Float32 sums of `group` rows must be exact. NaN shows in the sum alone.
    """
    part = np.empty(COLUMNS, np.float32)
    top = np.empty(COLUMNS, np.float32)
    reach = np.float32(0.0)
    for left in range(0, rows.shape[1], COLUMNS):
        width = min(COLUMNS, rows.shape[1] - left)
        own, highest, target = part[:width], top[:width], total[left : left + width]
        highest[:] = np.float32(0.0)
        for first in range(0, rows.shape[0], group):
            last = min(first + group, rows.shape[0])
            row = rows[first, left : left + width]
            for j in range(width):
                own[j] = row[j]
                size = abs(row[j])
                highest[j] = size if size > highest[j] else highest[j]
            for r in range(first + 1, last):
                row = rows[r, left : left + width]
                for j in range(width):
                    own[j] += row[j]
                    size = abs(row[j])
                    highest[j] = size if size > highest[j] else highest[j]
            for j in range(width):
                target[j] += own[j]
        for j in range(width):
            reach = highest[j] if highest[j] > reach else reach
    return reach
