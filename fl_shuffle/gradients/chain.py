"""Closed forms for chains of linear layers: no record's gradient is ever written out.

A linear layer with input x and output gradient e has the weight gradient e x^T and the bias
gradient e, so a record's squared l2 norm is the sum over layers of |e|^2 (|x|^2 + 1), and its l1
norm the sum of |e|_1 (|x|_1 + 1). The clipped mean is one product per client and layer, of output
gradients scaled by the clipping factors with the layer's inputs.

Same bits whatever the packing: a row of a matrix product does not depend on the product's other
rows once there are a few dozen; products over a client's records have a shape that is a function
of the client alone; and elementwise kernels run over arrays padded to whole vector registers,
because their scalar tails round differently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import Block, Segment, blocks, equal_runs, sorted_records
from fl_shuffle.gradients.engine import GradientEngine, Loss, check_labels, clip_factor
from fl_shuffle.gradients.structure import Layer

# Whole vector registers, unrolled four times, on every processor PyTorch has kernels for.
LANES = 64
# Products with fewer rows go through kernels for thin matrices, which round differently.
THIN = 32
# Numbers in one block of activations: about what the second-level cache holds.
BLOCK_NUMBERS = 512 * 1024
# Products with fewer multiplications are cheaper as one batched call and a copy.
SMALL_PRODUCT = 200_000

# In-place activations whose slope follows from their output.
FROM_OUTPUT: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}


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
        self._classes = layers[-1].fan_out
        self._numbers = layers[0].fan_in + 2 * sum(layer.fan_out for layer in layers)
        self._block_rows = max(LANES, BLOCK_NUMBERS // self._numbers)
        self._scratch = threading.local()

    @property
    def path(self) -> str:
        return "closed-form linear" if len(self._layers) == 1 else "closed-form mlp"

    def _means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
    ) -> None:
        self._blocks(parameters, inputs, labels, bounds, radius, rows, self.clip == "record")

    def _blocks(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
        per_record: bool,
    ) -> None:
        records = self._records(inputs, labels)
        ragged = sorted_records(bounds)
        if ragged is None:
            for block in blocks(bounds, self._block_rows):
                self._block(parameters, records, labels, radius, block, rows, per_record)
            return
        order = torch.from_numpy(ragged.order).to(self.device)
        index = torch.from_numpy(ragged.index).to(self.device)
        records, labels, radius = records[index], labels[index], radius[order]
        ordered = torch.empty_like(rows)
        for block in blocks(ragged.bounds, self._block_rows):
            self._block(parameters, records, labels, radius, block, ordered, per_record)
        rows[order] = ordered

    def _records(self, inputs: Tensor, labels: Tensor) -> Tensor:
        width = self._layers[0].fan_in
        if inputs.dtype != torch.float32 or inputs[0].numel() != width:
            raise InvalidValueError(
                "inputs", f"{inputs.dtype} {list(inputs.shape)}", f"must be float32 [N, {width}]"
            )
        if self.loss is None:
            check_labels(labels, self._classes)
        return inputs.reshape(len(inputs), width)

    def _block(
        self,
        parameters: Tensor,
        records: Tensor,
        labels: Tensor,
        radius: Tensor,
        block: Block,
        rows: Tensor,
        per_record: bool,
    ) -> None:
        count = block.stop - block.start
        padded = -(-count // LANES) * LANES
        x = records[block.start : block.stop]
        if count < THIN:
            thin = self._array("thin", padded, x.shape[1])
            thin[:count] = x
            thin[count:] = 0.0
            x = thin
        weight = self._array("weight", padded)
        for part in block.segments:
            weight[part.row : part.row + part.count * part.size] = 1.0 / part.total
        inputs, slopes, logits = self._forward(parameters, x, padded)
        error = self._output_error(logits, labels[block.start : block.stop])
        if not per_record:
            error *= weight
        errors = self._backward(parameters, inputs, slopes, error)
        if per_record:
            limit = self._array("limit", padded)
            for part in block.segments:
                part_limit = limit[part.row : part.row + part.count * part.size]
                part_limit.view(part.count, part.size).copy_(
                    radius[part.client : part.client + part.count, None]
                )
            weight *= clip_factor(self._lengths(inputs, errors), limit)
            errors[-1] *= weight
            for hidden in errors[:-1]:
                hidden.mul_(weight[:, None])
        for part in block.segments:
            self._write_segment(inputs, errors, part, rows)

    def _forward(
        self, parameters: Tensor, x: Tensor, padded: int
    ) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
        """Each layer's inputs [>= n, fan_in]; hidden slopes where needed; logits [C, padded]."""
        used = len(x)
        inputs, slopes = [x], list[Tensor | None]()
        for depth, layer in enumerate(self._layers[:-1]):
            weight, bias = _views(parameters, layer)
            hidden = self._array(f"hidden {depth}", padded, layer.fan_out)
            _affine(bias, inputs[-1][:used], weight.T, hidden[:used])
            hidden, slope = _activate(layer.activation, hidden)
            inputs.append(hidden)
            slopes.append(slope)
        weight, bias = _views(parameters, self._layers[-1])
        logits = self._array("logits", self._classes, padded)
        column = None if bias is None else bias[:, None]
        _affine(column, weight, inputs[-1][:used].T, logits[:, :used])
        return inputs, slopes, logits

    def _output_error(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Gradients [C, padded] of each record's loss with respect to its logits."""
        count = len(labels)
        if self.loss is None:
            error = torch.softmax(logits, 0, out=self._array("error", *logits.shape))
            minus_one = torch.full((1, 1), -1.0, device=self.device).expand(1, count)
            error.scatter_add_(0, labels[None], minus_one)
            return error
        classes = labels.new_zeros(logits.shape[1])
        classes[:count] = labels
        with torch.enable_grad():
            leaf = logits.T.contiguous().requires_grad_()
            losses = self.loss(leaf, classes)
            if losses.shape != classes.shape:
                raise InvalidValueError(
                    "loss", list(losses.shape), f"must return one loss per record, [{len(classes)}]"
                )
            gradient: Tensor = torch.autograd.grad(losses.sum(), leaf)[0]
        return gradient.T.contiguous()

    def _backward(
        self,
        parameters: Tensor,
        inputs: list[Tensor],
        slopes: list[Tensor | None],
        error: Tensor,
    ) -> list[Tensor]:
        """Output gradients of every layer: [padded, fan_out] of hidden ones, [C, padded] last."""
        used = len(inputs[0])
        errors = [error]
        upper = error[:, :used].T
        for depth in range(len(self._layers) - 2, -1, -1):
            weight, _ = _views(parameters, self._layers[depth + 1])
            hidden = inputs[depth + 1]
            lower = self._array(f"error {depth}", *hidden.shape)
            torch.mm(upper, weight, out=lower[:used])
            _times_slope(lower, self._layers[depth].activation, hidden, slopes[depth])
            errors.insert(0, lower)
            upper = lower[:used]
        return errors

    def _lengths(self, inputs: list[Tensor], errors: list[Tensor]) -> Tensor:
        """Norms [padded] of the records' gradients over all parameters."""
        padded = errors[-1].shape[1]
        total = torch.zeros(padded, device=self.device)
        for depth, layer in enumerate(self._layers):
            last = depth == len(self._layers) - 1
            of_input = self._array("input length", padded)
            size = self._powers(inputs[depth], 1)
            of_input[: len(size)] = size
            if layer.bias is not None:
                of_input += 1.0
            total.addcmul_(of_input, self._powers(errors[depth], 0 if last else 1))
        return total.sqrt_() if self.norm == 2 else total

    def _powers(self, values: Tensor, dim: int) -> Tensor:
        """Sums of squares (l2) or of absolute values (l1) along `dim`."""
        if self.norm == 2 and dim == 1:
            lengths: Tensor = torch.linalg.vector_norm(values, dim=1)
            return lengths.square_()
        terms = self._array("terms", *values.shape)
        if self.norm == 2:
            return torch.mul(values, values, out=terms).sum(dim)
        return torch.abs(values, out=terms).sum(dim)

    def _write_segment(
        self, inputs: list[Tensor], errors: list[Tensor], part: Segment, rows: Tensor
    ) -> None:
        """The clients' gradient rows, from their records' scaled output gradients."""
        records = slice(part.row, part.row + part.count * part.size)
        clients = rows[part.client : part.client + part.count]
        for depth, layer in enumerate(self._layers):
            x = inputs[depth][records].view(part.count, part.size, layer.fan_in)
            if depth == len(self._layers) - 1:
                error = errors[-1][:, records].view(layer.fan_out, part.count, part.size)
                error = error.transpose(0, 1)
                sums = error.sum(2)
            else:
                error = errors[depth][records].view(part.count, part.size, layer.fan_out)
                sums = error.sum(1)
                error = error.transpose(1, 2)
            self._write_layer(clients, layer, error, x, sums, part.add)

    def _write_layer(
        self, clients: Tensor, layer: Layer, error: Tensor, x: Tensor, sums: Tensor, add: bool
    ) -> None:
        """error [k, fan_out, n], x [k, n, fan_in], sums [k, fan_out] of the errors, into rows."""
        weight, bias = _views(clients, layer)
        if bias is not None:
            if add:
                bias += sums
            else:
                bias.copy_(sums)
        count, size = x.shape[:2]
        if add:
            weight.baddbmm_(error, x)
        elif size == 1:
            torch.mul(error, x, out=weight)
        elif size * layer.fan_in * layer.fan_out < SMALL_PRODUCT:
            chunk = max(1, BLOCK_NUMBERS // (4 * layer.fan_in * layer.fan_out))
            for start in range(0, count, chunk):
                piece = slice(start, start + chunk)
                product = self._array("product", len(x[piece]), layer.fan_out, layer.fan_in)
                weight[piece] = torch.bmm(error[piece], x[piece], out=product)
        else:
            torch.bmm(error, x, out=weight)

    def _update(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        steps: int,
        learning_rate: float,
        rows: Tensor,
    ) -> None:
        ones = torch.ones(1, device=self.device).expand(len(rows))
        self._blocks(parameters, inputs, labels, bounds, ones, rows, per_record=False)
        rows *= -learning_rate
        if steps == 1:
            return
        rows += parameters
        records = self._records(inputs, labels)
        exact = all(type(layer.activation) is nn.ReLU for layer in self._layers[:-1])
        together = self.loss is None and exact
        for first, last, size in equal_runs(bounds):
            room = BLOCK_NUMBERS // (size * self._numbers + 2 * self.dimension)
            chunk = max(1, room) if together else 1
            for start in range(first, last, chunk):
                stop = min(start + chunk, last)
                members = slice(int(bounds[start]), int(bounds[stop]))
                x = records[members].reshape(stop - start, size, -1)
                y = labels[members].view(stop - start, size)
                for _ in range(steps - 1):
                    self._own_step(rows[start:stop], x, y, learning_rate)
        rows -= parameters

    def _own_step(self, own: Tensor, x: Tensor, labels: Tensor, learning_rate: float) -> None:
        """One descent step of own [k, d], each client's parameters, in place; x [k, n, fan_in]."""
        count, size = labels.shape
        inputs, slopes = [x], list[Tensor | None]()
        for layer in self._layers[:-1]:
            weight, bias = _views(own, layer)
            hidden = torch.bmm(inputs[-1], weight.transpose(1, 2))
            if bias is not None:
                hidden += bias[:, None]
            hidden, slope = _activate(layer.activation, hidden)
            inputs.append(hidden)
            slopes.append(slope)
        weight, bias = _views(own, self._layers[-1])
        logits = torch.bmm(weight, inputs[-1].transpose(1, 2))
        if bias is not None:
            logits += bias[:, :, None]
        if self.loss is None:
            error = torch.softmax(logits, 1)
            minus_one = torch.full((1, 1, 1), -1.0, device=self.device).expand(count, 1, size)
            error.scatter_add_(1, labels[:, None], minus_one)
        else:
            error = self._output_error(logits[0], labels[0])[None]
        error *= 1.0 / size
        gradient = torch.empty_like(own)
        for depth in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[depth]
            self._write_layer(gradient, layer, error, inputs[depth], error.sum(2), add=False)
            if depth == 0:
                break
            weight, _ = _views(own, layer)
            lower = torch.bmm(error.transpose(1, 2), weight)
            activation = self._layers[depth - 1].activation
            _times_slope(lower, activation, inputs[depth], slopes[depth - 1])
            error = lower.transpose(1, 2)
        own.add_(gradient, alpha=-learning_rate)

    def _array(self, name: str, *shape: int) -> Tensor:
        """This thread's scratch array of that name, contents arbitrary but finite when new."""
        pool: dict[str, Tensor] = self._scratch.__dict__
        size = int(np.prod(shape))
        if name not in pool or pool[name].numel() < size:
            pool[name] = torch.zeros(size, device=self.device)
        return pool[name][:size].view(shape)


def _views(parameters: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Weight [..., fan_out, fan_in] and bias [..., fan_out] inside flat vectors [..., d]."""
    end = layer.weight + layer.fan_out * layer.fan_in
    weight = parameters[..., layer.weight : end]
    weight = weight.view(*parameters.shape[:-1], layer.fan_out, layer.fan_in)
    if layer.bias is None:
        return weight, None
    return weight, parameters[..., layer.bias : layer.bias + layer.fan_out]


def _affine(bias: Tensor | None, left: Tensor, right: Tensor, out: Tensor) -> None:
    if bias is None:
        torch.mm(left, right, out=out)
    else:
        torch.addmm(bias, left, right, out=out)


def _activate(activation: nn.Module | None, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Outputs, in place where possible, and slopes where they do not follow from the outputs."""
    if activation is None:
        return values, torch.ones((), device=values.device)
    if type(activation) in FROM_OUTPUT:
        return FROM_OUTPUT[type(activation)](values), None
    with torch.enable_grad():
        leaf = values.detach().clone().requires_grad_()
        result = activation(leaf.clone())
        (slope,) = torch.autograd.grad(result.sum(), leaf)
    return result.detach(), slope


def _times_slope(
    error: Tensor, activation: nn.Module | None, outputs: Tensor, slope: Tensor | None
) -> None:
    """error *= the activation's slope, in place."""
    backward = torch.ops.aten
    if slope is not None:
        error *= slope
    elif type(activation) is nn.ReLU:
        backward.threshold_backward.grad_input(error, outputs, 0, grad_input=error)
    elif type(activation) is nn.Tanh:
        backward.tanh_backward.grad_input(error, outputs, grad_input=error)
    else:
        backward.sigmoid_backward.grad_input(error, outputs, grad_input=error)
