"""Closed forms for chains of linear layers: no record's gradient is ever written out.

A linear layer with input x and output gradient e has the weight gradient e x^T and the bias
gradient e, so a record's squared l2 norm is the sum over layers of |e|^2 (|x|^2 + 1), and its l1
norm the sum of |e|_1 (|x|_1 + 1). The clipped mean is one product per client and layer, of output
gradients scaled by the clipping factors with the layer's inputs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import (
    BLOCK_NUMBERS,
    Segment,
    activations_of,
    equal_pieces,
    segments_of,
)
from fl_shuffle.gradients.engine import Batch, GradientEngine, Loss, aligned, clip_factor
from fl_shuffle.gradients.kernels import (
    Buffers,
    Views,
    activate,
    affine,
    buffer,
    column_powers,
    copy_rows,
    powers_of,
    times_slope,
    views_of,
)
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords, without_nonfinite_
from fl_shuffle.gradients.rounding import length_error, move_error_float32, move_error_float64
from fl_shuffle.gradients.structure import Layer

# Products over so many records are one float32 sum; so many of these sums are added pairwise, in
# float32 too, and what is longer in float64.
TILE, TILES = 32, 8
# Layers with fewer weights multiply in float64: their products are little of the work.
NARROW = 1 << 12
# Products of clients that are made in one batched call: so many numbers.
BATCH_NUMBERS = 1 << 18


@dataclass(frozen=True)
class Pass:
    """What one pass over a block's records leaves behind.

    inputs: each layer's [n, fan_in]. errors: each layer's output gradients [fan_out, n].
    nonfinite: the mark [n] of records that count as zero; None if there is none.
    """

    inputs: list[Tensor]
    errors: list[Tensor]
    nonfinite: Tensor | None


class ChainEngine(GradientEngine):
    """Modules Flatten? (Linear activation)* Linear."""

    def __init__(
        self,
        module: nn.Module,
        layers: tuple[Layer, ...],
        *,
        clip: str,
        norm: int,
        device: torch.device,
        loss: Loss | None,
    ) -> None:
        super().__init__(module, clip=clip, norm=norm, device=device, loss=loss)
        self._layers = layers
        self._of_thread = threading.local()

    @property
    def path(self) -> str:
        return "closed-form linear" if len(self._layers) == 1 else "closed-form mlp"

    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        return self._layers[-1].fan_out

    def _length_error(self) -> float:
        widest = max(layer.fan_in + layer.fan_out for layer in self._layers)
        return length_error(widest + len(self._layers), self.norm)

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        if all(map(_narrow, self._layers)):
            return move_error_float64(sizes)
        return np.maximum(move_error_float64(sizes), move_error_float32(sizes, TILE, TILES))

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, bounds: NDArray[np.int64]
    ) -> Batch:
        width = self._layers[0].fan_in
        if inputs.dtype != torch.float32 or inputs[0].numel() != width:
            raise InvalidValueError(
                "inputs", f"{inputs.dtype} {list(inputs.shape)}", f"must be float32 [N, {width}]"
            )
        return super()._batch(parameters, inputs.reshape(len(inputs), width), labels, bounds)

    def _block_means(
        self,
        parameters: Tensor,
        batch: Batch,
        limits: Tensor | None,
        rows: Tensor,
        tally: NonfiniteRecords,
    ) -> None:
        views = [views_of(parameters, layer) for layer in self._layers]
        if len(batch.sizes) == 1 and len(batch.labels) > min(TILE * TILES, self.packing.records):
            self._long_client(views, batch, limits, rows[0], tally)
            return
        segments, order = segments_of(batch.sizes)
        index = None if order is None else torch.from_numpy(order).to(self.device)
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        shares = sizes.reciprocal()
        per_record = torch.stack([shares, shares if limits is None else limits]).repeat_interleave(
            sizes, dim=1
        )
        if index is not None:
            per_record = per_record[:, index]
        longest = None if limits is None else per_record[1]
        done = self._pass(views, batch, index, per_record[0], longest)
        if done.nonfinite is not None:
            given = torch.zeros_like(done.nonfinite)
            given[slice(None) if index is None else index] = done.nonfinite
            tally.add(given, batch.sizes)
        for segment in segments:
            for depth, layer in enumerate(self._layers):
                self._write(rows, layer, segment, *_of_segment(done, depth, segment))

    def _long_client(
        self,
        views: list[Views],
        batch: Batch,
        limits: Tensor | None,
        row: Tensor,
        tally: NonfiniteRecords,
    ) -> None:
        """One client's mean, over pieces of its records, in float64."""
        total = self._buffer("total", self.dimension, dtype=torch.float64).zero_()
        size = len(batch.labels)
        share = torch.full((1,), 1.0 / size, device=self.device)
        found = torch.zeros(size, dtype=torch.bool)
        for piece in equal_pieces(size, self.packing.records):
            count = piece.stop - piece.start
            part = batch.part(0, 1, piece.start, piece.stop)
            limit = None if limits is None else limits.expand(count)
            done = self._pass(views, part, None, share.expand(count), limit)
            if done.nonfinite is not None:
                found[piece] = done.nonfinite.cpu()
            for depth, layer in enumerate(self._layers):
                self._add(total, layer, done.errors[depth], done.inputs[depth])
        row.copy_(total)
        if bool(found.any()):
            tally.add(found, batch.sizes)

    def _pass(
        self,
        views: list[Views],
        batch: Batch,
        index: Tensor | None,
        shares: Tensor,
        limits: Tensor | None,
    ) -> Pass:
        """Forth and back over the block's records, in the order of `index` [n] if there is one.

        Errors come out times `shares` [n], records clipped to `limits` [n] unless it is None.
        """
        count = len(batch.labels)
        x = self._buffer("records", count, self._layers[0].fan_in)
        if index is None:
            x.copy_(batch.inputs)
            labels, unusable = batch.labels, batch.unusable
        else:
            torch.index_select(batch.inputs, 0, index, out=x)
            labels = batch.labels[index]
            unusable = None if batch.unusable is None else batch.unusable[index]
        inputs, slopes = self._forward(views, x)
        logits = self._buffer("logits", self._layers[-1].fan_out, count)
        weight, bias = views[-1]
        torch.mm(weight, inputs[-1].T, out=logits)
        if bias is not None:
            logits += bias[:, None]
        error = self._output_error(logits, labels)
        if unusable is not None:
            error[:, unusable] = torch.nan
        lower = self._backward(views, error, inputs, slopes)
        weights, marks = shares, None
        if limits is not None:
            lengths = self._lengths(inputs, lower, error)
            weights = clip_factor(lengths, limits).mul_(shares)
            marks = without_nonfinite_(weights, error.T, *inputs, *lower)
        error *= weights
        for errors in lower:
            errors *= weights[:, None]
        return Pass(inputs, [*(errors.T for errors in lower), error], marks)

    def _forward(
        self, views: list[Views], x: Tensor
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Each layer's inputs [n, fan_in]; slopes of activations that need theirs kept."""
        inputs, slopes = [x], list[Tensor | None]()
        for depth, layer in enumerate(self._layers[:-1]):
            weight, bias = views[depth]
            hidden = self._buffer(f"hidden {depth}", len(x), layer.fan_out)
            affine(bias, inputs[-1], weight.T, hidden)
            slopes.append(activate(layer.activation, hidden))
            inputs.append(hidden)
        return inputs, slopes

    def _output_error(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradients [C, n] of each record's loss with respect to its logits [C, n]."""
        error = self._buffer("error", *logits.shape)
        if self.loss is None:
            torch.softmax(logits, 0, out=error)
            error.scatter_add_(0, labels[None], self._minus_one.expand(1, len(labels)))
            return error
        with torch.enable_grad():
            leaf = logits.T.contiguous().requires_grad_()
            losses = self.loss(leaf, labels)
            if losses.shape != labels.shape:
                raise InvalidValueError(
                    "loss", list(losses.shape), f"must return one loss per record, [{len(labels)}]"
                )
            return error.copy_(torch.autograd.grad(losses.sum(), leaf)[0].T)

    def _backward(
        self,
        views: list[Views],
        error: Tensor,
        inputs: list[Tensor],
        slopes: list[Tensor | None],
    ) -> list[Tensor]:
        """The hidden layers' output gradients, [n, fan_out] each."""
        found: list[Tensor] = []
        upper = error.T
        for depth in range(len(self._layers) - 2, -1, -1):
            lower = self._buffer(f"lower {depth}", len(upper), self._layers[depth].fan_out)
            torch.mm(upper, views[depth + 1][0], out=lower)
            activation = self._layers[depth].activation
            times_slope(lower, activation, inputs[depth + 1], slopes[depth])
            found.append(lower)
            upper = lower
        return found[::-1]

    def _lengths(self, inputs: list[Tensor], lower: list[Tensor], error: Tensor) -> Tensor:
        """Norms [n] of the records' gradients over all parameters."""
        total: Tensor | None = None
        for depth, layer in enumerate(self._layers):
            of_input = powers_of(inputs[depth], self.norm, self._like("terms", inputs[depth]))
            if layer.bias is not None:
                of_input.add_(1.0)
            if depth == len(self._layers) - 1:
                of_error = column_powers(error, self.norm)
            else:
                of_error = powers_of(lower[depth], self.norm, self._like("terms", lower[depth]))
            total = of_error.mul_(of_input) if total is None else total.addcmul_(of_error, of_input)
        assert total is not None
        return total.sqrt_() if self.norm == 2 else total

    def _write(
        self, rows: Tensor, layer: Layer, segment: Segment, error: Tensor, x: Tensor
    ) -> None:
        """One layer of a segment's rows: error [k, fan_out, n] times x [k, n, fan_in].

        Products are made in arrays of their own: what a kernel does may depend on the address.
        """
        weight, bias = views_of(rows, layer)
        tiles = 1 if _narrow(layer) else -(-segment.size // TILE)
        if tiles > TILES:
            for k in range(segment.count):
                total = self._buffer("total", self.dimension, dtype=torch.float64).zero_()
                self._add(total, layer, error[k], x[k])
                for mine, own in zip(views_of(total, layer), (weight, bias), strict=True):
                    if mine is not None and own is not None:
                        _store(mine[None], own, segment.places(k, k + 1))
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
            product = self._buffer("product", count, *shape)
            return torch.mul(error, x, out=product), error[:, :, 0]
        if _narrow(layer):
            product = self._buffer("product", count, *shape, dtype=torch.float64)
            torch.bmm(error.double(), x.double(), out=product)
            return product, error.sum(2, dtype=torch.float64)
        tiles = -(-size // TILE)
        step = -(-size // tiles)
        if step * tiles > size:
            # Records of zero add nothing.
            error = nn.functional.pad(error, (0, step * tiles - size))
            x = nn.functional.pad(x, (0, 0, 0, step * tiles - size))
        products = self._buffer("product", count * tiles, *shape)
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

    def _add(self, total: Tensor, layer: Layer, error: Tensor, x: Tensor) -> None:
        """total [d] (float64) += one layer's sum over records: error [fan_out, n], x [n, fan_in]."""
        weight, bias = views_of(total, layer)
        if _narrow(layer):
            weight.addmm_(error.double(), x.double())
            if bias is not None:
                bias += error.sum(1, dtype=torch.float64)
            return
        for piece in equal_pieces(len(x), TILE * TILES):
            product, sums = self._products(layer, error[None, :, piece], x[None, piece])
            # Faster than a sum of mixed types.
            weight += self._buffer("exact", *weight.shape, dtype=torch.float64).copy_(product[0])
            if bias is not None:
                bias += sums[0]

    def _block_update(
        self, parameters: Tensor, batch: Batch, steps: int, learning_rate: float, rows: Tensor
    ) -> None:
        self._block_means(parameters, batch, None, rows, NonfiniteRecords())
        rows *= -learning_rate
        if steps == 1:
            return
        segments, order = segments_of(batch.sizes)
        x, labels, unusable = batch.inputs, batch.labels, batch.unusable
        if order is not None:
            index = torch.from_numpy(order).to(self.device)
            x, labels = x[index], labels[index]
            unusable = None if unusable is None else unusable[index]
        numbers = activations_of(self._layers)
        for segment in segments:
            room = max(1, BLOCK_NUMBERS // (segment.size * numbers + 2 * self.dimension))
            for start in range(0, segment.count, room):
                stop = min(start + room, segment.count)
                some, shape = segment.places(start, stop), (stop - start, segment.size)
                records = slice(segment.row + start * segment.size, segment.row + stop * segment.size)
                own = rows[some] + parameters
                given = aligned(x[records]).view(*shape, -1)
                classes = labels[records].view(shape)
                bad = None if unusable is None else unusable[records].view(shape)
                for _ in range(steps - 1):
                    self._own_step(own, given, classes, bad, learning_rate)
                rows[some] = own - parameters

    def _own_step(
        self, own: Tensor, x: Tensor, labels: Tensor, unusable: Tensor | None, learning_rate: float
    ) -> None:
        """One descent step of own [k, d], each client's parameters, in place; x [k, n, fan_in]."""
        count, size = labels.shape
        inputs, slopes = [x], list[Tensor | None]()
        for layer in self._layers[:-1]:
            weight, bias = views_of(own, layer)
            hidden = torch.bmm(inputs[-1], weight.transpose(1, 2))
            if bias is not None:
                hidden += bias[:, None]
            slopes.append(activate(layer.activation, hidden))
            inputs.append(hidden)
        weight, bias = views_of(own, self._layers[-1])
        logits = torch.bmm(inputs[-1], weight.transpose(1, 2))
        if bias is not None:
            logits += bias[:, None]
        flat = self._output_error(logits.flatten(0, 1).T, labels.flatten())
        if unusable is not None:
            flat[:, unusable.flatten()] = torch.nan
        error = flat.view(-1, count, size).transpose(0, 1).mul(1.0 / size)
        gradient = torch.empty_like(own)
        everyone = Segment(slice(0, count), count, size, 0)
        for depth in range(len(self._layers) - 1, -1, -1):
            self._write(gradient, self._layers[depth], everyone, error, inputs[depth])
            if depth > 0:
                lower = torch.bmm(error.transpose(1, 2), views_of(own, self._layers[depth])[0])
                activation = self._layers[depth - 1].activation
                times_slope(lower, activation, inputs[depth], slopes[depth - 1])
                error = lower.transpose(1, 2)
        own.add_(gradient, alpha=-learning_rate)

    @cached_property
    def _minus_one(self) -> Tensor:
        return torch.full((1, 1), -1.0, device=self.device)

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """This thread's array of that name, type and shape."""
        buffers: Buffers = self._of_thread.__dict__
        if "like" not in buffers:
            buffers["like"] = torch.empty(0, device=self.device)
        return buffer(buffers, buffers["like"].to(dtype), f"{name} {dtype}", *shape)

    def _like(self, name: str, values: Tensor) -> Tensor:
        return self._buffer(name, *values.shape)


def _narrow(layer: Layer) -> bool:
    return layer.fan_in * layer.fan_out <= NARROW


def _of_segment(done: Pass, depth: int, segment: Segment) -> tuple[Tensor, Tensor]:
    """The segment's errors [k, fan_out, n] and inputs [k, n, fan_in] of one layer."""
    records = slice(segment.row, segment.row + segment.count * segment.size)
    error, x = done.errors[depth][:, records], done.inputs[depth][records]
    shape = segment.count, segment.size
    return error.unflatten(1, shape).transpose(0, 1), x.view(*shape, -1)


def _store(values: Tensor, target: Tensor, clients: slice | Tensor) -> None:
    """target[clients] = values."""
    if isinstance(clients, slice):
        copy_rows(values, target[clients])
    else:
        target[clients.to(target.device)] = values.to(target.dtype)
