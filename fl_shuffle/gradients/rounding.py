"""How far rounding can carry a clipped mean: the bounds that record radii are lowered by.

Standard model of float32 and float64 arithmetic (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., sections 2.2 and 4.2): every operation has relative error at most u, with or
without fused multiply-adds, and a product of matrices adds an entry's terms in some order. Nothing
else is assumed of a library or a processor, but that an entry depends on its row and column only.

Claim (docs/research/proofs, section 0): with u = 2^-24 and records clipped to L = C / ((1 + nu)(1 +
rho) (1 + 2^-20)), replacing one of B records moves the float32 mean by at most 2C/B.

A record. Its share g of the mean is what rounded factors multiply to, exactly (for a layer whose
gradients are written out: the float32 gradient times the clipping factor). Its computed length is a
sum of non-negative terms, so the true one is at most (1 + nu) L / B, nu = (terms + 8) u / 2 for l2
and twice that for l1; 2^-20 covers the single roundings and what is lost below 2^-126.

The others. Whatever is not summed over records is computed row by row, so their shares keep their
bits when one record is replaced (also when it counts as zero).

The sum. An addition errs by at most u times its partial sum. Replacing a record changes the errors
of those partial sums alone that hold it: within a stretch of t records, in whatever order, they
hold at most 2, 3, ..., t shares, and products round t times more: u (t (t + 3) / 2) L / B. Beyond,
in float64, B shares in B additions at most, and the mean's own rounding: (u + (B + 3) 2^-53) L.
Both means err, so the move errs by twice as much; divided by 2L / B that is

    rho = u t (t + 3) / 2 + B (u + (B + 3) 2^-53),   the last where B > t.

Behind the mean two float32 steps may follow, and each errs by a share of the whole mean, in both
neighbors: a second clip and a weight (`move_error_behind`).
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
    """Return the relative error of a float32 norm from `terms` non-negative ones added in some
    order."""
    return (terms + 8) * HALF_ULP * (0.5 if norm == 2 else 1.0)


def move_error_float32(records: NDArray[np.int64], tile: int) -> NDArray[np.float64]:
    """Return the move's error with sums of `tile` records in float32, of these in float64; the mean
    float32.

    A record replaced changes the roundings of its own tile, at most 1 + 2 + ... + t units of the
    longest record's last place in whatever order, and t for the products; of the float64 sum and of
    its conversion.
    """
    inside = np.minimum(records, tile).astype(np.float64)
    own = np.where(inside > 1, inside * (inside + 3.0) / 2.0, 0.0)
    further = np.where(records > tile, move_error_float64(records), 0.0)
    return np.asarray(own * HALF_ULP + further)


def move_error_float64(records: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the move's error with sums of all records in float64, the mean float32."""
    count = records.astype(np.float64)
    return np.asarray(np.where(count > 1, count * (HALF_ULP + (count + 3.0) * HALF_ULP_64), 0.0))


def move_error_behind(
    records: NDArray[np.int64], norm: int, *, clipped: bool, weighted: bool
) -> NDArray[np.float64]:
    """Return by what factor (1 or more) float32 steps that follow a mean of this many records
    stretch the move of one.

    Each errs by a share of the whole mean, in both neighbors, where one record moves it by two
    records' share of it. `clipped`: to a length that is a float32 sum of 256 squares by halving, 9
    half ulps, halved by the root (of 8 absolute values), then a float32 factor and a product.
    `weighted`: a product, with a weight that is rounded itself. In l1, where scaling is no
    contraction, a second clip no shorter than the first one must not act at all: `clip_rows` acts
    from 1 - 2^-15 of a radius on.
    """
    units = np.zeros(len(records))
    still = 1.0
    if clipped:
        units += 7.0 if norm == 2 else 10.0
        still += 2.0**-14 if norm == 1 else 0.0
    if weighted:
        units += 1.0
        still *= 1.0 + 4.0 * HALF_ULP
    return np.asarray(still * (1.0 + records * units * HALF_ULP))


def sum_grid(largest: float) -> float:
    """Return a power of two so fine that it does not show in a sum of size `largest`, and so coarse
    that float64 adds its multiples exactly, in any order, as long as no partial sum passes 4
    `largest`.
    """
    return math.ldexp(1.0, math.frexp(largest)[1] - FLOAT64_DIGITS + 3)


def on_grid(values: Tensor, grid: float) -> Tensor:
    """Round float64 values to the nearest multiples of `grid`, a power of two; in place."""
    return values.div_(grid).round_().mul_(grid)
