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
from fl_shuffle.gradients import kernels, tolerances
from fl_shuffle.gradients.tolerances import TOLERANCES

CHAIN, UNCLIPPED_CHAIN = TOLERANCES.compiled_chain, TOLERANCES.compiled_unclipped_chain

_real = np.float32
NOT_A_NUMBER = _real(np.nan)
FLUSHED = _real(kernels.FLUSHED)


# Functions take the arrays out of these before their loops: counting references there is slow.


class Records(NamedTuple):
    """Client by client: inputs `x` [n, f], `labels` [n], and client k's records from offsets[k] to
    offsets[k + 1] - 1. `powers` [n] (`input_powers`): unused where nothing is clipped."""

    x: Any
    powers: Any
    labels: Any
    offsets: Any


class Model(NamedTuple):
    """`parameters` [d]: weights [classes, f], and biases behind them if it is `biased`. `weights`
    [panels * (f + 1), 16], working memory: the same laid out for `matrix_products.affine_4`."""

    parameters: Any
    weights: Any
    classes: int
    biased: bool


class Clips(NamedTuple):
    """Records are clipped in the l1 or l2 `norm` (0: not at all) to their client's limits [k].

    Those that count as zero are marked in `zeros` [n], and counted in marked[0]: results, both.
    """

    norm: int
    limits: Any
    zeros: Any
    marked: Any


class Tile(NamedTuple):
    """What a tile of records is worked on in: `error` [panels * 16, TILE], a column a record; its
    `length`, its clip `limit`, its `factor`; `sums` is scratch."""

    error: Any
    length: Any
    sums: Any
    factor: Any
    limit: Any


@inlined
def begin(model: Any, features: Any, clips: Any, tile: Any) -> Any:
    """Lay out the model's weights; let nothing be marked, and all that a tile holds be finite."""
    parameters, weights, classes = model.parameters, model.weights, model.classes
    error, length, sums = tile.error, tile.length, tile.sums
    factor, limit = tile.factor, tile.limit
    clips.zeros[:] = False
    clips.marked[0] = 0
    biases = classes * features
    for panel in range(error.shape[0] // LANES):
        first, row = panel * LANES, panel * (features + 1)
        for lane in range(LANES):
            c = first + lane
            for f in range(features):
                weights[row + f, lane] = parameters[c * features + f] if c < classes else ZERO
            has_bias = model.biased and c < classes
            weights[row + features, lane] = parameters[biases + c] if has_bias else ZERO
    for r in range(TILE):
        length[r] = ZERO
        sums[r] = ZERO
        factor[r] = ZERO
        limit[r] = ZERO
        for c in range(error.shape[0]):
            error[c, r] = ZERO


@inlined
def add_product(
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
        if fresh != 0 and LANES <= f < features:
            # Some numbers are made again, of the same bits: sooner done than a few lanes at a time.
            outer_16x5(error, c, column, count, x, row, features - 16, out, at, fresh)
            f = features
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
def _tile_errors(records: Any, start: Any, count: Any, model: Any, tile: Any) -> Any:
    """The output gradients of `count` records from `start` on: columns of the tile's error."""
    x, labels, weights = records.x, records.labels, model.weights
    error, classes = tile.error, model.classes
    whole = count // 4 * 4
    for panel in range(error.shape[0] // LANES):
        for r in range(0, whole, 4):
            affine_4(x, start + r, weights, panel, error, r)
        for r in range(whole, count):
            affine_1(x, start + r, weights, panel, error, r)
    softmax_of_columns(error, classes, tile.length, tile.sums)
    for r in range(count):
        label = labels[start + r]
        if label < 0 or label >= classes:
            for c in range(classes):
                error[c, r] = NOT_A_NUMBER
        else:
            error[label, r] -= ONE


@inlined
def _clip_tile(powers: Any, start: Any, count: Any, classes: Any, clips: Any, tile: Any) -> Any:
    """The tile's factors times each record's clip factor."""
    length, factor, limit, zeros = tile.length, tile.factor, tile.limit, clips.zeros
    _lengths(tile.error, classes, clips.norm, length)
    for r in range(count):
        length[r] *= powers[start + r]
    if clips.norm == 2:
        for r in range(TILE):
            length[r] = np.sqrt(length[r])
    for r in range(TILE):
        share = limit[r] / length[r]
        share = ONE if share > ONE else share
        # Not finite where the length is not.
        factor[r] *= share + length[r] * ZERO
    bad = 0
    for r in range(count):
        bad += 0 if factor[r] - factor[r] == ZERO else 1
    if bad > 0:
        clips.marked[0] += bad
        for r in range(count):
            if not np.isfinite(factor[r]):
                zeros[start + r] = True


@inlined
def weighted_errors(records: Any, start: Any, count: Any, model: Any, clips: Any, tile: Any) -> Any:
    """`_tile_errors` of records clipped to the tile's limits, times the tile's factors."""
    _tile_errors(records, start, count, model, tile)
    if clips.norm != 0:
        _clip_tile(records.powers, start, count, model.classes, clips, tile)
    error, factor = tile.error, tile.factor
    for c in range(model.classes):
        own = error[c]
        for r in range(TILE):
            own[r] *= factor[r]


@kernel(kernels)
def input_powers(x: Any, norm: int, biased: bool, powers: Any) -> None:
    """powers [n]: what a record's input gives its gradient's length: the squared l2 norm (norm 2)
    or l1 norm (norm 1) of x [n, f], and one for a bias."""
    for row in range(x.shape[0]):
        powers[row] = _power(x, row, x.shape[1], norm) + (ONE if biased else ZERO)


@kernel(matrix_products, softmax, kernels, tolerances)
def means_of_clients(
    records: Records, model: Model, clips: Clips, tile: Tile, total: Any, out: Any, stride: int
) -> None:
    """`linear_means`, of a model that is laid out, on a tile that is finite."""
    x, offsets, classes = records.x, records.offsets, model.classes
    features, error, zeros, marked = x.shape[1], tile.error, clips.zeros, clips.marked
    limits, factor, limit = clips.limits, tile.factor, tile.limit
    # A bias is the weight of one more input, always 1.
    ones = np.ones((TILE, 1), np.float32)
    chain = CHAIN if clips.norm != 0 else UNCLIPPED_CHAIN
    client = 0
    for start in range(0, x.shape[0], TILE):
        count = min(TILE, x.shape[0] - start)
        done, owner = 0, client
        while done < count:
            begin, end = offsets[owner], offsets[owner + 1]
            stop = min(end - start, count)
            for r in range(done, stop):
                factor[r] = ONE / _real(end - begin)
                limit[r] = limits[owner]
            done = stop
            owner += 1
        weighted_errors(records, start, count, model, clips, tile)
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
            at, row = client * stride, start + done
            add_product(error, classes, done, added, x, row, features, out, at, fresh)
            if model.biased:
                bias_at = at + classes * features
                add_product(error, classes, done, added, ones, 0, 1, out, bias_at, fresh)
            after, size = before + stop - done, end - begin
            if size > chain and (after % chain == 0 or after == size):
                _close_chain(out, total, at, after <= chain, after == size)
            done = stop
            if after == size:
                client += 1


@kernel(matrix_products, softmax, kernels, tolerances)
def linear_means(
    records: Records, model: Model, clips: Clips, tile: Tile, total: Any, out: Any, stride: int
) -> None:
    """Client rows of the flat `out`, one each `stride`: weights [classes, f], then biases.

    total [d] is working memory. A record to be clipped whose errors are NaN, whose
    label is no class, or whose gradient is too long for float32 counts as zero, and is marked; if
    nothing is clipped, its client's row has entries that are not finite.
    """
    begin(model, records.x.shape[1], clips, tile)
    means_of_clients(records, model, clips, tile, total, out, stride)
