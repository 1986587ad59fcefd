"""Closed forms for chains of linear layers: no record's gradient is ever written out.

A linear layer with input x and output gradient e has the weight gradient e x^T and the bias
gradient e, so a record's squared l2 norm is the sum over layers of |e|^2 (|x|^2 + 1), and its l1
norm the sum of |e|_1 (|x|_1 + 1). The clipped mean is one product per client and layer, of output
gradients with the layer's inputs, whichever are fewer scaled by the clipping factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import (
    Segment,
    activations_of,
    equal_pieces,
    segments_of,
)
from fl_shuffle.gradients.client_sums import ClientSums, add_product, longest_sum, narrow
from fl_shuffle.gradients.engine import Batch, GradientEngine, Loss
from fl_shuffle.gradients.kernels import (
    Views,
    activate,
    affine,
    aligned,
    clip_factor,
    column_powers,
    powers_of,
    times_slope,
    views_of,
)
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords, without_nonfinite_
from fl_shuffle.gradients.rounding import length_error, move_error_float32, move_error_float64
from fl_shuffle.gradients.structure import Layer
from fl_shuffle.gradients.tolerances import TOLERANCES


@dataclass(frozen=True)
class Pass:
    """What one pass over a block's records leaves behind.

    inputs: each layer's [n, fan_in], or what `with_bias` makes of them. errors: each layer's output
    gradients [fan_out, n].
    nonfinite: the mark [n] of records that count as zero; None if there is none. weights: the
    factors [n] that are still missing in the errors of all layers but the last; None if none are.
    """

    inputs: list[Tensor]
    errors: list[Tensor]
    nonfinite: Tensor | None
    weights: Tensor | None = None


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
        self._sums = ClientSums(self.dimension, device)

    @property
    def path(self) -> str:
        return "closed-form linear" if len(self._layers) == 1 else "closed-form mlp"

    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        return self._layers[-1].fan_out

    def _length_error(self) -> float:
        widest = max(layer.fan_in + layer.fan_out for layer in self._layers)
        return length_error(widest + len(self._layers), self.norm)

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        if all(map(narrow, self._layers)):
            return move_error_float64(sizes)
        of_stretches = move_error_float32(sizes, TOLERANCES.stretch_records, TOLERANCES.stretches)
        return np.maximum(move_error_float64(sizes), of_stretches)

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, sizes: NDArray[np.int64]
    ) -> Batch:
        return super()._batch(parameters, self._flat(inputs), labels, sizes)

    def _flat(self, inputs: Tensor) -> Tensor:
        """Records of any shape as rows. Raises `InvalidValueError` for others than the model's."""
        width = self._layers[0].fan_in
        if inputs.dtype != torch.float32 or inputs[0].numel() != width:
            raise InvalidValueError(
                "inputs", f"{inputs.dtype} {list(inputs.shape)}", f"must be float32 [N, {width}]"
            )
        return inputs.reshape(len(inputs), width)

    def _block_means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        views = [views_of(parameters, layer) for layer in self._layers]
        if len(batch.sizes) == 1 and len(batch.labels) > min(longest_sum(), self.packing.records):
            self._long_client(views, batch, rows[0], tally)
            return
        segments, order = segments_of(batch.sizes)
        index = None if order is None else torch.from_numpy(order).to(self.device)
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        shares, limits = sizes.reciprocal(), batch.limits
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
                self._sums.write(rows, layer, segment, *_of_segment(done, depth, segment))

    def _block_sum(
        self, parameters: Tensor, batch: Batch, shares: Tensor, tally: NonfiniteRecords
    ) -> Tensor:
        assert batch.limits is not None
        views = [views_of(parameters, layer) for layer in self._layers]
        count = len(batch.labels)
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        each = torch.stack([shares, batch.limits]).repeat_interleave(sizes, dim=1)
        total = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        sums = self._sums.buffer("sums", self.dimension)
        found = torch.zeros(count, dtype=torch.bool)
        pieces = list(equal_pieces(count, self.packing.records))
        for number, piece in enumerate(pieces, start=1):
            part = batch.part(0, len(batch.sizes), piece.start, piece.stop)
            done = self._one_pass(views, part, None, each[0, piece], each[1, piece], weighted=False)
            if done.nonfinite is not None:
                found[piece] = done.nonfinite.cpu()
            for depth, layer in enumerate(self._layers):
                weights = done.weights if depth < len(self._layers) - 1 else None
                error, x = done.errors[depth], done.inputs[depth]
                add_product(
                    sums, layer, error, x, weights, fresh=number % TOLERANCES.sum_passes == 1
                )
            if number % TOLERANCES.sum_passes == 0 or number == len(pieces):
                total += sums
        if bool(found.any()):
            tally.add(found, batch.sizes)
        return total

    def _long_client(
        self, views: list[Views], batch: Batch, row: Tensor, tally: NonfiniteRecords
    ) -> None:
        """One client's mean, over pieces of its records."""
        size = len(batch.labels)
        total = self._sums.total(size, self.packing.records)
        share = torch.full((1,), 1.0 / size, device=self.device)
        found = torch.zeros(size, dtype=torch.bool)
        for piece in equal_pieces(size, self.packing.records):
            count = piece.stop - piece.start
            part = batch.part(0, 1, piece.start, piece.stop)
            limit = None if batch.limits is None else batch.limits.expand(count)
            done = self._pass(views, part, None, share.expand(count), limit)
            if done.nonfinite is not None:
                found[piece] = done.nonfinite.cpu()
            for depth, layer in enumerate(self._layers):
                error, x = done.errors[depth], done.inputs[depth]
                self._sums.add(total, layer, error, x, fresh=piece.start == 0)
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
        """`_one_pass`, all weighted: each layer's errors, or its inputs where they are fewer."""
        return self._one_pass(views, batch, index, shares, limits, weighted=True)

    def _one_pass(
        self,
        views: list[Views],
        batch: Batch,
        index: Tensor | None,
        shares: Tensor,
        limits: Tensor | None,
        *,
        weighted: bool,
    ) -> Pass:
        """Forth and back over the block's records, in the order of `index` [n] if there is one.

        Errors come out times `shares` [n], records clipped to `limits` [n] unless it is None; but
        only those of the last layer unless `weighted`.
        """
        count = len(batch.labels)
        x = self._sums.buffer("records", count, self._layers[0].fan_in)
        if index is None:
            x.copy_(batch.inputs)
            labels, unusable = batch.labels, batch.unusable
        else:
            torch.index_select(batch.inputs, 0, index, out=x)
            labels = batch.labels[index]
            unusable = None if batch.unusable is None else batch.unusable[index]
        inputs, slopes = self._forward(views, x)
        logits = self._sums.buffer("logits", self._layers[-1].fan_out, count)
        weight, bias = views[-1]
        torch.mm(weight, inputs[-1].T, out=logits)
        if bias is not None:
            logits += bias[:, None]
        error = self._output_error(logits, labels)
        if unusable is not None:
            error[:, unusable] = torch.nan
        if limits is None:
            error *= shares
            lower = self._backward(views, error, inputs, slopes)
            self._weigh(inputs, lower, None)
            return Pass(inputs, [*(errors.T for errors in lower), error], None)
        lower = self._backward(views, error, inputs, slopes)
        weights = clip_factor(self._lengths(inputs, lower, error), limits).mul_(shares)
        marks = without_nonfinite_(weights, error.T, *inputs, *lower)
        error *= weights
        if weighted:
            self._weigh(inputs, lower, weights)
        missing = None if weighted else weights
        return Pass(inputs, [*(errors.T for errors in lower), error], marks, missing)

    def _forward(self, views: list[Views], x: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """Each layer's inputs [n, fan_in]; slopes of activations that need theirs kept."""
        inputs, slopes = [x], list[Tensor | None]()
        for depth, layer in enumerate(self._layers[:-1]):
            weight, bias = views[depth]
            hidden = self._sums.buffer(f"hidden {depth}", len(x), layer.fan_out)
            affine(bias, inputs[-1], weight.T, hidden)
            slopes.append(activate(layer.activation, hidden))
            inputs.append(hidden)
        return inputs, slopes

    def _output_error(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The gradients [C, n] of each record's loss with respect to its logits [C, n]."""
        error = self._sums.buffer("error", *logits.shape)
        if self.loss is None:
            torch.softmax(logits, 0, out=error)
            error.scatter_add_(0, labels[None], self._minus_one.expand(1, len(labels)))
            return error
        with torch.enable_grad():
            leaf = logits.T.contiguous().requires_grad_()
            losses = self.loss(leaf, labels)
            if losses.shape != labels.shape[:1]:
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
            lower = self._sums.buffer(f"lower {depth}", len(upper), self._layers[depth].fan_out)
            torch.mm(upper, views[depth + 1][0], out=lower)
            activation = self._layers[depth].activation
            times_slope(lower, activation, inputs[depth + 1], slopes[depth])
            found.append(lower)
            upper = lower
        return found[::-1]

    def _weigh(self, inputs: list[Tensor], lower: list[Tensor], weights: Tensor | None) -> None:
        """In place: hidden layers' errors, or inputs where they are fewer, times weights [n]."""
        for depth, errors in enumerate(lower):
            layer = self._layers[depth]
            if layer.fan_in <= layer.fan_out:
                inputs[depth] = self._sums.with_bias(depth, layer, inputs[depth], weights)
            elif weights is not None:
                errors.mul_(weights[:, None])

    def _lengths(self, inputs: list[Tensor], lower: list[Tensor], error: Tensor) -> Tensor:
        """Norms [n] of the records' gradients over all parameters."""
        total: Tensor | None = None
        for depth, layer in enumerate(self._layers):
            of_input = powers_of(
                inputs[depth], self.norm, self._sums.buffer("terms", *inputs[depth].shape)
            )
            if layer.bias is not None:
                of_input.add_(1.0)
            if depth == len(self._layers) - 1:
                of_error = column_powers(error, self.norm)
            else:
                of_error = powers_of(
                    lower[depth], self.norm, self._sums.buffer("terms", *lower[depth].shape)
                )
            total = of_error.mul_(of_input) if total is None else total.addcmul_(of_error, of_input)
        assert total is not None
        return total.sqrt_() if self.norm == 2 else total

    def _block_update(
        self, parameters: Tensor, batch: Batch, steps: int, learning_rate: float, rows: Tensor
    ) -> None:
        self._block_means(parameters, batch, rows, NonfiniteRecords())
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
            room = max(1, TOLERANCES.block_numbers // (segment.size * numbers + 2 * self.dimension))
            for start in range(0, segment.count, room):
                stop = min(start + room, segment.count)
                some, shape = segment.places(start, stop), (stop - start, segment.size)
                records = slice(
                    segment.row + start * segment.size, segment.row + stop * segment.size
                )
                own = rows[some] + parameters
                given = aligned(x[records]).view(*shape, -1)
                classes = labels[records].view(*shape, *labels.shape[1:])
                bad = None if unusable is None else unusable[records].view(shape)
                for _ in range(steps - 1):
                    self._own_step(own, given, classes, bad, learning_rate)
                rows[some] = own - parameters

    def _own_step(
        self, own: Tensor, x: Tensor, labels: Tensor, unusable: Tensor | None, learning_rate: float
    ) -> None:
        """One descent step of own [k, d], each client's parameters, in place; x [k, n, fan_in]."""
        count, size = labels.shape[:2]
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
        flat = self._output_error(logits.flatten(0, 1).T, labels.flatten(0, 1))
        if unusable is not None:
            flat[:, unusable.flatten()] = torch.nan
        error = flat.view(-1, count, size).transpose(0, 1).mul(1.0 / size)
        gradient = torch.empty_like(own)
        everyone = Segment(slice(0, count), count, size, 0)
        for depth in range(len(self._layers) - 1, -1, -1):
            self._sums.write(gradient, self._layers[depth], everyone, error, inputs[depth])
            if depth > 0:
                lower = torch.bmm(error.transpose(1, 2), views_of(own, self._layers[depth])[0])
                activation = self._layers[depth - 1].activation
                times_slope(lower, activation, inputs[depth], slopes[depth - 1])
                error = lower.transpose(1, 2)
        own.add_(gradient, alpha=-learning_rate)

    @cached_property
    def _minus_one(self) -> Tensor:
        return torch.full((1, 1), -1.0, device=self.device)


def _of_segment(done: Pass, depth: int, segment: Segment) -> tuple[Tensor, Tensor]:
    """The segment's errors [k, fan_out, n] and inputs [k, n, fan_in] of one layer."""
    records = slice(segment.row, segment.row + segment.count * segment.size)
    error, x = done.errors[depth][:, records], done.inputs[depth][records]
    shape = segment.count, segment.size
    return error.view(len(error), *shape).transpose(0, 1), x.view(*shape, -1)
