"""Sums of clients' means that are clipped themselves: a few rows at a time, in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle.compiled import kernel, matrix_products, row_clipping, softmax
from fl_shuffle.compiled.row_clipping import RowClips, clip_rows
from fl_shuffle.gradients import kernels, tolerances
from fl_shuffle.gradients.compiled_linear import kernel as means
from fl_shuffle.gradients.compiled_linear.kernel import (
    Clips,
    Model,
    Records,
    Tile,
    begin,
    means_of_clients,
)


@kernel(means, row_clipping, matrix_products, softmax, kernels, tolerances)
def linear_sum_of_clipped_means(
    records: Records,
    model: Model,
    clips: Clips,
    tile: Tile,
    mean_clips: RowClips,
    weights: Any,
    blocks: Any,
    grid: float,
    rows: Any,
    invalid: Any,
    sums: Any,
) -> None:
    """The sum of all clients' means, each clipped and times its weight.

    As `linear_means`, but for: mean_clips, to what the means are clipped; weights [k]; blocks
    [b + 1], the first client of each block, and the end; grid, to whose multiples a block's sum is
    rounded; rows, float32 [r, d], working memory; invalid [k], where means that hold NaN or an
    infinity are marked, which count as zero; sums, float64 [3, d]: the first row gets the sum of
    the blocks, the others are working memory.
    """
    x, powers, labels, offsets = records.x, records.powers, records.labels, records.offsets
    limits, zeros, radii = clips.limits, clips.zeros, mean_clips.radii
    norm, inflation, least = mean_clips.norm, mean_clips.inflation, mean_clips.least
    together, dimension = rows.shape
    flat = rows.reshape(-1)
    total, own, chain = sums[0], sums[1], sums[2]
    begin(model, x.shape[1], clips, tile)
    invalid[:] = False
    total[:] = 0.0
    chain[:] = 0.0
    for block in range(blocks.size - 1):
        own[:] = 0.0
        for first in range(blocks[block], blocks[block + 1], together):
            last = min(first + together, blocks[block + 1])
            start, stop = offsets[first], offsets[last]
            few = Records(
                x[start:stop],
                powers[start:stop],
                labels[start:stop],
                offsets[first : last + 1] - start,
            )
            few_clips = Clips(clips.norm, limits[first:last], zeros[start:stop], clips.marked)
            means_of_clients(few, model, few_clips, tile, chain, flat, dimension)
            for stage in range(radii.shape[0]):
                clip_rows(
                    rows[: last - first],
                    radii[stage, first:last],
                    norm,
                    inflation,
                    least,
                    invalid[first:last],
                )
            for k in range(first, last):
                row, weight = rows[k - first], weights[k]
                for i in range(dimension):
                    own[i] += np.float64(row[i] * weight)
        for i in range(dimension):
            total[i] += np.rint(own[i] / grid) * grid
