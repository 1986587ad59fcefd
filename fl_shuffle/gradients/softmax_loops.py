"""Softmax regression, compiled: clipped means and sums in one pass over the records.

Records are taken 64 at a time. Logits, and sums of errors (softmax minus one-hot) times inputs, are
products of small matrices; what lies between are loops over errors that the compiler turns into
vectors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle._internal.compiled import inlined, kernel, piece, products, rows, softmax
from fl_shuffle._internal.compiled.products import LANES, product
from fl_shuffle._internal.compiled.rows import INFLATION, clip_row, dot, length_of, powers
from fl_shuffle._internal.compiled.softmax import ONE, ZERO, softmax_of_columns

TILE = softmax.TILE
"""Records at a time: they and their errors stay in the first-level cache. This number of a client's
are added up in float32, before their sum joins a float64 one."""
MOST_PAIRED = 8
"""With more records than this a client's sum is made sooner than the products of its records."""
LOST = 512.0
"""2^-15 / 2^-24: `rows.INFLATION` of a length covers this many half ulps of its square."""

LEAST_SQUARES = np.float32(2.0**-125)
"""Added for each square: those below float32's range count as zero (`kernels.FLUSHED`)."""


class RecordArrays(NamedTuple):
    """Client k's records are offsets[k] .. offsets[k + 1] - 1 of inputs `x` [n, f] and `labels`
    [n]. Their gradients are clipped in the `norm` (1, 2; 0: not at all) to their `limits` [n], and
    each counts its of the `shares` [n]. Records that count as zero are marked in `zeros` [n]."""

    x: Any
    labels: Any
    offsets: Any
    norm: int
    limits: Any
    shares: Any
    zeros: Any


class MeanClips(NamedTuple):
    """Clients' means are clipped in the `norm` (1, 2; 0: not at all) to their `radii` [k], and each
    counts its of the `weights` [k]. Those that are not finite count as zero, and are marked in
    `invalid` [k]. `inputs` [m, n + TILE]: `input_products`, for clients of m records at most."""

    norm: int
    radii: Any
    weights: Any
    inputs: Any
    invalid: Any


class Tile(NamedTuple):
    """What a tile of records is worked on in: `logits` [TILE times at least classes], `error`
    [classes + 1, TILE] (in the end weighted; the last row is read, and never counts), `numbers`
    [6, TILE] of each record, `clean` [TILE, f]: inputs if some records count as zero; `part`, `row`
    [d]: sums over records of a tile."""

    weights: Any
    biases: Any
    logits: Any
    error: Any
    numbers: Any
    clean: Any
    part: Any
    row: Any


@piece
def _begin(parameters: Any, classes: Any, features: Any) -> Any:
    """Return the model in flat parameters [d] (no biases: zeros), and a tile."""
    biased = parameters.size > classes * features
    weights = np.zeros((features, max(classes, LANES)), np.float32)
    biases = np.zeros(classes, np.float32)
    for c in range(classes):
        for f in range(features):
            weights[f, c] = parameters[c * features + f]
        if biased:
            biases[c] = parameters[classes * features + c]
    part, row = np.empty(parameters.size, np.float32), np.empty(parameters.size, np.float32)
    logits = np.zeros(TILE * max(classes, LANES), np.float32)
    error, numbers = np.zeros((classes + 1, TILE), np.float32), np.zeros((6, TILE), np.float32)
    clean = np.empty((TILE, features), np.float32)
    return Tile(weights, biases, logits, error, numbers, clean, part, row)


@piece
def _clip(norm: Any, count: Any, tile: Any) -> Any:
    """Return the tile's factors times the clip factors of its records; how many of them are not
    finite."""
    error, numbers = tile.error, tile.numbers
    length, power, limit, factor = numbers[0], numbers[1], numbers[2], numbers[3]
    for r in range(TILE):
        length[r] = ZERO
    for c in range(error.shape[0] - 1):
        own = error[c]
        if norm == 2:
            for r in range(TILE):
                length[r] += own[r] * own[r] + LEAST_SQUARES
        else:
            for r in range(TILE):
                length[r] += abs(own[r])
    for r in range(TILE):
        length[r] *= power[r]
    if norm == 2:
        for r in range(TILE):
            length[r] = np.sqrt(length[r])
    for r in range(TILE):
        share = limit[r] / length[r]
        # Not finite where the length is not.
        factor[r] *= (ONE if share > ONE else share) + length[r] * ZERO
    bad = 0
    for r in range(count):
        bad += 0 if factor[r] - factor[r] == ZERO else 1
    return bad


@inlined
def _errors(records: Any, start: Any, count: Any, tile: Any) -> Any:
    """Write to the first `count` columns of the tile's errors the output gradients of the records
    from `start` on, clipped and times their shares. Returns the inputs that go with them, and how
    many records count as zero: both are zero for these."""
    classes, features, width = tile.biases.size, records.x.shape[1], tile.weights.shape[1]
    x, logits, error = records.x[start : start + count], tile.logits, tile.error
    sums, limit, factor = tile.numbers[1], tile.numbers[2], tile.numbers[3]
    product(x, tile.weights, logits)
    for c in range(classes):
        line, bias = error[c], tile.biases[c]
        for r in range(TILE):
            line[r] = logits[r * width + c] + bias
    softmax_of_columns(error[:classes], tile.numbers[0], sums)
    for r in range(count):
        label = records.labels[start + r]
        if 0 <= label < classes:
            error[label, r] -= ONE
        else:
            error[0, r] = np.nan
    bad = 0
    for r in range(count):
        factor[r] = records.shares[start + r]
    if records.norm != 0:
        for r in range(count):
            limit[r] = records.limits[start + r]
        least = features * LEAST_SQUARES if records.norm == 2 else ZERO
        least += ONE if tile.part.size > classes * features else ZERO
        powers(x, records.norm, np.float32(least), sums)
        bad = _clip(records.norm, count, tile)
    for c in range(classes):
        line = error[c]
        for r in range(TILE):
            line[r] *= factor[r]
    if bad > 0:
        given, x = x, tile.clean[:count]
        for r in range(count):
            finite = np.isfinite(factor[r])
            records.zeros[start + r] = not finite
            for c in range(classes):
                error[c, r] = error[c, r] if finite else ZERO
            for f in range(features):
                x[r, f] = given[r, f] if finite else ZERO
    return x, bad


@piece
def _sum(error: Any, x: Any, out: Any) -> Any:
    """Write to out [d] the sum over records of errors [classes, n] times inputs [n, f], and of
    errors if there are biases."""
    numbers = error.shape[0] * x.shape[1]
    product(error, x, out)
    if out.size > numbers:
        for c in range(error.shape[0]):
            total = ZERO
            for r in range(x.shape[0]):
                total += error[c, r]
            out[numbers + c] = total


@inlined
def _clients_of_tile(offsets: Any, client: Any, end: Any, start: Any) -> Any:
    """Return whole clients, or the ends of such, as many as fit from the record `start` on; else a
    part of one: the first client behind them, and how many records."""
    last = client
    while last < end and offsets[last + 1] - start <= TILE:
        last += 1
    return last, offsets[last] - start if last > client else TILE


@inlined
def _sum_of_client(
    offsets: Any, k: Any, start: Any, count: Any, errors: Any, x: Any, chain: Any, row: Any
) -> Any:
    """Write to row [d] the sum of client k's records up to the end of a tile of `count` records
    from `start` on. Returns whether that is all of them; chain [d] (float64) is kept in between."""
    begin, end = max(offsets[k] - start, 0), min(offsets[k + 1] - start, count)
    _sum(errors[:, begin:end], x[begin:end], row)
    if end - begin < offsets[k + 1] - offsets[k]:
        # A client of several tiles: their sums are added up in float64.
        for i in range(row.size):
            chain[i] = row[i] + (0.0 if offsets[k] >= start else chain[i])
            row[i] = chain[i]
    return offsets[k + 1] - start <= count


@kernel(products, rows, softmax)
def client_means(
    records: RecordArrays, parameters: Any, classes: int, blocks: Any, clips: MeanClips, means: Any
) -> int:
    """Write to means [k, d] those of the clients' clipped gradients, clipped themselves (their
    weights and inputs play no part), where blocks of clients begin at blocks[b]; return how many
    records count as zero. parameters [d]: weights [classes, f], and biases behind them if there are
    any."""
    offsets, features = records.offsets, records.x.shape[1]
    tile = _begin(parameters, classes, features)
    errors, chain, bad = tile.error[:classes], np.empty(parameters.size), 0
    for block in range(blocks.size - 1):
        client, start, end = blocks[block], offsets[blocks[block]], blocks[block + 1]
        while client < end:
            last, count = _clients_of_tile(offsets, client, end, start)
            x, found = _errors(records, start, count, tile)
            bad += found
            for k in range(client, max(last, client + 1)):
                whole = _sum_of_client(offsets, k, start, count, errors, x, chain, means[k])
                if whole and clips.norm != 0:  # while it is in the first-level cache
                    clips.invalid[k] = clip_row(means[k], clips.radii[k], clips.norm)
            start += count
            client = last
    return bad


@kernel(rows)
def input_products(x: Any, offsets: Any, bias: float, found: Any) -> None:
    """Write to found [m, n + TILE], zeros at first, the product of each record's input, a bias
    behind it, with that of a later record, by this offset, in the same client: twice, unless they
    are one."""
    for k in range(offsets.size - 1):
        for i in range(offsets[k], offsets[k + 1]):
            for apart in range(min(found.shape[0], offsets[k + 1] - i)):
                product = dot(x[i], x[i + apart]) + bias * bias
                found[apart, i] = product if apart == 0 else 2.0 * product


@piece
def _square(error: Any, inputs: Any, start: Any, own: Any, squares: Any, alone: Any) -> None:
    """Write to alone [TILE] the squared lengths of a tile's gradients, from the record `start` on;
    squares [TILE] <- these, and twice their products with those that come later in their clients.
    """
    classes, flat = error.shape[0] - 1, error.reshape(-1)
    for apart in range(inputs.shape[0]):
        for r in range(TILE):
            own[r] = classes * LEAST_SQUARES if apart == 0 else ZERO
        for c in range(classes):
            left, right = error[c], flat[c * TILE + apart :]
            for r in range(TILE):
                own[r] += left[r] * right[r]
        known = inputs[apart, start : start + TILE]
        if apart == 0:
            for r in range(TILE):
                squares[r] = alone[r] = own[r] * known[r]
        else:
            # Zero where the two are of different clients: then nothing of the later one counts,
            # finite or not.
            for r in range(TILE):
                squares[r] += ZERO if known[r] == ZERO else own[r] * known[r]


@inlined
def _clip_by_products(
    offsets: Any, client: Any, last: Any, start: Any, clips: Any, error: Any, numbers: Any
) -> None:
    """Weigh errors so that whole clients of few records add up to clipped means times weights. The
    first number of others in numbers[5] is negative: of those that reach beyond the tile from
    `start` on, and where records cancel or are not finite.

    Squares are off by a half ulp of the terms' for each class and record, and three.
    """
    most, classes, factor = clips.inputs.shape[0], error.shape[0] - 1, numbers[3]
    squares, alone = numbers[4], numbers[5]
    _square(error, clips.inputs, start, numbers[1], squares, alone)
    factor[:] = ONE
    for k in range(client, last):
        begin, end, radius = max(offsets[k] - start, 0), offsets[k + 1] - start, clips.radii[k]
        size, square, terms = offsets[k + 1] - offsets[k], 0.0, 0.0
        for r in range(begin, end):
            square += squares[r]
            terms += alone[r]
        largest = max(square, radius * radius)
        lost = (classes + MOST_PAIRED + 3) * size * terms
        if size <= min(most, end) and lost <= LOST * largest < np.inf:
            length = np.sqrt(max(square, 0.0)) * INFLATION
            share = clips.weights[k] * (radius / length if length > radius else 1.0)
            for r in range(begin, end):
                factor[r] = share
        else:
            alone[begin] = -ONE
    for c in range(classes):
        line = error[c]
        for r in range(TILE):
            line[r] *= factor[r]


@inlined
def _add(begin: Any, end: Any, errors: Any, x: Any, part: Any, own: Any) -> None:
    """Add the sum of a tile's records begin .. end - 1 to own [d] (float64)."""
    if begin < end:
        _sum(errors[:, begin:end], x[begin:end], part)
        for i in range(own.size):
            own[i] += part[i]


@kernel(products, rows, softmax)
def sum_of_clients(
    records: RecordArrays, parameters: Any, classes: int, blocks: Any, clips: MeanClips,
    grid: float, total: Any,
) -> int:  # fmt: skip
    """Write to total [d] the sum of all clients' means, that of the block of clients from blocks[b]
    on rounded to multiples of `grid`; return as above. Where means are not clipped it is that of
    all records' gradients, each times its share."""
    offsets, features, norm = records.offsets, records.x.shape[1], clips.norm
    tile = _begin(parameters, classes, features)
    own, chain, row, bad = np.empty(total.size), np.empty(total.size), tile.row, 0
    errors, alone, part = tile.error[:classes], tile.numbers[5], tile.part
    total[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        client, start, end = blocks[block], offsets[blocks[block]], offsets[blocks[block + 1]]
        while start < end:
            last, count = client, min(TILE, end - start)
            if norm != 0:
                last, count = _clients_of_tile(offsets, client, blocks[block + 1], start)
            x, found = _errors(records, start, count, tile)
            bad += found
            if norm == 2 and count <= clips.inputs.shape[0] * (last - client):
                _clip_by_products(offsets, client, last, start, clips, tile.error, tile.numbers)
            else:
                alone[:] = -ONE
            done = 0
            for k in range(client, max(last, client + 1) if norm != 0 else client):
                begin = max(offsets[k] - start, 0)
                if alone[begin] >= ZERO:
                    continue
                _add(done, begin, errors, x, part, own)
                done = min(offsets[k + 1] - start, count)
                if _sum_of_client(offsets, k, start, count, errors, x, chain, row):
                    length = length_of(row, norm)
                    if not np.isfinite(length):
                        clips.invalid[k] = True
                        continue
                    radius = clips.radii[k]
                    share = clips.weights[k] * (radius / length if length > radius else 1.0)
                    for i in range(own.size):
                        own[i] += row[i] * share
            _add(done, count, errors, x, part, own)
            start += count
            client = last
        for i in range(own.size):
            total[i] += np.rint(own[i] / grid) * grid
    return bad
