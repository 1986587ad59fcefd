"""Sums over all clients in one pass over the records, no client's own gradient being made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle.compiled import inlined, kernel, matrix_products, softmax
from fl_shuffle.compiled.matrix_products import APART, LANES, column_products, outer_16x5
from fl_shuffle.compiled.softmax import ONE, TILE, ZERO
from fl_shuffle.gradients import kernels, tolerances
from fl_shuffle.gradients.compiled_linear import kernel as means
from fl_shuffle.gradients.compiled_linear.kernel import (
    Clips,
    Model,
    Records,
    Tile,
    add_product,
    begin,
    weighted_errors,
)
from fl_shuffle.gradients.tolerances import TOLERANCES

STRETCH_TILES = TOLERANCES.compiled_stretch_tiles

_real = np.float32


class MeanClips(NamedTuple):
    """Clients' means are clipped in the l2 norm to their `radii` [k] (`input_products` [0, n]: not
    at all), `inflation` times what is computed counting as their lengths.

    `input_products` as the function of that name makes them, for clients of m records at most;
    those of the first record are at `first`. Clients whose mean is not finite count as zero, and
    are marked in `invalid` [k]. `errors` [classes, TILE + m + 2] at least,
    `products` [3, TILE], `squares` and `left` [TILE] are scratch.
    """

    input_products: Any
    first: int
    radii: Any
    inflation: float
    invalid: Any
    errors: Any
    products: Any
    squares: Any
    left: Any


@kernel()
def input_products(x: Any, biased: bool, products: Any) -> None:
    """products [m, n + TILE], float64, zero at first: the scalar product of each record's input and
    the one that comes so many records after it, and one for a bias; zero beyond the last."""
    count, features = x.shape
    for apart in range(products.shape[0]):
        for row in range(count):
            total = 0.0
            if row + apart < count:
                a, b, c, d = 0.0, 0.0, 0.0, 0.0
                for i in range(features // 4 * 4, features):
                    a += np.float64(x[row, i]) * np.float64(x[row + apart, i])
                for i in range(0, features // 4 * 4, 4):
                    a += np.float64(x[row, i]) * np.float64(x[row + apart, i])
                    b += np.float64(x[row, i + 1]) * np.float64(x[row + apart, i + 1])
                    c += np.float64(x[row, i + 2]) * np.float64(x[row + apart, i + 2])
                    d += np.float64(x[row, i + 3]) * np.float64(x[row + apart, i + 3])
                total = ((a + b) + (c + d)) + (1.0 if biased else 0.0)
            products[apart, row] = total


@inlined
def _clip_means(
    error: Any,
    start: Any,
    count: Any,
    client: Any,
    classes: Any,
    clips: Any,
    mean: Any,
    weights: Any,
    share: Any,
) -> Any:
    """The errors of whole clients, from `client` on, whose columns times inputs add up to their
    sums: to those that add up to their clipped means, times their weights. share [TILE]: scratch.

    A sum's squared length is the sum, over pairs of its records, of the products of their errors
    times those of their inputs. They may cancel, so they are float64: what round-off is left then
    is far below that of the float32 sum of the same errors times inputs.
    """
    zeros, marked, known, first = clips.zeros, clips.marked, mean.input_products, mean.first + start
    radii, invalid, inflation = mean.radii, mean.invalid, mean.inflation
    errors, left, products, squares = mean.errors, mean.left, mean.products, mean.squares
    for c in range(classes):
        for r in range(TILE):
            errors[c, r] = error[c, r]
    for r in range(TILE):
        squares[r] = 0.0
    for first_apart in range(0, known.shape[0], APART):
        column_products(errors, classes, first_apart, products)
        for apart in range(first_apart, min(first_apart + APART, known.shape[0])):
            # Each pair of different records counts twice.
            times = 1.0 if apart == 0 else 2.0
            for r in range(TILE):
                both = times * products[apart - first_apart, r] * known[apart, first + r]
                squares[r] += both if left[r] > apart else 0.0
    done, owner = 0, client
    while done < count:
        stop = done + left[done]
        total = 0.0
        for r in range(done, stop):
            total += squares[r]
        if not np.isfinite(total):
            invalid[owner] = True
            for r in range(start + done, start + stop):
                zeros[r] = True
            marked[0] += stop - done
        size = np.float64(stop - done)
        # Of the length of a mean that is zero this is infinity.
        inside = radii[owner] * size / (np.sqrt(max(total, 0.0)) * inflation)
        own = _real(weights[owner] * (inside if inside < 1.0 else 1.0) / size)
        for r in range(done, stop):
            share[r] = own
        done = stop
        owner += 1
    for c in range(classes):
        for r in range(TILE):
            error[c, r] *= share[r]


@kernel(means, matrix_products, softmax, kernels, tolerances)
def linear_sum(
    records: Records,
    model: Model,
    clips: Clips,
    mean: MeanClips,
    tile: Tile,
    blocks: Any,
    shares: Any,
    grid: float,
    sums: Any,
) -> None:
    """The sum of all records' clipped gradients, each times its client's share; or of all clients'
    clipped means, each times its share.

    As `linear_means`, but for: blocks [b + 1], the first client of each block, and the end; shares
    [k]; grid, to whose multiples a block's sum is rounded; sums, float64 [2, d]: the first row gets
    the sum of the blocks, the other is working memory.
    """
    x, offsets, classes = records.x, records.offsets, model.classes
    features, error, zeros, marked = x.shape[1], tile.error, clips.zeros, clips.marked
    limits, factor, limit = clips.limits, tile.factor, tile.limit
    ones = np.ones((TILE, 1), np.float32)
    total, own = sums[0], sums[1]
    # The last 16 features overlap those before: they have a part of their own.
    part, tail = np.zeros(total.size, np.float32), np.zeros(total.size, np.float32)
    whole = features // LANES * LANES if features >= LANES and classes % 5 == 0 else 0
    bias_at = classes * features
    of_means, left = mean.input_products.shape[0] > 0, mean.left
    of_records = clips.norm != 0 or not of_means
    begin(model, features, clips, tile)
    mean.invalid[:] = False
    mean.errors[:, TILE:] = 0.0
    factor[:] = ONE
    client = 0
    total[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        start, end, tiles = offsets[blocks[block]], offsets[blocks[block + 1]], 0
        while start < end:
            count = min(TILE, end - start)
            while start >= offsets[client + 1]:
                client += 1
            done, owner = 0, client
            while done < count:
                size = offsets[owner + 1] - offsets[owner]
                stop = min(offsets[owner + 1] - start, count)
                if of_means and done + size > count:
                    # Whole clients only.
                    count = done
                    break
                if of_means:
                    for r in range(done, stop):
                        left[r] = stop - r
                if of_records:
                    share, longest = ONE if of_means else shares[owner], limits[owner]
                    for r in range(done, stop):
                        factor[r] = share
                        limit[r] = longest
                done = stop
                owner += 1
            before = marked[0]
            weighted_errors(records, start, count, model, clips, tile)
            if of_means:
                if marked[0] > before:
                    for r in range(count):
                        if zeros[start + r]:
                            error[:classes, r] = ZERO
                _clip_means(error, start, count, client, classes, clips, mean, shares, tile.sums)
            fresh = 1 if tiles % STRETCH_TILES == 0 else 0
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
                    add_product(error, classes, done, added, x, row, features, part, 0, fresh)
                if model.biased:
                    add_product(error, classes, done, added, ones, 0, 1, part, bias_at, fresh)
                fresh = 0
                done = stop + 1
            tiles += 1
            start += count
            if tiles % STRETCH_TILES == 0 or start == end:
                if 0 < whole < features:
                    for c in range(classes):
                        for i in range(c * features + whole, (c + 1) * features):
                            part[i] = tail[i]
                for i in range(own.size):
                    own[i] += part[i]
        for i in range(own.size):
            total[i] += np.rint(own[i] / grid) * grid
