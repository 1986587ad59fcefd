"""Per-record clipping of feed-forward networks, all records of a block at once.

One pass back gives the gradient by every layer's result. A linear layer with input x and output
gradient e has the weight gradient e x^T and the bias gradient e, so where it meets one vector of
each record, a record's squared l2 norm there is |e|^2 (|x|^2 + 1), and its l1 norm
|e|_1 (|x|_1 + 1): no gradient is written out. Where a layer meets several vectors, the places of a
picture, the record's gradient itself follows from both. A client's sum is one product, of inputs
with output gradients, or of the records' gradients with their clipping factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import equal_pieces, packing_of_network, segments_of
from fl_shuffle.gradients.client_sums import TILE, ClientSums, with_weights
from fl_shuffle.gradients.engine import GradientBatch, GradientEngine, cross_entropy
from fl_shuffle.gradients.general import GeneralEngine
from fl_shuffle.gradients.kernels import FLUSHED, clip_factor, powers_of
from fl_shuffle.gradients.local_training import LocalTraining
from fl_shuffle.gradients.networks.chain import Network
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords, without_nonfinite_
from fl_shuffle.gradients.rounding import length_error, move_error_float32


class NetworkEngine(GradientEngine):
    """Feed-forward networks of known layers (`chain.network_of`).

    To the clients' sums a layer whose gradients are written out is a linear one with a single
    output: its inputs are the gradients, its errors the clipping factors.
    """

    def __init__(self, module: nn.Module, network: Network, **options: Any) -> None:
        packing = packing_of_network(module, network.shape, network)
        super().__init__(module, packing, **options)
        self._network = network
        self._layers = tuple(layer for part in network.layers for layer in part.layers)
        self._sums = ClientSums(self.device)
        # Several local steps take every client to parameters of its own.
        self._apart = GeneralEngine(module, packing, **{**options, "clip": "none"})

    @property
    def path(self) -> str:
        return "closed-form network"

    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        return self._network.classes

    def _length_error(self) -> float:
        terms = max(part.terms for part in self._network.layers)
        return length_error(terms + len(self._layers), self.norm)

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        return move_error_float32(sizes, TILE)

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, sizes: NDArray[np.int64]
    ) -> GradientBatch:
        shape = self._network.shape
        if inputs.dtype != torch.float32 or tuple(inputs.shape[1:]) != shape:
            raise InvalidValueError(
                "inputs",
                f"{inputs.dtype} {list(inputs.shape)}",
                f"must be float32 {['N', *shape]}",
            )
        return super()._batch(parameters, inputs, labels, sizes)

    def _block_means(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        if len(batch.labels) > max(self.packing.records, TILE):
            self._long_client(parameters, batch, rows[0], tally)
        else:
            self._short_clients(parameters, batch, rows, tally)

    def _short_clients(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        segments, order = segments_of(batch.sizes)
        index = slice(None) if order is None else torch.from_numpy(order).to(self.device)
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        counts = sizes if order is not None else int(batch.sizes[0])
        shares = sizes.reciprocal().repeat_interleave(counts)[index]
        limits = None if batch.limits is None else batch.limits.repeat_interleave(counts)[index]
        layers, marks = self._pass(parameters, batch, index, shares, limits)
        if marks is not None:
            given = torch.zeros_like(marks)
            given[index] = marks
            tally.add(given, batch.sizes)
        for segment in segments:
            records = slice(segment.row, segment.row + segment.count * segment.size)
            for layer, sides in zip(self._layers, layers, strict=True):
                x, error = (side[records].view(segment.count, segment.size, -1) for side in sides)
                self._sums.write(rows, layer, segment, x, error)

    def _long_client(
        self, parameters: Tensor, batch: GradientBatch, row: Tensor, tally: NonfiniteRecords
    ) -> None:
        """Write one client's mean, over pieces of its records."""
        size = len(batch.labels)
        total = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        shares = torch.full((size,), 1.0 / size, device=self.device)
        found = torch.zeros(size, dtype=torch.bool)
        for piece in equal_pieces(size, self.packing.records):
            limits = None if batch.limits is None else batch.limits.expand(size)[piece]
            layers, marks = self._pass(parameters, batch, piece, shares[piece], limits)
            if marks is not None:
                found[piece] = marks.cpu()
            for layer, (x, error) in zip(self._layers, layers, strict=True):
                self._sums.add(total, layer, x, error)
        row.copy_(total)
        tally.add(found, batch.sizes)

    def _block_update(
        self,
        parameters: Tensor,
        batch: GradientBatch,
        training: LocalTraining,
        orders: Sequence[np.random.Generator | None],
        rows: Tensor,
    ) -> None:
        self._apart._block_update(parameters, batch, training, orders, rows)

    def _pass(
        self,
        parameters: Tensor,
        batch: GradientBatch,
        index: slice | Tensor,
        shares: Tensor,
        limits: Tensor | None,
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Run forth and back over the batch's records at `index`, each clipped to its of the limits
        (None: not at all) and times its of the shares.

        Returns each layer's inputs and output gradients, the narrower ones `with_weights`, and the
        mark [n] of records that count as zero, None if there is none.
        """
        labels = batch.labels[index]
        given = batch.inputs[index]
        x = self._sums.buffer("records", *given.shape).copy_(given)
        trace = self._network.run(parameters, x)
        with torch.enable_grad():
            losses = (self.loss or cross_entropy)(trace.logits, labels)
            if losses.shape != labels.shape[:1]:
                raise InvalidValueError(
                    "loss", list(losses.shape), f"must return one loss per record, [{len(labels)}]"
                )
            errors = torch.autograd.grad(
                losses.sum(), trace.results, allow_unused=True, materialize_grads=True
            )
        # Where a loss has the same gradient for all records, they share its memory (stride 0):
        # zeros written for one record would be all records' zeros.
        errors = tuple(error.contiguous() if 0 in error.stride() else error for error in errors)
        found = [
            part.gradients(kept, error)
            for part, kept, error in zip(self._network.layers, trace.kept, errors, strict=True)
        ]
        weights, marks = shares, None
        if limits is not None:
            lengths = self._lengths(found, trace.kept, errors)
            weights = clip_factor(lengths, limits).mul_(shares)
        if batch.unusable is not None:
            weights = weights.masked_fill(batch.unusable[index], torch.nan)
        if limits is not None:
            marks = without_nonfinite_(weights, *chain(*found), *trace.kept, *errors)
        layers = list[tuple[Tensor, Tensor]]()
        for gradients, kept, error in zip(found, trace.kept, errors, strict=True):
            layers += [(values.flatten(1), weights[:, None]) for values in gradients]
            layers += [] if gradients else [with_weights(kept, error, weights[:, None])]
        return layers, marks

    def _lengths(
        self, found: list[list[Tensor]], kept: list[Tensor], errors: tuple[Tensor, ...]
    ) -> Tensor:
        """Return norms [n] of the records' gradients over all parameters."""
        total = torch.zeros(len(errors[0]), device=self.device)
        for part, gradients, x, error in zip(
            self._network.layers, found, kept, errors, strict=True
        ):
            for values in gradients:
                total += power(values, self.norm)
            if not gradients:
                of_input = powers_of(x, self.norm)
                if part.layers[0].bias is not None:
                    of_input += 1.0
                total.addcmul_(powers_of(error, self.norm), of_input)
        return total.sqrt_() if self.norm == 2 else total


def power(gradients: Tensor, norm: int) -> Tensor:
    """Return squared l2 norms, or l1 norms, [n] of gradients [n, rows, columns]: row by row, then
    all."""
    if norm == 1:
        return gradients.abs().sum(2).sum(1)
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=2).square_().sum(1)
    return squares.add_(gradients[0].numel() * FLUSHED)
