"""How far rounding can carry a clipped mean: the bounds that record radii are lowered by.

Standard model of float32 and float64 arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 4.2): every operation has relative error at most u, with or
without fused multiply-adds, and a product of matrices adds an entry's terms in some order. Nothing
else is assumed of a library or a processor. The argument is in docs/proofs.md, section 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# Relative error of one rounding to float32, and to float64.
HALF_ULP = 2.0**-24
HALF_ULP_64 = 2.0**-53
# Binary digits of a float64.
FLOAT64_DIGITS = 53


def length_error(terms: int, norm: int) -> float:
    """Relative error of a float32 norm from `terms` non-negative ones added in some order."""
    return (terms + 8) * HALF_ULP * (0.5 if norm == 2 else 1.0)


def move_error_float32(
    records: NDArray[np.int64], tile: int, tiles: int = 1
) -> NDArray[np.float64]:
    """Sums of `tile` records in float32, of `tiles` such sums in float32, of these in float64; the
    mean float32.

    A record replaced changes the roundings of its own tile, at most 1 + 2 + ... + t units of the
    longest record's last place in whatever order, and t for the products; of the float32 sums that
    its tile goes into, each of as many records as there are; of the float64 sum and of its
    conversion.
    """
    inside = np.minimum(records, tile).astype(np.float64)
    own = np.where(inside > 1, inside * (inside + 3.0) / 2.0, 0.0)
    together = (tiles - 1.0) * np.minimum(records, tile * tiles)
    further = np.where(records > tile, together * HALF_ULP + move_error_float64(records), 0.0)
    return np.asarray(own * HALF_ULP + further)


def move_error_float64(records: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of all records in float64, the mean float32."""
    count = records.astype(np.float64)
    return np.asarray(np.where(count > 1, count * (HALF_ULP + (count + 3.0) * HALF_ULP_64), 0.0))


def sum_grid(largest: float) -> float:
    """A power of two so fine that it does not show in a sum of size `largest`, and so coarse that
    float64 adds its multiples exactly, in any order, as long as no partial sum passes 4 `largest`.
    """
    return math.ldexp(1.0, math.frexp(largest)[1] - FLOAT64_DIGITS + 3)


def on_grid(values: Tensor, grid: float) -> Tensor:
    """float64 values to the nearest multiples of `grid`, a power of two; in place."""
    return values.div_(grid).round_().mul_(grid)
