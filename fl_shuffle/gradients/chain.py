"""Closed forms for chains of linear layers: no record's gradient is ever written out.

A linear layer with input x and output gradient e has the weight gradient e x^T and the bias
gradient e, so a record's squared l2 norm is the sum over layers of |e|^2 (|x|^2 + 1), and its l1
norm the sum of |e|_1 (|x|_1 + 1). The clipped mean is one product per client and layer, of output
gradients scaled by the clipping factors with the layer's inputs.

Same bits whatever the packing: products over a client's records have a shape that is a function of
the client alone; products over a block's records take the form in which a row's bits do not depend
on its company on this machine (`steadiness`); and elementwise kernels run over arrays padded to
whole vector registers, because their scalar tails round differently.
"""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import Block, blocks, equal_runs, sorted_records
from fl_shuffle.gradients.engine import (
    NORM_INFLATION,
    GradientEngine,
    Loss,
    check_labels,
    clip_factor,
    steady_arithmetic,
)
from fl_shuffle.gradients.kernels import (
    Views,
    activate,
    affine,
    column_powers,
    copy_rows,
    powers_of,
    tiles_of,
    times_slope,
    views_of,
)
from fl_shuffle.gradients.remembered import Remembered
from fl_shuffle.gradients.steadiness import Steady, over_tiles, steady_products
from fl_shuffle.gradients.structure import Layer
from fl_shuffle.gradients.workspace import LANES, Pool, Workspace, pooled

# Numbers in one block of activations: few enough for the caches, many enough that the fixed cost of
# two dozen kernel calls per block does not show. That of a model without hidden layers shows most.
BLOCK_NUMBERS = 1 << 20
LINEAR_BLOCK_NUMBERS = 1 << 22
# Products with fewer multiplications are cheaper as one batched call and a copy.
SMALL_PRODUCT = 200_000
# Block shapes remembered by a thread.
WORKSPACES = 64


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
        records: int = 0,
    ) -> None:
        """records: the most that calls have, which bounds the blocks to be tried out; 0: any."""
        super().__init__(module, clip=clip, norm=norm, device=device, loss=loss)
        self._layers = layers
        self._classes = layers[-1].fan_out
        self._numbers = layers[0].fan_in + 2 * sum(layer.fan_out for layer in layers)
        most = LINEAR_BLOCK_NUMBERS if len(layers) == 1 else BLOCK_NUMBERS
        tiles = max(1, round(most / self._numbers / LANES))
        self._block_rows = LANES * (min(tiles, -(-records // LANES)) if records else tiles)
        self._scratch = threading.local()
        self._known: Remembered | None = None

    def remember(self, inputs: Tensor) -> None:
        """Keep the lengths of these records, [N, ...], which must not change from here on.

        Calls whose inputs are a slice of them then need not compute them again.
        """
        records = inputs.reshape(len(inputs), -1)
        if records.is_contiguous() and self.clip == "record":
            self._known = Remembered(records, self._powers(records))

    def _powers(self, records: Tensor) -> Tensor:
        """Squared l2 norms, or l1 norms, of the records, [N]."""
        powers = torch.empty(len(records), device=self.device)
        for start in range(0, len(records), self._block_rows):
            part = records[start : start + self._block_rows].to(self.device)
            own = powers[start : start + len(part)]
            powers_of(part, self.norm, torch.empty_like(part), out=own)
        return powers

    @cached_property
    def _steady(self) -> Steady:
        """Tried out on this machine when it is first needed."""
        shapes = tuple((layer.fan_in, layer.fan_out) for layer in self._layers)
        with steady_arithmetic(self.device):
            return steady_products(shapes, self._block_rows, self.device)

    @property
    def _per_block(self) -> int:
        return 1 if self._steady is Steady.CLIENTS else self._block_rows

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
        records = self._records(inputs)
        if self.loss is None:
            check_labels(labels, self._classes)
        views = [views_of(parameters, layer) for layer in self._layers]
        limits = radius / NORM_INFLATION if per_record else None
        powers = None if self._known is None else self._known.of(records)
        ragged = sorted_records(bounds)
        if ragged is None:
            for block in blocks(bounds, self._block_rows, self._per_block, LANES):
                self._block(views, records, labels, powers, limits, block, rows)
            return
        order = torch.from_numpy(ragged.order).to(self.device)
        index = torch.from_numpy(ragged.index).to(self.device)
        records, labels = records[index], labels[index]
        if powers is not None:
            powers = powers[index]
        if limits is not None and limits.dim():
            limits = limits[order]
        ordered = torch.empty_like(rows)
        for block in blocks(ragged.bounds, self._block_rows, self._per_block, LANES):
            self._block(views, records, labels, powers, limits, block, ordered)
        rows[order] = ordered

    def _records(self, inputs: Tensor) -> Tensor:
        width = self._layers[0].fan_in
        if inputs.dtype != torch.float32 or inputs[0].numel() != width:
            raise InvalidValueError(
                "inputs", f"{inputs.dtype} {list(inputs.shape)}", f"must be float32 [N, {width}]"
            )
        return inputs.reshape(len(inputs), width)

    def _block(
        self,
        views: list[Views],
        records: Tensor,
        labels: Tensor,
        powers: Tensor | None,
        limits: Tensor | None,
        block: Block,
        rows: Tensor,
    ) -> None:
        """The block's client rows, records clipped to `limits` (one or [K]) unless it is None.

        `powers`: what is known of the records' lengths, [N].
        """
        space = self._workspace(block)
        x = records[block.start : block.stop]
        if space.records is not None:
            space.records[: space.count] = x
            space.records[space.count :] = 0.0
            x = space.records
        slopes = self._forward(views, x, space)
        self._output_error(labels[block.start : block.stop], space)
        if limits is None:
            space.error.mul_(space.shares)
        self._backward(views, slopes, space)
        if limits is not None:
            limit = limits
            if limits.dim():
                limit = space.limit
                for part, segment in zip(space.parts, block.segments, strict=True):
                    part.spread.copy_(limits[segment.client : segment.client + segment.count, None])
            known = None if powers is None else powers[block.start : block.stop]
            weight = clip_factor(self._lengths(x, known, space), limit).mul_(space.shares)
            space.error.mul_(weight)
            for lower in space.lower:
                lower.mul_(weight[:, None])
        for part, segment in zip(space.parts, block.segments, strict=True):
            clients = rows[segment.client : segment.client + segment.count]
            data = x[part.rows].view(segment.count, segment.size, -1)
            for layer, error, given in zip(self._layers, part.errors, part.inputs, strict=True):
                self._write(clients, layer, error, data if given is None else given, segment.add)

    def _forward(self, views: list[Views], x: Tensor, space: Workspace) -> list[Tensor | None]:
        """Fill hidden outputs and logits; slopes of activations that need theirs kept."""
        slopes: list[Tensor | None] = []
        for depth, layer in enumerate(self._layers[:-1]):
            weight, bias = views[depth]
            hidden = space.hidden_used[depth]
            if self._steady is Steady.TILES:
                torch.bmm(tiles_of(x), over_tiles(weight.T, len(x) // LANES), out=tiles_of(hidden))
                if bias is not None:
                    hidden += bias
            else:
                affine(bias, x, weight.T, hidden)
            slopes.append(activate(layer.activation, space.hidden[depth]))
            x = hidden
        weight, bias = views[-1]
        if self._steady is Steady.TILES:
            tiles = space.logits.view(self._classes, -1, LANES).transpose(0, 1)
            tiles.copy_(torch.bmm(over_tiles(weight, len(tiles)), tiles_of(x).transpose(1, 2)))
        else:
            torch.mm(weight, x.T, out=space.logits_used)
        if bias is not None:
            space.logits += bias[:, None]
        return slopes

    def _output_error(self, labels: Tensor, space: Workspace) -> None:
        """Fill the gradients [C, padded] of each record's loss with respect to its logits."""
        if self.loss is None:
            torch.softmax(space.logits, 0, out=space.error)
            space.error.scatter_add_(0, labels[None], space.minus_one)
            return
        padded = labels.new_zeros(space.padded)
        padded[: space.count] = labels
        space.error.copy_(self._loss_gradient(self.loss, space.logits, padded))

    def _loss_gradient(self, loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
        """d loss / d logits, [C, n], of logits [C, n]."""
        with torch.enable_grad():
            leaf = logits.T.contiguous().requires_grad_()
            losses = loss(leaf, labels)
            if losses.shape != labels.shape:
                raise InvalidValueError(
                    "loss", list(losses.shape), f"must return one loss per record, [{len(labels)}]"
                )
            gradient: Tensor = torch.autograd.grad(losses.sum(), leaf)[0]
        return gradient.T

    def _backward(self, views: list[Views], slopes: list[Tensor | None], space: Workspace) -> None:
        """Fill the hidden layers' output gradients."""
        tiled = self._steady is Steady.TILES
        upper = space.error_used
        if tiled:
            upper = space.error.view(self._classes, -1, LANES).permute(1, 2, 0)
        for depth in range(len(self._layers) - 2, -1, -1):
            weight, lower = views[depth + 1][0], space.lower_used[depth]
            if tiled:
                torch.bmm(upper, over_tiles(weight, len(upper)), out=tiles_of(lower))
            else:
                torch.mm(upper, weight, out=lower)
            activation = self._layers[depth].activation
            times_slope(space.lower[depth], activation, space.hidden[depth], slopes[depth])
            upper = tiles_of(lower) if tiled else lower

    def _lengths(self, x: Tensor, known: Tensor | None, space: Workspace) -> Tensor:
        """Norms [padded] of the records' gradients over all parameters."""
        if known is None:
            powers_of(x, self.norm, space.input_terms, out=space.input_length_used)
        else:
            space.input_length[: space.count] = known
            space.input_length[space.count :] = 0.0
        of_input = space.input_length
        total: Tensor | None = None
        for depth, layer in enumerate(self._layers):
            if depth == len(self._layers) - 1:
                of_error = column_powers(space.error, self.norm, space.error_terms)
            else:
                of_error = powers_of(space.lower[depth], self.norm, space.terms[depth])
            if layer.bias is not None:
                of_input.add_(1.0)
            total = of_error.mul_(of_input) if total is None else total.addcmul_(of_error, of_input)
            if depth < len(self._layers) - 1:
                of_input = powers_of(space.hidden[depth], self.norm, space.terms[depth])
        assert total is not None
        return total.sqrt_() if self.norm == 2 else total

    def _write(self, clients: Tensor, layer: Layer, error: Tensor, x: Tensor, add: bool) -> None:
        """Write (or add) one layer of client rows: error [k, fan_out, n] times x [k, n, fan_in]."""
        weight, bias = views_of(clients, layer)
        count, size = x.shape[:2]
        if bias is not None:
            if add:
                bias += error.sum(2)
            else:
                bias.copy_(error[:, :, 0] if size == 1 else error.sum(2))
        if add:
            weight.baddbmm_(error, x)
        elif size == 1:
            torch.mul(error, x, out=weight)
        elif size * layer.fan_in * layer.fan_out < SMALL_PRODUCT:
            chunk = min(count, max(1, BLOCK_NUMBERS // (4 * layer.fan_in * layer.fan_out)))
            space = pooled(self._pool(), x, "product", chunk, layer.fan_out, layer.fan_in)
            for start in range(0, count, chunk):
                piece = slice(start, start + chunk)
                product = torch.bmm(error[piece], x[piece], out=space[: count - start])
                copy_rows(product, weight[piece])
        else:
            torch.bmm(error, x, out=weight)

    def _workspace(self, block: Block) -> Workspace:
        """This thread's workspace for blocks of that shape."""
        spaces: dict[object, Workspace] = self._scratch.__dict__.setdefault("spaces", {})
        key = tuple((part.count, part.size, part.total) for part in block.segments)
        if key not in spaces:
            if len(spaces) >= WORKSPACES:
                spaces.clear()
            like = torch.empty(0, device=self.device)
            copy = self._steady is not Steady.WHOLE
            spaces[key] = Workspace(self._layers, block, self._pool(), like, copy)
        return spaces[key]

    def _pool(self) -> Pool:
        """This thread's arrays."""
        pool: Pool = self._scratch.__dict__.setdefault("pool", {})
        return pool

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
        none = torch.ones((), device=self.device)
        self._blocks(parameters, inputs, labels, bounds, none, rows, per_record=False)
        rows *= -learning_rate
        if steps == 1:
            return
        rows += parameters
        records = self._records(inputs)
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
            weight, bias = views_of(own, layer)
            hidden = torch.bmm(inputs[-1], weight.transpose(1, 2))
            if bias is not None:
                hidden += bias[:, None]
            slopes.append(activate(layer.activation, hidden))
            inputs.append(hidden)
        weight, bias = views_of(own, self._layers[-1])
        logits = torch.bmm(weight, inputs[-1].transpose(1, 2))
        if bias is not None:
            logits += bias[:, :, None]
        if self.loss is None:
            error = torch.softmax(logits, 1)
            minus_one = torch.full((1, 1, 1), -1.0, device=self.device).expand(count, 1, size)
            error.scatter_add_(1, labels[:, None], minus_one)
        else:
            error = self._loss_gradient(self.loss, logits[0], labels[0])[None].clone()
        error *= 1.0 / size
        gradient = torch.empty_like(own)
        for depth in range(len(self._layers) - 1, -1, -1):
            self._write(gradient, self._layers[depth], error, inputs[depth], add=False)
            if depth > 0:
                lower = torch.bmm(error.transpose(1, 2), views_of(own, self._layers[depth])[0])
                activation = self._layers[depth - 1].activation
                times_slope(lower, activation, inputs[depth], slopes[depth - 1])
                error = lower.transpose(1, 2)
        own.add_(gradient, alpha=-learning_rate)
