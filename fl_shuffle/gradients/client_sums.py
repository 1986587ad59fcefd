"""Sums over each client's records of output gradients times inputs, one layer at a time.

How exact they are is counted in `rounding`: replacing a record must not move a sum much further by
its rounding than by itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from fl_shuffle.gradients.blocks import Segment, equal_pieces
from fl_shuffle.gradients.kernels import views_of
from fl_shuffle.gradients.structure import Layer

TILE = 64
"""Products over so many records are one float32 sum; longer ones are added up in float64. More
would save sums, but cost radius."""
BATCHED_NUMBERS = 1 << 18
"""Products of clients that are made in one batched call: so many numbers."""


class ClientSums:
    """Writes them into client rows [K, d]; every thread has its own working memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_thread = threading.local()

    def write(self, rows: Tensor, layer: Layer, segment: Segment, error: Tensor, x: Tensor) -> None:
        """One layer of a segment's rows: error [k, fan_out, n] times x [k, n, fan_in].

        Products are made in arrays of their own: what a kernel does may depend on the address.
        """
        weight, bias = views_of(rows, layer)
        long = segment.size > TILE
        together = 1 if long else max(1, BATCHED_NUMBERS // (layer.fan_in * layer.fan_out))
        product_of = self._long_product if long else self._product
        for start in range(0, segment.count, together):
            own, some = segment.places(start, start + together), slice(start, start + together)
            product, sums = product_of(error[some], x[some])
            weight[own] = product.to(weight.dtype)
            if bias is not None:
                bias[own] = sums.to(bias.dtype)

    def add(self, total: Tensor, layer: Layer, error: Tensor, x: Tensor) -> None:
        """total [d] (float64) += one layer's sum: error [fan_out, n] times x [n, fan_in]."""
        weight, bias = views_of(total, layer)
        product, sums = self._long_product(error[None], x[None])
        weight += product[0]
        if bias is not None:
            bias += sums[0]

    def _long_product(self, error: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """`_product` of one client's records, any number of them, in float64."""
        _, fan_out, size = error.shape
        total = self.buffer("total", 1, fan_out, x.shape[2], dtype=torch.float64).zero_()
        total_sums = torch.zeros(1, fan_out, dtype=torch.float64, device=self._device)
        for some, count in _tiles(size, max(1, BATCHED_NUMBERS // total.numel())):
            # Tiles lie side by side as clients do.
            left = error[0, :, some].view(fan_out, count, -1).transpose(0, 1)
            product, sums = self._product(left, x[0, some].view(count, -1, x.shape[2]))
            total += product.sum(0, dtype=torch.float64)
            total_sums += sums.sum(0, dtype=torch.float64)
        return total, total_sums

    def _product(self, error: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """error [k, fan_out, n] times x [k, n, fan_in], and the errors' sums [k, fan_out]."""
        count, fan_out, size = error.shape
        out = self.buffer("product", count, fan_out, x.shape[2])
        if size == 1:
            return torch.mul(error, x, out=out), error[:, :, 0]
        return torch.bmm(error, x, out=out), error.sum(2)

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """This thread's array of that name and shape, which starts where the allocator puts one, at
        an aligned address; contents arbitrary."""
        buffers: dict[str, Tensor] = self._of_thread.__dict__
        size = math.prod(shape)
        if name not in buffers or buffers[name].numel() < size:
            buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return buffers[name][:size].view(shape)


def _tiles(size: int, together: int) -> Iterator[tuple[slice, int]]:
    """`size` records as tiles of one length, at most so many `together`: which records, how many
    tiles. The last tile may be shorter; it is alone then."""
    tiles = list(equal_pieces(size, TILE))
    whole = size // tiles[0].stop
    for first in range(0, whole, together):
        some = tiles[first : min(first + together, whole)]
        yield slice(some[0].start, some[-1].stop), len(some)
    for rest in tiles[whole:]:
        yield rest, 1
