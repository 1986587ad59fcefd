"""Sums over each client's records of output gradients times inputs, one layer at a time.

How exact they are is counted in `rounding`: replacing a record must not move a sum much further by
its rounding than by itself.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor, nn

from fl_shuffle.gradients.blocks import Segment, equal_pieces
from fl_shuffle.gradients.kernels import Buffers, buffer, copy_rows, views_of
from fl_shuffle.gradients.structure import Layer
from fl_shuffle.gradients.tolerances import TOLERANCES


def narrow(layer: Layer) -> bool:
    """Whether the layer's products are made in float64."""
    return layer.fan_in * layer.fan_out <= TOLERANCES.narrow_weights


def longest_sum() -> int:
    """So many records a float32 sum of stretches has at most."""
    return TOLERANCES.stretch_records * TOLERANCES.stretches


def _stretches(records: int) -> int:
    return math.ceil(records / TOLERANCES.stretch_records)


class ClientSums:
    """Writes them into client rows [K, d]; every thread has its own working memory."""

    def __init__(self, dimension: int, device: torch.device) -> None:
        self._dimension = dimension
        self._device = device
        self._of_thread = threading.local()

    def with_bias(self, depth: int, layer: Layer, x: Tensor, weights: Tensor | None) -> Tensor:
        """Inputs x [n, fan_in] times weights [n], and the weights as one more column where the
        layer has a bias: its sums then come out of the product. No weights: ones."""
        if layer.bias is None:
            own = self.buffer(f"weighted {depth}", *x.shape)
        else:
            own = self.buffer(f"weighted {depth}", len(x), layer.fan_in + 1)
            own[:, -1] = 1.0 if weights is None else weights
        if weights is None:
            own[:, : layer.fan_in] = x
        else:
            torch.mul(x, weights[:, None], out=own[:, : layer.fan_in])
        return own

    def write(self, rows: Tensor, layer: Layer, segment: Segment, error: Tensor, x: Tensor) -> None:
        """One layer of a segment's rows: error [k, fan_out, n] times x [k, n, fan_in] (or one more,
        see `with_bias`).

        Products are made in arrays of their own: what a kernel does may depend on the address.
        """
        weight, bias = views_of(rows, layer)
        tiles = 1 if narrow(layer) else _stretches(segment.size)
        if tiles > TOLERANCES.stretches:
            for k in range(segment.count):
                total = self.buffer("total", self._dimension, dtype=torch.float64)
                self.add(total, layer, error[k], x[k], fresh=True)
                mine, place = views_of(total, layer), segment.places(k, k + 1)
                _store(mine[0][None], weight, place)
                if mine[1] is not None and bias is not None:
                    _store(mine[1][None], bias, place)
            return
        together = max(1, TOLERANCES.batched_numbers // (tiles * layer.fan_in * layer.fan_out))
        for start in range(0, segment.count, together):
            stop = min(start + together, segment.count)
            own = segment.places(start, stop)
            product, sums = self._products(layer, error[start:stop], x[start:stop])
            _store(product, weight, own)
            if bias is not None:
                _store(sums, bias, own)

    def _products(self, layer: Layer, error: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """error [k, fan_out, n] times x [k, n, fan_in], and the errors' sums [k, fan_out].

        n is at most `longest_sum()`, except for narrow layers, whose sums are float64. Where x has
        one more column (`with_bias`), what that gives are the sums.
        """
        count, _, size = error.shape
        whole = x.shape[2] > layer.fan_in
        shape = layer.fan_out, x.shape[2]
        if size == 1:
            product = torch.mul(error, x, out=self.buffer("product", count, *shape))
            sums = error[:, :, 0]
        elif narrow(layer):
            product = self.buffer("product", count, *shape, dtype=torch.float64)
            torch.bmm(error.double(), x.double(), out=product)
            sums = error.sum(2, dtype=torch.float64) if not whole else product
        elif (tiles := _stretches(size)) == 1:
            product = torch.bmm(error, x, out=self.buffer("product", count, *shape))
            sums = error.sum(2) if not whole else product
        else:
            step = -(-size // tiles)
            if step * tiles > size:
                # Records of zero add nothing.
                error = nn.functional.pad(error, (0, step * tiles - size))
                x = nn.functional.pad(x, (0, 0, 0, step * tiles - size))
            # Clients lie side by side, and so do the tiles of each.
            left = error.transpose(0, 1).reshape(layer.fan_out, count * tiles, step).transpose(0, 1)
            products = self.buffer("product", count * tiles, *shape)
            torch.bmm(left, x.reshape(count * tiles, step, -1), out=products)
            products = products.view(count, tiles, *shape)
            for tile in range(1, tiles):
                products[:, 0] += products[:, tile]
            product = products[:, 0]
            sums = left.sum(2).view(count, tiles, -1).sum(1) if not whole else product
        return (product[..., :-1], product[..., -1]) if whole else (product, sums)

    def total(self, size: int, most: int) -> Tensor:
        """What `add` adds up a client of `size` records in, `most` at a time: [d], arbitrary."""
        pieces = math.ceil(size / most)
        stretches = pieces * _stretches(math.ceil(size / pieces))
        dtype = torch.float64 if stretches > TOLERANCES.stretches else torch.float32
        return self.buffer("total", self._dimension, dtype=dtype)

    def add(self, total: Tensor, layer: Layer, error: Tensor, x: Tensor, *, fresh: bool) -> None:
        """total [d] += one layer's sum: error [fan_out, n] times x [n, fan_in].

        `fresh`: what total held does not count.
        """
        weight, bias = views_of(total, layer)
        for piece in equal_pieces(len(x), longest_sum()):
            product, sums = self._products(layer, error[None, :, piece], x[None, piece])
            if fresh:
                weight.copy_(product[0])
                if bias is not None:
                    bias.copy_(sums[0])
                fresh = False
                continue
            if product.dtype != weight.dtype:
                # Faster than a sum of mixed types.
                converted = self.buffer("converted", *weight.shape, dtype=weight.dtype)
                product = converted.copy_(product[0])[None]
            weight += product[0]
            if bias is not None:
                bias += sums[0]

    def buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """This thread's array of that name, type and shape; contents arbitrary."""
        buffers: Buffers = self._of_thread.__dict__
        key = name if dtype is torch.float32 else f"{name} {dtype}"
        return buffer(buffers, key, shape, dtype, self._device)


def add_product(
    sums: Tensor, layer: Layer, error: Tensor, x: Tensor, weights: Tensor | None, *, fresh: bool
) -> None:
    """sums [d] += one layer's sum: error [fan_out, n] times weights [n] (1 if None) times x
    [n, fan_in], of which one is overwritten; `fresh`: what the sums held does not count.

    For sums of many clients, where no record has to keep its distance: one float32 product.
    """
    weight, bias = views_of(sums, layer)
    if bias is not None:
        own = error.sum(1) if weights is None else torch.mv(error, weights)
        bias.copy_(own) if fresh else bias.add_(own)
    if weights is not None:
        # The product is the same whichever gets the weights.
        if layer.fan_in <= layer.fan_out:
            x.mul_(weights[:, None])
        else:
            error.mul_(weights)
    if fresh:
        torch.mm(error, x, out=weight)
    else:
        weight.addmm_(error, x)


def _store(values: Tensor, target: Tensor, clients: slice | Tensor) -> None:
    """target[clients] = values."""
    if isinstance(clients, slice):
        copy_rows(values, target[clients])
    else:
        target[clients.to(target.device)] = values.to(target.dtype)
