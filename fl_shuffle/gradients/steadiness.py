"""Which matrix products give a row the same bits whatever rows are computed beside it, here.

Libraries pick kernels by shape and processor. With AVX-512 kernels a row of a product does not
depend on the number of rows beside it, once there are a few dozen; with AVX2 and SSE kernels it
does, but in products of one fixed shape a row does not depend on its place. Neither is promised by
any library, so both are tried out, once per shape and process, before they are relied on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache

import torch
from torch import Tensor

from fl_shuffle.gradients.workspace import LANES, THIN

Product = Callable[[Tensor], Tensor]


class Steady(Enum):
    """Blocks as one product, as products of `LANES` rows each, or one client per block."""

    WHOLE = "whole"
    TILES = "tiles"
    CLIENTS = "clients"


def steady_products(shapes: tuple[tuple[int, int], ...], rows: int, device: torch.device) -> Steady:
    """The fastest way to multiply blocks of up to `rows` rows with weights [fan_out, fan_in].

    `shapes` holds each layer's (fan_in, fan_out), the last layer's product being transposed.
    """
    found = [
        _steady(fan_in, fan_out, depth == len(shapes) - 1, rows, device)
        for depth, (fan_in, fan_out) in enumerate(shapes)
    ]
    order = list(Steady)
    return max(found, key=order.index)


@lru_cache(maxsize=256)
def _steady(fan_in: int, fan_out: int, last: bool, rows: int, device: torch.device) -> Steady:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(fan_out, fan_in, generator=generator).to(device)
    count = -(-rows // LANES) * LANES + 2 * LANES
    x = torch.randn(count, fan_in, generator=generator).to(device)
    error = torch.randn(count, fan_out, generator=generator).to(device)
    order = torch.randperm(count, generator=generator).to(device)

    def forward(values: Tensor) -> Tensor:
        return torch.mm(weight, values.T).T if last else torch.mm(values, weight.T)

    def backward(values: Tensor) -> Tensor:
        return torch.mm(values.T.contiguous().T if last else values, weight)

    if _same_in_any_company(forward, x, rows) and _same_in_any_company(backward, error, rows):
        return Steady.WHOLE

    def forward_tiles(values: Tensor) -> Tensor:
        tiles = values.view(-1, LANES, fan_in)
        if not last:
            return torch.bmm(tiles, over_tiles(weight.T, len(tiles))).view(-1, fan_out)
        logits = torch.bmm(over_tiles(weight, len(tiles)), tiles.transpose(1, 2))
        return logits.transpose(1, 2).reshape(-1, fan_out)

    def backward_tiles(values: Tensor) -> Tensor:
        tiles = values.view(-1, LANES, fan_out)
        if last:
            tiles = values.T.contiguous().view(fan_out, -1, LANES).permute(1, 2, 0)
        return torch.bmm(tiles, over_tiles(weight, len(tiles))).view(-1, fan_in)

    if _same_at_any_place(forward_tiles, x, order) and _same_at_any_place(
        backward_tiles, error, order
    ):
        return Steady.TILES
    return Steady.CLIENTS


def over_tiles(weight: Tensor, tiles: int) -> Tensor:
    """The same matrix [tiles, a, b] for each tile, without copies."""
    return weight.expand(tiles, *weight.shape)


def _same_in_any_company(product: Product, values: Tensor, rows: int) -> bool:
    whole = product(values)
    counts = {THIN, 33, 47, 60, 64, 65, 91, 100, 128, 200, 256, 500, 513, rows - 1, rows}
    for count in sorted(counts):
        for start in (0, 1, 64, 77):
            piece = slice(start, start + min(count, rows))
            if not torch.equal(product(values[piece]), whole[piece]):
                return False
    return True


def _same_at_any_place(product: Product, values: Tensor, order: Tensor) -> bool:
    whole = product(values)
    one = slice(LANES, 2 * LANES)
    return torch.equal(product(values[order]), whole[order]) and torch.equal(
        product(values[one]), whole[one]
    )
