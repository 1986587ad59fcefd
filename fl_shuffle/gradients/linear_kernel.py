"""Softmax regression in one pass over the records: logits, errors, clipping, clients' means."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle.compiled import inlined, kernel, matrix_products, softmax
from fl_shuffle.compiled.matrix_products import (
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
from fl_shuffle.compiled.softmax import ONE, TILE, ZERO, softmax_of_columns
from fl_shuffle.gradients import kernels

CHAIN, UNCLIPPED_CHAIN = 8, 512
"""Records of a client that are added up in float32, before their sum joins a float64 one. Where
records are not clipped, nothing is promised of how far one of them moves the sum."""
STRETCH = 4 * TILE
"""Records that a sum of all clients adds up in float32."""

_real = np.float32
NOT_A_NUMBER = _real(np.nan)
FLUSHED = _real(kernels.FLUSHED)


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


class Shape(NamedTuple):
    """The model's classes, the distance of client rows in the flat output, and whether it has
    biases (they follow the weights in a row)."""

    classes: int
    stride: int
    biased: bool


@inlined
def _power(x: Any, row: Any, features: Any, norm: Any) -> Any:
    """Squared l2 norm, or l1 norm, of one record."""
    a, b, c, d, e, f, g, h = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
    whole = features // 8 * 8
    if norm == 2:
        for i in range(0, whole, 8):
            a += x[row, i] * x[row, i]
            b += x[row, i + 1] * x[row, i + 1]
            c += x[row, i + 2] * x[row, i + 2]
            d += x[row, i + 3] * x[row, i + 3]
            e += x[row, i + 4] * x[row, i + 4]
            f += x[row, i + 5] * x[row, i + 5]
            g += x[row, i + 6] * x[row, i + 6]
            h += x[row, i + 7] * x[row, i + 7]
        for i in range(whole, features):
            a += x[row, i] * x[row, i]
        a += _real(features) * FLUSHED
    else:
        for i in range(features):
            a += abs(x[row, i])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@inlined
def _lengths(error: Any, classes: Any, norm: Any, length: Any) -> Any:
    """Squared l2 norms, or l1 norms, of the columns of error [classes, TILE]."""
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


@inlined
def _close_chain(out: Any, total: Any, at: Any, first: Any, last: Any) -> Any:
    """A chain's sum, at out[at:], joins the client's `total`, which ends there as the mean."""
    own = out[at : at + total.size]
    if first:
        for i in range(total.size):
            total[i] = own[i]
    elif not last:
        for i in range(total.size):
            total[i] += own[i]
    else:
        for i in range(total.size):
            own[i] = total[i] + own[i]


@inlined
def _tile_errors(
    x: Any,
    labels: Any,
    start: Any,
    count: Any,
    weights: Any,
    classes: Any,
    error: Any,
    best: Any,
    sums: Any,
) -> Any:
    """The output gradients of `count` records from `start` on: columns of error."""
    whole = count // 4 * 4
    for panel in range(error.shape[0] // LANES):
        for r in range(0, whole, 4):
            affine_4(x, start + r, weights, panel, error, r)
        for r in range(whole, count):
            affine_1(x, start + r, weights, panel, error, r)
    softmax_of_columns(error, classes, best, sums)
    for r in range(count):
        label = labels[start + r]
        if label < 0 or label >= classes:
            for c in range(classes):
                error[c, r] = NOT_A_NUMBER
        else:
            error[label, r] -= ONE


@inlined
def _clip_tile(
    powers: Any,
    start: Any,
    count: Any,
    norm: Any,
    classes: Any,
    error: Any,
    length: Any,
    longest: Any,
    factors: Any,
    zeros: Any,
    marked: Any,
) -> Any:
    """factors [TILE] times each record's clip factor; records that count as zero are marked in
    zeros, and counted in marked[0]."""
    _lengths(error, classes, norm, length)
    for r in range(count):
        length[r] *= powers[start + r]
    if norm == 2:
        for r in range(TILE):
            length[r] = np.sqrt(length[r])
    for r in range(TILE):
        factor = longest[r] / length[r]
        factor = ONE if factor > ONE else factor
        # Not finite where the length is not.
        factors[r] *= factor + length[r] * ZERO
    bad = 0
    for r in range(count):
        bad += 0 if factors[r] - factors[r] == ZERO else 1
    if bad > 0:
        marked[0] += bad
        for r in range(count):
            if not np.isfinite(factors[r]):
                zeros[start + r] = True


@kernel(kernels)
def input_powers(x: Any, norm: int, biased: bool, powers: Any) -> None:
    """powers [n]: what a record's input gives its gradient's length: the squared l2 norm (norm 2)
    or l1 norm (norm 1) of x [n, f], and one for a bias."""
    for row in range(x.shape[0]):
        powers[row] = _power(x, row, x.shape[1], norm) + (ONE if biased else ZERO)


@kernel(matrix_products, softmax, kernels)
def linear_means(
    x: Any,
    powers: Any,
    labels: Any,
    offsets: Any,
    weights: Any,
    shape: Shape,
    norm: int,
    limits: Any,
    out: Any,
    tile: Any,
    total: Any,
    zeros: Any,
) -> int:
    """Client rows of the flat `out`, one each `shape.stride`: weights [classes, f], then biases.

    x [n, f], powers [n] (`input_powers`), labels [n], offsets [k + 1]. weights
    [panels * (f + 1), 16]: see `matrix_products.affine_4`. norm: in which records are clipped, 1 or
    2; 0 for no clipping. limits [k]: the longest gradient of one record. tile
    [panels * 16 + 4, TILE] is working memory, finite at first, and so is total [d]. A record to be
    clipped whose errors are NaN, whose label is no class, or whose gradient is too long for float32
    counts as zero, and is
    marked in zeros [n]; if nothing is
    clipped, its client's row has entries that are not finite. Returns how many were marked.
    """
    records, features = x.shape
    classes = shape.classes
    error = tile[:-4]
    best, sums, factors, longest = tile[-4], tile[-3], tile[-2], tile[-1]
    # A bias is the weight of one more input, always 1.
    ones = np.ones((TILE, 1), np.float32)
    chain = CHAIN if norm != 0 else UNCLIPPED_CHAIN
    client, marked = 0, np.zeros(1, np.int64)
    for start in range(0, records, TILE):
        count = min(TILE, records - start)
        _tile_errors(x, labels, start, count, weights, classes, error, best, sums)
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
            _clip_tile(
                powers, start, count, norm, classes,
                error, best, longest, factors, zeros, marked,
            )  # fmt: skip
        for c in range(classes):
            own = error[c]
            for r in range(TILE):
                own[r] *= factors[r]
        done = 0
        while done < count:
            begin, end = offsets[client], offsets[client + 1]
            before = start + done - begin
            # To the end of the client, of the tile, or of the chain; a record that counts as zero
            # is a stretch of its own, of which nothing is added.
            stop = min(end - start, count, done + chain - before % chain)
            added = stop - done
            if marked[0] > 0:
                added = 0
                while done + added < stop and not zeros[start + done + added]:
                    added += 1
                stop = max(done + 1, done + added)
            fresh = 1 if before % chain == 0 else 0
            at, row = client * shape.stride, start + done
            _add_product(error, classes, done, added, x, row, features, out, at, fresh)
            if shape.biased:
                bias_at = at + classes * features
                _add_product(error, classes, done, added, ones, 0, 1, out, bias_at, fresh)
            after, size = before + stop - done, end - begin
            if size > chain and (after % chain == 0 or after == size):
                _close_chain(out, total, at, after <= chain, after == size)
            done = stop
            if after == size:
                client += 1
    return int(marked[0])


@kernel(matrix_products, softmax, kernels)
def linear_sum(
    x: Any,
    powers: Any,
    labels: Any,
    offsets: Any,
    blocks: Any,
    weights: Any,
    shape: Shape,
    norm: int,
    shares: Any,
    limits: Any,
    grid: float,
    sums: Any,
    tile: Any,
    zeros: Any,
) -> int:
    """The sum of all records' clipped gradients, each times its client's share.

    As `linear_means`, but for: blocks [b + 1], the first client of each block, and the end; shares
    [k]; grid, to whose multiples a block's sum is rounded; sums, float64 [2, d]: the first row gets
    the sum of the blocks, the other is working memory.
    """
    features, classes = x.shape[1], shape.classes
    error = tile[:-4]
    best, spare, factors, longest = tile[-4], tile[-3], tile[-2], tile[-1]
    ones = np.ones((TILE, 1), np.float32)
    total, own = sums[0], sums[1]
    # The last 16 features overlap those before: they have a part of their own.
    part, tail = np.zeros(total.size, np.float32), np.zeros(total.size, np.float32)
    whole = features // LANES * LANES if features >= LANES and classes % 5 == 0 else 0
    bias_at = classes * features
    marked = np.zeros(1, np.int64)
    client = 0
    total[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        first, end = offsets[blocks[block]], offsets[blocks[block + 1]]
        for start in range(first, end, TILE):
            count = min(TILE, end - start)
            _tile_errors(x, labels, start, count, weights, classes, error, best, spare)
            for r in range(count):
                while start + r >= offsets[client + 1]:
                    client += 1
                factors[r] = shares[client]
                longest[r] = limits[client]
            before = marked[0]
            _clip_tile(
                powers, start, count, norm, classes,
                error, best, longest, factors, zeros, marked,
            )  # fmt: skip
            for c in range(classes):
                column = error[c]
                for r in range(TILE):
                    column[r] *= factors[r]
            fresh = 1 if (start - first) % STRETCH == 0 else 0
            done = 0
            while done < count:
                # All of the tile; where records count as zero, the stretches between them.
                stop = count
                if marked[0] > before:
                    stop = done
                    while stop < count and not zeros[start + stop]:
                        stop += 1
                row, added = start + done, stop - done
                if whole > 0:
                    for c in range(0, classes, 5):
                        for f in range(0, whole, LANES):
                            outer_16x5(error, c, done, added, x, row, f, part, 0, fresh)
                        last = features - LANES
                        if whole < features:
                            outer_16x5(error, c, done, added, x, row, last, tail, 0, fresh)
                else:
                    _add_product(error, classes, done, added, x, row, features, part, 0, fresh)
                if shape.biased:
                    _add_product(error, classes, done, added, ones, 0, 1, part, bias_at, fresh)
                fresh = 0
                done = stop + 1
            if (start + count - first) % STRETCH == 0 or start + count == end:
                if 0 < whole < features:
                    for c in range(classes):
                        for i in range(c * features + whole, (c + 1) * features):
                            part[i] = tail[i]
                for i in range(own.size):
                    own[i] += part[i]
        for i in range(own.size):
            total[i] += np.rint(own[i] / grid) * grid
    return int(marked[0])
