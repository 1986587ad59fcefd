"""Rows of numbers in one pass: clipped to a norm; added up, and held against their limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle._internal.compiled import inlined, kernel, piece, reordered

COLUMNS = 4096
"""Columns at a time: their sums and marks stay in the first-level cache."""

SEGMENT = 256
"""Terms of a norm added up in float32 before float64 takes over."""
# Relative error of a float32 sum of 256 non-negative terms in any order is below 256 * 2^-24; the
# square root halves it. Norms are inflated by more than that, so a clipped row is never too long.
INFLATION = 1.0 + 2.0**-15
# A factor near float32's smallest would lose its digits: those rows are scaled in float64.
LEAST_FACTOR = 1e-30


# One function for each norm: a loop with the choice in it is not turned into vectors.


@reordered
def _squares(row: Any) -> Any:
    """Return the sum of squares, in some order, in the row's precision."""
    total = row.dtype.type(0.0)
    for i in range(row.size):
        total += row[i] * row[i]
    return total


@reordered
def _sizes(row: Any) -> Any:
    """Return the sum of absolute values, in the same way."""
    total = row.dtype.type(0.0)
    for i in range(row.size):
        total += abs(row[i])
    return total


@reordered
def dot(left: Any, right: Any) -> Any:
    """Return the scalar product of two rows, in some order, in float64."""
    total = 0.0
    for i in range(left.size):
        total += np.float64(left[i]) * np.float64(right[i])
    return total


@piece
def powers(rows: Any, norm: Any, least: Any, out: Any) -> None:
    """Write the rows' squared l2 norms, or l1 norms, plus `least` to `out` [k]."""
    if norm == 2:
        for r in range(rows.shape[0]):
            out[r] = _squares(rows[r]) + least
    else:
        for r in range(rows.shape[0]):
            out[r] = _sizes(rows[r]) + least


@piece
def _length(row: Any, norm: Any) -> Any:
    total = 0.0
    for at in range(0, row.size, SEGMENT):
        part = row[at : at + SEGMENT]
        total += _squares(part) if norm == 2 else _sizes(part)
    return np.sqrt(total) if norm == 2 else total


@piece
def length_of(row: Any, norm: Any) -> Any:
    """Return the norm of a float32 row, inflated; in float64 where squares are beyond float32."""
    length = _length(row, norm)
    wide = length if np.isfinite(length) else _length(row.astype(np.float64), norm)
    return wide * INFLATION


@inlined
def clip_row(row: Any, radius: Any, norm: Any) -> Any:
    """Clip a row (float32 [d]) in place to norm, 1 or 2, at most `radius`. One that holds NaN or an
    infinity becomes zero; returns whether it does."""
    length = length_of(row, norm)
    invalid = not np.isfinite(length)
    if invalid:
        row[:] = np.float32(0.0)
    elif length > radius:
        factor = radius / length
        single = np.float32(factor)
        for i in range(row.size):
            row[i] = row[i] * single if factor >= LEAST_FACTOR else np.float32(row[i] * factor)
    return invalid


@kernel()
def clip_rows(rows: Any, radii: Any, norm: int, invalid: Any) -> None:
    """Apply `clip_row` to each of `rows` [K, d], to radii [K]; `invalid` [K] <- which are zero
    now."""
    for k in range(rows.shape[0]):
        invalid[k] = clip_row(rows[k], radii[k], norm)


@kernel()
def sum_within(rows: Any, limits: Any, group: int, total: Any) -> bool:
    """Add the sum of `rows` (float32 [K, d]) to total (float64 [d]); return whether no number of a
    row is larger in size than that row's of `limits` (float32 [K]), nor NaN.

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
