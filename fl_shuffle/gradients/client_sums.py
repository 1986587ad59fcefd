"""Sums over each client's records of a layer's inputs times its output gradients.

How exact they are is counted in `rounding`: replacing a record must not move a sum much further by
its rounding than by itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fl_shuffle.gradients.blocks import Segment, equal_pieces
from fl_shuffle.gradients.kernels import views_of
from fl_shuffle.gradients.structure import Layer

TILE = 64
"""Products over this many records are one float32 sum; longer ones are added in float64. More
would save sums, but cost radius."""
BATCHED_NUMBERS = 1 << 18
"""Numbers in the products of clients that one batched call makes."""


def with_weights(x: Tensor, error: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's inputs [n, fan_in] and output gradients [n, fan_out], the narrower ones
    times the records' weights [n, 1].

    Inputs then get one more column, the weights: its products are the bias's sums.
    """
    if x.shape[1] < error.shape[1]:
        return torch.cat([x * weights, weights], 1), error
    return x.contiguous(), error * weights


class ClientSums:
    """Writes them into client rows [K, d]; every thread has its own working memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_thread = threading.local()

    def write(self, rows: Tensor, layer: Layer, segment: Segment, x: Tensor, error: Tensor) -> None:
        """Write one layer of a segment's rows: inputs [k, n, fan_in] times output gradients [k, n,
        fan_out], the narrower ones `with_weights`.

        Products are made in arrays of their own: what a kernel does may depend on the address.
        """
        weight, bias = views_of(rows, layer)
        long = segment.size > TILE
        product_of = self._long_product if long else self._product
        together = 1 if long else max(1, BATCHED_NUMBERS // (layer.fan_in * layer.fan_out))
        for start in range(0, segment.count, together):
            own, some = segment.places(start, start + together), slice(start, start + together)
            product, sums = _sums(layer, x[some], error[some], product_of)
            weight[own] = product.to(weight.dtype)
            if bias is not None:
                bias[own] = sums.to(bias.dtype)

    def add(self, total: Tensor, layer: Layer, x: Tensor, error: Tensor) -> None:
        """Add one layer's sums over any number of records to total [d] (float64)."""
        weight, bias = views_of(total, layer)
        product, sums = _sums(layer, x[None], error[None], self._long_product)
        weight += product[0]
        if bias is not None:
            bias += sums[0]

    def _long_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `_product` of one client's records, any number of them, in float64."""
        _, size, rows = left.shape
        columns = right.shape[2]
        total = self.buffer("total", 1, rows, columns, dtype=torch.float64).zero_()
        for some, count in _tiles(size, max(1, BATCHED_NUMBERS // total.numel())):
            # Tiles lie side by side as clients do.
            tiles = left[0, some].view(count, -1, rows), right[0, some].view(count, -1, columns)
            total += self._product(*tiles).sum(0, dtype=torch.float64)
        return total

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left [k, n, rows] times right [k, n, columns], summed over records."""
        count, size, rows = left.shape
        out = self.buffer("product", count, rows, right.shape[2])
        turned = left.transpose(1, 2)
        return torch.mul(turned, right, out=out) if size == 1 else torch.bmm(turned, right, out=out)

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return this thread's array of that name and shape, which starts where the allocator puts
        one, at an aligned address; contents arbitrary."""
        buffers: dict[str, Tensor] = self._of_thread.__dict__
        size = math.prod(shape)
        if name not in buffers or buffers[name].numel() < size:
            buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
        return buffers[name][:size].view(shape)


def _tiles(size: int, together: int) -> Iterator[tuple[slice, int]]:
    """Yield `size` records as tiles of one length, at most `together` at a time: which records, how
    many tiles. The last tile may be shorter; it is alone then."""
    tiles = list(equal_pieces(size, TILE))
    whole = size // tiles[0].stop
    for first in range(0, whole, together):
        some = tiles[first : min(first + together, whole)]
        yield slice(some[0].start, some[-1].stop), len(some)
    for rest in tiles[whole:]:
        yield rest, 1


def _sums(
    layer: Layer, x: Tensor, error: Tensor, product_of: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return k clients' sums for a layer's weight [k, fan_out, fan_in] and its bias [k,
    fan_out]."""
    if x.shape[2] > layer.fan_in:
        both = product_of(x, error)
        return both[:, :-1].transpose(1, 2), both[:, -1]
    return product_of(error, x), error.sum(1, dtype=torch.float64)
