"""Softmax regression, compiled: clipped means and sums in one pass over the records.

Records are taken 64 at a time. Logits, and sums of errors (softmax minus one-hot) times inputs, are
products of small matrices; what lies between are loops over errors that the compiler turns into
vectors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle.compiled import bits_of, float_of, kernel, piece, products, rows
from fl_shuffle.compiled.products import LANES, product
from fl_shuffle.compiled.rows import length_of, powers

TILE = 64
"""Records at a time: they and their errors stay in the first-level cache. So many of a client are
added up in float32, before their sum joins a float64 one."""
TOGETHER = 1 << 15
"""Numbers of clients' means that are made, clipped and added up together, in the cache."""

_real, _word = np.float32, np.int32
ZERO, ONE = _real(0.0), _real(1.0)
LEAST_SQUARES = _real(2.0**-125)
"""Added for each square: those below float32's range count as zero (`kernels.FLUSHED`)."""
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
# exp is zero below this: 1.6e-38, and nearly where float32 loses digits.
LOWEST = _real(-87.0)


class Records(NamedTuple):
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


class Tile(NamedTuple):
    """What a tile of records is worked on in: `logits` [TILE times at least classes], `error`
    [classes, TILE] (in the end weighted), numbers of each record [TILE], `clean` [TILE, f]: inputs
    if some records count as zero; `part` [d]: a sum over records of a tile."""

    logits: Any
    error: Any
    length: Any
    sums: Any
    factor: Any
    limit: Any
    clean: Any
    part: Any


class Model(NamedTuple):
    """Weights [f, at least classes] and biases [classes], as products read them."""

    weights: Any
    biases: Any


@piece
def _begin(parameters: Any, classes: Any, features: Any) -> Any:
    """The model in flat parameters [d] (no biases: zeros), and a tile."""
    numbers = classes * features
    weights = np.zeros((features, max(classes, LANES)), np.float32)
    weights[:, :classes] = parameters[:numbers].reshape(classes, features).T
    biases = np.zeros(classes, np.float32)
    if parameters.size > numbers:
        biases[:] = parameters[numbers:]
    single = np.zeros((4, TILE), np.float32)
    tile = Tile(
        np.zeros(TILE * max(classes, LANES), np.float32), np.zeros((classes, TILE), np.float32),
        single[0], single[1], single[2], single[3],
        np.empty((TILE, features), np.float32), np.empty(parameters.size, np.float32),
    )  # fmt: skip
    return Model(weights, biases), tile


@piece
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


# Loops over a tile's records run to its end, whatever is there: no tail, faster code.


@piece
def _softmax_of_columns(error: Any, best: Any, sums: Any) -> Any:
    """Logits [classes, TILE] become probabilities, in place; best and sums [TILE] are scratch."""
    first = error[0]
    for r in range(TILE):
        best[r] = first[r]
        sums[r] = ZERO
    for c in range(1, error.shape[0]):
        own = error[c]
        for r in range(TILE):
            best[r] = own[r] if own[r] > best[r] else best[r]
    for c in range(error.shape[0]):
        own = error[c]
        for r in range(TILE):
            value = _exponential(own[r] - best[r])
            own[r] = value
            sums[r] += value
    for r in range(TILE):
        sums[r] = ONE / sums[r]
    for c in range(error.shape[0]):
        own = error[c]
        for r in range(TILE):
            own[r] *= sums[r]


@piece
def _clip(norm: Any, count: Any, tile: Any) -> Any:
    """The tile's factors times the clip factors of its records; how many of them are not finite."""
    error, length, power = tile.error, tile.length, tile.sums
    limit, factor = tile.limit, tile.factor
    for r in range(TILE):
        length[r] = ZERO
    for c in range(error.shape[0]):
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


@piece
def _errors(records: Any, start: Any, count: Any, model: Any, biased: Any, tile: Any) -> Any:
    """Into the first `count` columns of the tile's errors: the output gradients of the records from
    `start` on, clipped and times their shares. Returns the inputs that go with them, and how many
    records count as zero: both are zero for these."""
    classes, features, width = model.biases.size, records.x.shape[1], model.weights.shape[1]
    x, logits, error = records.x[start : start + count], tile.logits, tile.error
    product(x, model.weights, logits)
    for c in range(classes):
        line, bias = error[c], model.biases[c]
        for r in range(TILE):
            line[r] = logits[r * width + c] + bias
    _softmax_of_columns(error, tile.length, tile.sums)
    for r in range(count):
        label = records.labels[start + r]
        if 0 <= label < classes:
            error[label, r] -= ONE
        else:
            error[0, r] = np.nan
    factor, bad = tile.factor, 0
    factor[:count] = records.shares[start : start + count]
    if records.norm != 0:
        tile.limit[:count] = records.limits[start : start + count]
        least = features * LEAST_SQUARES if records.norm == 2 else ZERO
        least += ONE if biased else ZERO
        powers(x, records.norm, np.float32(least), tile.sums)
        bad = _clip(records.norm, count, tile)
    for c in range(classes):
        line = error[c]
        for r in range(TILE):
            line[r] *= factor[r]
    if bad > 0:
        tile.clean[:count] = x
        x = tile.clean[:count]
        for r in range(count):
            if not np.isfinite(factor[r]):
                records.zeros[start + r] = True
                error[:, r] = ZERO
                x[r] = ZERO
    return x, bad


@piece
def _sum(error: Any, x: Any, out: Any) -> Any:
    """Into out [d]: the sum over records of errors [classes, n] times inputs [n, f], and of errors
    if there are biases."""
    classes, features = error.shape[0], x.shape[1]
    numbers = classes * features
    product(error, x, out)
    if out.size > numbers:
        for c in range(classes):
            total = ZERO
            for r in range(x.shape[0]):
                total += error[c, r]
            out[numbers + c] = total


@piece
def _means(records: Any, model: Any, biased: Any, tile: Any, total: Any, rows: Any) -> Any:
    """`client_means`; total [d] (float64) is scratch."""
    offsets, clients = records.offsets, records.offsets.size - 1
    start, client, bad = 0, 0, 0
    while client < clients:
        # Whole clients, or the ends of such, as many as fit; else a part of one.
        last = client
        while last < clients and offsets[last + 1] - start <= TILE:
            last += 1
        whole = last > client
        count = offsets[last] - start if whole else TILE
        x, found = _errors(records, start, count, model, biased, tile)
        bad += found
        for k in range(client, max(last, client + 1)):
            begin, end = max(offsets[k] - start, 0), min(offsets[k + 1] - start, count)
            alone = whole and offsets[k] >= start
            out = rows[k] if alone else tile.part
            _sum(tile.error[:, begin:end], x[begin:end], out)
            if not alone:
                # A client of several tiles: their sums are added up in float64.
                if offsets[k] >= start:
                    total[:] = out
                else:
                    total += out
                if whole:
                    rows[k] = total
        start += count
        client = last
    return bad


@piece
def _part(records: Any, first: Any, last: Any) -> Any:
    """The clients first .. last - 1."""
    a, b = records.offsets[first], records.offsets[last]
    return Records(
        records.x[a:b], records.labels[a:b], records.offsets[first : last + 1] - a,
        records.norm, records.limits[a:b], records.shares[a:b], records.zeros[a:b],
    )  # fmt: skip


@kernel(products, rows)
def client_means(records: Records, parameters: Any, classes: int, blocks: Any, means: Any) -> int:
    """Means [k, d] of the clients' clipped gradients, where blocks of clients begin at blocks[b];
    returns how many records count as zero. parameters [d]: weights [classes, f], and biases behind
    them if there are any."""
    features = records.x.shape[1]
    model, tile = _begin(parameters, classes, features)
    biased = parameters.size > classes * features
    scratch, bad = np.empty(parameters.size), 0
    for block in range(blocks.size - 1):
        first, last = blocks[block], blocks[block + 1]
        part = _part(records, first, last)
        bad += _means(part, model, biased, tile, scratch, means[first:last])
    return bad


@kernel(products, rows)
def sum_of_records(
    records: Records, parameters: Any, classes: int, blocks: Any, grid: float, total: Any
) -> int:
    """total [d] = the sum of all records' clipped gradients, each times its share; that of the
    block of clients from blocks[b] on rounded to multiples of `grid`. Returns as above."""
    features = records.x.shape[1]
    model, tile = _begin(parameters, classes, features)
    biased = parameters.size > classes * features
    own, bad = np.empty(total.size), 0
    total[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        end = records.offsets[blocks[block + 1]]
        for start in range(records.offsets[blocks[block]], end, TILE):
            count = min(TILE, end - start)
            x, found = _errors(records, start, count, model, biased, tile)
            _sum(tile.error[:, :count], x, tile.part)
            bad += found
            for i in range(own.size):
                own[i] += tile.part[i]
        total += np.rint(own / grid) * grid
    return bad


@kernel(products, rows)
def sum_of_means(
    records: Records, parameters: Any, classes: int, blocks: Any, grid: float, total: Any,
    norm: int, radii: Any, weights: Any, invalid: Any,
) -> int:  # fmt: skip
    """total [d] = the sum of the clients' means, each clipped to its of the radii [k] and times its
    of the weights [k]; blocks and grid as above. Means that are not finite count as zero, and are
    marked in invalid [k]."""
    features = records.x.shape[1]
    model, tile = _begin(parameters, classes, features)
    biased = parameters.size > classes * features
    means = np.empty((max(1, TOGETHER // total.size), total.size), np.float32)
    own, scratch, bad = np.empty(total.size), np.empty(total.size), 0
    total[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        for first in range(blocks[block], blocks[block + 1], means.shape[0]):
            last = min(first + means.shape[0], blocks[block + 1])
            few = _part(records, first, last)
            bad += _means(few, model, biased, tile, scratch, means)
            for k in range(first, last):
                row = means[k - first]
                length = length_of(row, norm)
                if not np.isfinite(length):
                    invalid[k] = True
                    continue
                share = weights[k] * (radii[k] / length if length > radii[k] else 1.0)
                for i in range(own.size):
                    own[i] += row[i] * share
        total += np.rint(own / grid) * grid
    return bad
