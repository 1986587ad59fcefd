"""Sums over each client's records of output gradients times inputs, one layer at a time.

How exact they are is counted in `rounding`: replacing a record must not move a sum much further by
its rounding than by itself.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from fl_shuffle.gradients.blocks import Segment, equal_pieces
from fl_shuffle.gradients.kernels import Buffers, buffer, copy_rows, views_of
from fl_shuffle.gradients.structure import Layer

# Products over so many records are one float32 sum; so many of these sums are added pairwise, in
# float32 too, and what is longer in float64.
TILE, TILES = 32, 8
# Layers with fewer weights multiply in float64: their products are little of the work.
NARROW = 1 << 12
# Products of clients that are made in one batched call: so many numbers.
BATCH_NUMBERS = 1 << 18


def narrow(layer: Layer) -> bool:
    """Whether the layer's products are made in float64."""
    return layer.fan_in * layer.fan_out <= NARROW


class ClientSums:
    """Writes them into client rows [K, d]; every thread has its own working memory."""

    def __init__(self, dimension: int, device: torch.device) -> None:
        self._dimension = dimension
        self._device = device
        self._of_thread = threading.local()

    def write(self, rows: Tensor, layer: Layer, segment: Segment, error: Tensor, x: Tensor) -> None:
        """One layer of a segment's rows: error [k, fan_out, n] times x [k, n, fan_in].

        Products are made in arrays of their own: what a kernel does may depend on the address.
        """
        weight, bias = views_of(rows, layer)
        tiles = 1 if narrow(layer) else -(-segment.size // TILE)
        if tiles > TILES:
            for k in range(segment.count):
                total = self.buffer("total", self._dimension, dtype=torch.float64).zero_()
                self.add(total, layer, error[k], x[k])
                mine, place = views_of(total, layer), segment.places(k, k + 1)
                _store(mine[0][None], weight, place)
                if mine[1] is not None and bias is not None:
                    _store(mine[1][None], bias, place)
            return
        together = max(1, BATCH_NUMBERS // (tiles * layer.fan_in * layer.fan_out))
        for start in range(0, segment.count, together):
            stop = min(start + together, segment.count)
            own = segment.places(start, stop)
            product, sums = self._products(layer, error[start:stop], x[start:stop])
            _store(product, weight, own)
            if bias is not None:
                _store(sums, bias, own)

    def _products(self, layer: Layer, error: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """error [k, fan_out, n] times x [k, n, fan_in], and the errors' sums [k, fan_out].

        n is at most TILE * TILES, except for narrow layers.
        """
        count, _, size = error.shape
        shape = layer.fan_out, layer.fan_in
        if size == 1:
            product = self.buffer("product", count, *shape)
            return torch.mul(error, x, out=product), error[:, :, 0]
        if narrow(layer):
            product = self.buffer("product", count, *shape, dtype=torch.float64)
            torch.bmm(error.double(), x.double(), out=product)
            return product, error.sum(2, dtype=torch.float64)
        tiles = -(-size // TILE)
        step = -(-size // tiles)
        if step * tiles > size:
            # Records of zero add nothing.
            error = nn.functional.pad(error, (0, step * tiles - size))
            x = nn.functional.pad(x, (0, 0, 0, step * tiles - size))
        products = self.buffer("product", count * tiles, *shape)
        # Clients lie side by side, and so do the tiles of each.
        left = error.transpose(0, 1).reshape(layer.fan_out, count * tiles, step).transpose(0, 1)
        torch.bmm(left, x.reshape(count * tiles, step, -1), out=products)
        sums = left.sum(2)
        if tiles == 1:
            return products, sums
        products = products.view(count, tiles, *shape)
        left_over = tiles
        while left_over > 1:
            half = left_over // 2
            products[:, :half] += products[:, left_over - half : left_over]
            left_over -= half
        return products[:, 0], sums.view(count, tiles, -1).sum(1, dtype=torch.float64)

    def add(self, total: Tensor, layer: Layer, error: Tensor, x: Tensor) -> None:
        """total [d] (float64) += one layer's sum: error [fan_out, n] times x [n, fan_in]."""
        weight, bias = views_of(total, layer)
        if narrow(layer):
            weight.addmm_(error.double(), x.double())
            if bias is not None:
                bias += error.sum(1, dtype=torch.float64)
            return
        for piece in equal_pieces(len(x), TILE * TILES):
            product, sums = self._products(layer, error[None, :, piece], x[None, piece])
            # Faster than a sum of mixed types.
            weight += self.buffer("exact", *weight.shape, dtype=torch.float64).copy_(product[0])
            if bias is not None:
                bias += sums[0]

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """This thread's array of that name, type and shape; contents arbitrary."""
        buffers: Buffers = self._of_thread.__dict__
        like = torch.empty(0, device=self._device, dtype=dtype)
        return buffer(buffers, like, f"{name} {dtype}", *shape)


def _store(values: Tensor, target: Tensor, clients: slice | Tensor) -> None:
    """target[clients] = values."""
    if isinstance(clients, slice):
        copy_rows(values, target[clients])
    else:
        target[clients.to(target.device)] = values.to(target.dtype)
