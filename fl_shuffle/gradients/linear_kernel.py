"""Softmax regression in one pass over the records: logits, errors, clipping, clients' means."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle.compiled import bits_of, float_of, inlined, kernel, products
from fl_shuffle.compiled.products import (
    LANES,
    affine_1,
    affine_4,
    outer_1x1,
    outer_1x5,
    outer_4x1,
    outer_4x5,
    outer_16x1,
    outer_16x5,
)
from fl_shuffle.gradients import kernels

TILE = 64
"""Records at a time: they and their errors stay in the first-level cache."""

_real, _word = np.float32, np.int32
ZERO, ONE = _real(0.0), _real(1.0)
# exp d = 2^n e^r with n whole and |r| <= ln(2) / 2; ln 2 in two parts, so that n ln 2 is exact.
PER_OCTAVE, OCTAVE, OCTAVE_REST = (
    _real(1.0 / np.log(2.0)),
    _real(0.693359375),
    _real(-2.12194440e-4),
)
# Adding and taking this away rounds to a whole number, whose bits come last in the sum's.
ROUNDER = _real(1.5 * 2.0**23)
ROUNDER_BITS = _word(ROUNDER.view(_word))
EXPONENT_BIAS, MANTISSA_BITS = _word(127), _word(23)
# e^r = 1 + r + r^2 (D0 + D1 r + ... + D5 r^5)
D0, D1, D2, D3, D4, D5 = (_real(1.0 / n) for n in (2, 6, 24, 120, 720, 5040))
FLUSHED = _real(kernels.FLUSHED)
# exp is zero below this: 1.6e-38, and nearly where float32 loses digits.
LOWEST = _real(-87.0)


@inlined
def _exponential(d: Any) -> Any:
    """exp d for d <= 0; NaN stays NaN."""
    near = LOWEST if d < LOWEST else d
    shifted = near * PER_OCTAVE + ROUNDER
    n = shifted - ROUNDER
    r = (near - n * OCTAVE) - n * OCTAVE_REST
    z = r * r
    tail = ((D0 + D1 * r) + z * (D2 + D3 * r)) + (z * z) * (D4 + D5 * r)
    octaves = _word(_word(bits_of(shifted) - ROUNDER_BITS) + EXPONENT_BIAS)
    value = (ONE + (r + z * tail)) * float_of(_word(octaves << MANTISSA_BITS))
    return ZERO if d < LOWEST else value


@inlined
def _add_product(
    error: Any,
    classes: Any,
    column: Any,
    count: Any,
    x: Any,
    row: Any,
    features: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> Any:
    """Error [classes, count] times x [count, features] into (or onto) a part of `out`."""
    c = 0
    while c + 5 <= classes:
        f = 0
        while f + 16 <= features:
            outer_16x5(error, c, column, count, x, row, f, out, at, fresh)
            f += 16
        while f + 4 <= features:
            outer_4x5(error, c, column, count, x, row, f, out, at, fresh)
            f += 4
        while f < features:
            outer_1x5(error, c, column, count, x, row, f, out, at, fresh)
            f += 1
        c += 5
    while c < classes:
        f = 0
        while f + 16 <= features:
            outer_16x1(error, c, column, count, x, row, f, out, at, fresh)
            f += 16
        while f + 4 <= features:
            outer_4x1(error, c, column, count, x, row, f, out, at, fresh)
            f += 4
        while f < features:
            outer_1x1(error, c, column, count, x, row, f, out, at, fresh)
            f += 1
        c += 1


@kernel(products, kernels)
def linear_means(
    x: Any,
    labels: Any,
    offsets: Any,
    weights: Any,
    classes: int,
    limits: Any,
    powers: Any,
    norm: int,
    out: Any,
    stride: int,
    bias_at: int,
    error: Any,
    scratch: Any,
) -> bool:
    """Client rows of the flat `out`, one each `stride`: weights [classes, f] first, then biases.

    x [n, f], labels [n], offsets [k + 1]. weights [panels * (f + 1), 16]: see `products.affine_4`.
    norm: in which records are clipped, 1 or 2; 0 for no clipping. limits [k]: the longest gradient
    of one record. powers [n]: squared l2 norms (norm 2) or l1 norms (norm 1) of the inputs, one
    added if there is a bias. bias_at: where biases start in a row, or -1. error [panels * 16, TILE]
    and scratch [4, TILE] are working memory, finite at first. A record whose errors are NaN, or
    whose gradient is to be clipped and too long for float32, makes its client's whole row NaN.
    Returns False, with `out` half done, if a label is no class.
    """
    records, features = x.shape
    panels = error.shape[0] // LANES
    best, sums, factors, longest = scratch[0], scratch[1], scratch[2], scratch[3]
    client = 0
    ones = np.ones((TILE, 1), np.float32)
    for start in range(0, records, TILE):
        count = min(TILE, records - start)
        whole = count // 4 * 4
        for panel in range(panels):
            for r in range(0, whole, 4):
                affine_4(x, start + r, weights, panel, error, r)
            for r in range(whole, count):
                affine_1(x, start + r, weights, panel, error, r)
        # Loops over a tile's records run to its end where they can: no tail, faster code.
        first = error[0]
        for r in range(TILE):
            best[r] = first[r]
            sums[r] = ZERO
        for c in range(1, classes):
            own = error[c]
            for r in range(TILE):
                best[r] = own[r] if own[r] > best[r] else best[r]
        for c in range(classes):
            own = error[c]
            for r in range(TILE):
                value = _exponential(own[r] - best[r])
                own[r] = value
                sums[r] += value
        for r in range(TILE):
            sums[r] = ONE / sums[r]
        for c in range(classes):
            own = error[c]
            for r in range(TILE):
                own[r] *= sums[r]
        for r in range(count):
            label = labels[start + r]
            if label < 0 or label >= classes:
                return False
            error[label, r] -= ONE
        done, owner = 0, client
        while done < count:
            begin, end = offsets[owner], offsets[owner + 1]
            stop = min(end - start, count)
            for r in range(done, stop):
                factors[r] = ONE / _real(end - begin)
                longest[r] = limits[owner]
            done = stop
            owner += 1
        if norm != 0:
            length = best
            least = _real(classes) * FLUSHED if norm == 2 else ZERO
            for r in range(TILE):
                length[r] = least
            for c in range(classes):
                own = error[c]
                if norm == 2:
                    for r in range(TILE):
                        length[r] += own[r] * own[r]
                else:
                    for r in range(TILE):
                        length[r] += abs(own[r])
            for r in range(count):
                length[r] *= powers[start + r]
            if norm == 2:
                for r in range(count):
                    length[r] = np.sqrt(length[r])
            for r in range(count):
                factor = longest[r] / length[r]
                factor = ONE if factor > ONE else factor
                # Not finite where the length is not.
                factors[r] *= factor + length[r] * ZERO
        for c in range(classes):
            own = error[c]
            for r in range(TILE):
                own[r] *= factors[r]
        done = 0
        while done < count:
            fresh = 1 if offsets[client] - start == done else 0
            stop = min(offsets[client + 1] - start, count)
            at = client * stride
            row = start + done
            _add_product(error, classes, done, stop - done, x, row, features, out, at, fresh)
            if bias_at >= 0:
                at += bias_at
                _add_product(error, classes, done, stop - done, ones, 0, 1, out, at, fresh)
            done = stop
            if offsets[client + 1] - start <= count:
                client += 1
    return True
