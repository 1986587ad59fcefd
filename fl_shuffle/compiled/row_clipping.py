"""Rows clipped to a norm in one pass over each: its length, its factor, its scaled numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle.compiled import inlined, kernel

SEGMENT = 256
"""Terms added up in float32, by halving, before float64 takes over."""
EIGHTH = SEGMENT // 8
"""What is left of a segment after three halvings."""


class RowClips(NamedTuple):
    """Rows are clipped to each of `radii` [s, k] in turn; the rest is as in `clip_rows`."""

    radii: Any
    norm: int
    inflation: float
    least: float


@inlined
def _square(value: Any) -> Any:
    return value * value


@inlined
def _size(value: Any) -> Any:
    return abs(value)


def _sum_by_halving(term: Any) -> Any:
    @inlined
    def add(x: Any, at: Any, sums: Any) -> Any:
        for i in range(EIGHTH):
            j = at + i
            even = (term(x[j]) + term(x[j + 128])) + (term(x[j + 64]) + term(x[j + 192]))
            odd = (term(x[j + 32]) + term(x[j + 160])) + (term(x[j + 96]) + term(x[j + 224]))
            sums[i] = even + odd
        for i in range(16):
            sums[i] += sums[i + 16]
        for i in range(8):
            sums[i] += sums[i + 8]
        even = (sums[0] + sums[4]) + (sums[2] + sums[6])
        odd = (sums[1] + sums[5]) + (sums[3] + sums[7])
        return np.float64(even + odd)

    return add


_squares = _sum_by_halving(_square)
"""The sum of the squares of x[at : at + 256]: of the first half and the second, then the same of
what comes out, down to one number. `sums` [32] is scratch."""
_sizes = _sum_by_halving(_size)
"""The same of absolute values."""


@inlined
def _length(row: Any, norm: Any, rest: Any, sums: Any) -> Any:
    """The norm of a row, its terms added up in the row's precision; rest [256] and sums [32] are
    scratch of that precision, of which the rest's numbers beyond the row's are zero."""
    whole = row.size // SEGMENT * SEGMENT
    for i in range(row.size - whole):
        rest[i] = row[whole + i]
    total = 0.0
    if norm == 2:
        for at in range(0, whole, SEGMENT):
            total += _squares(row, at, sums)
        total = np.sqrt(total + _squares(rest, 0, sums))
    else:
        for at in range(0, whole, SEGMENT):
            total += _sizes(row, at, sums)
        total += _sizes(rest, 0, sums)
    return total


@kernel()
def clip_rows(
    rows: Any, radii: Any, norm: int, inflation: float, least: float, invalid: Any
) -> None:
    """In place: clip each row of `rows` (float32 [K, d]) to radii [K].

    The norm, 1 or 2, counts `inflation` times what is computed: in float32, or in float64 where
    that is not finite. Factors below `least` multiply in float64. Rows that hold NaN or an infinity
    become zero, and are marked in `invalid` [K]. The same operations in the same order as
    `fl_shuffle.randomizers.vector`: the same bits.
    """
    dimension = rows.shape[1]
    rest, sums = np.zeros(SEGMENT, np.float32), np.empty(EIGHTH, np.float32)
    for k in range(rows.shape[0]):
        row = rows[k]
        length = _length(row, norm, rest, sums) * inflation
        if not np.isfinite(length):
            # Either truly not finite, or squares beyond float32.
            wide = row.astype(np.float64)
            length = _length(wide, norm, np.zeros(SEGMENT), np.empty(EIGHTH)) * inflation
            if not np.isfinite(length):
                row[:] = np.float32(0.0)
                invalid[k] = True
                continue
        if length > radii[k]:
            factor = radii[k] / length
            if factor < least:
                for i in range(dimension):
                    row[i] = np.float32(np.float64(row[i]) * factor)
            else:
                single = np.float32(factor)
                for i in range(dimension):
                    row[i] *= single
