"""Per-record clipping of networks with convolutions, all records of a block at once.

One pass back gives the gradient by every layer's result. From it and the layer's inputs follow, per
record, the norm alone where a layer meets one vector of each record (`chain`), and the gradient
itself where it meets several: the places of a picture. A client's sum over these is one product
of the records' clipping factors with their gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import packing_of_network
from fl_shuffle.gradients.chain import ChainEngine, Pass
from fl_shuffle.gradients.engine import Batch, GradientEngine, Loss, cross_entropy
from fl_shuffle.gradients.general import GeneralEngine
from fl_shuffle.gradients.kernels import FLUSHED, Views, clip_factor, powers_of
from fl_shuffle.gradients.networks.graph import Network
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords, without_nonfinite_
from fl_shuffle.gradients.rounding import length_error


class NetworkEngine(ChainEngine):
    """Feed-forward networks of known layers (`graph.network_of`).

    To a chain's sums a layer whose gradients are written out is a linear one with a single output:
    its inputs are the gradients, its errors the clipping factors.
    """

    def __init__(
        self,
        module: nn.Module,
        network: Network,
        *,
        clip: str,
        norm: int,
        device: torch.device,
        loss: Loss | None,
    ) -> None:
        layers = tuple(layer for part in network.layers for layer in part.layers)
        super().__init__(module, layers, clip=clip, norm=norm, device=device, loss=loss)
        self._network = network
        # Several local steps take every client to parameters of its own.
        self._apart = GeneralEngine(module, clip="none", norm=norm, device=device, loss=loss)
        self.packing = self.sum_packing = packing_of_network(network, self.dimension)

    @property
    def path(self) -> str:
        return "closed-form network"

    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        return self._network.classes

    def _length_error(self) -> float:
        terms = max(part.terms for part in self._network.layers)
        return length_error(terms + len(self._layers), self.norm)

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, bounds: NDArray[np.int64]
    ) -> Batch:
        shape = self._network.shape
        if inputs.dtype != torch.float32 or tuple(inputs.shape[1:]) != shape:
            raise InvalidValueError(
                "inputs",
                f"{inputs.dtype} {list(inputs.shape)}",
                f"must be float32 {['N', *shape]}",
            )
        return GradientEngine._batch(self, parameters, inputs, labels, bounds)

    def _block_means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        super()._block_means(parameters, batch, rows, tally)
        for part in self._network.layers:
            part.in_order(rows)

    def _block_update(
        self, parameters: Tensor, batch: Batch, steps: int, learning_rate: float, rows: Tensor
    ) -> None:
        self._apart._block_update(parameters, batch, steps, learning_rate, rows)

    # Sums go by rows: patches have weights of their own.
    _block_sum = GradientEngine._block_sum

    def _pass(
        self, views: list[Views], batch: Batch, index: Tensor | None,
        shares: Tensor, limits: Tensor | None,
    ) -> Pass:  # fmt: skip
        x = self._sums.buffer("records", *batch.inputs.shape)
        labels, unusable = batch.labels, batch.unusable
        if index is None:
            x.copy_(batch.inputs)
        else:
            torch.index_select(batch.inputs, 0, index, out=x)
            labels = labels[index]
            unusable = None if unusable is None else unusable[index]
        trace = self._network.run(views, x)
        with torch.enable_grad():
            losses = (self.loss or cross_entropy)(trace.logits, labels)
            if losses.shape != labels.shape[:1]:
                raise InvalidValueError(
                    "loss", list(losses.shape), f"must return one loss per record, [{len(labels)}]"
                )
            errors = torch.autograd.grad(
                losses.sum(), trace.results, allow_unused=True, materialize_grads=True
            )
        found = [
            part.gradients(kept, error)
            for part, kept, error in zip(self._network.layers, trace.kept, errors, strict=True)
        ]
        weights, marks = shares.clone(), None
        if limits is not None:
            weights.mul_(clip_factor(self._lengths_of(found, trace.kept, errors), limits))
        if unusable is not None:
            weights[unusable] = torch.nan
        if limits is not None:
            written = [gradients for part in found for gradients in part]
            marks = without_nonfinite_(weights, *written, *trace.kept, *errors)
        inputs, scaled = list[Tensor](), list[Tensor]()
        for gradients, kept, error in zip(found, trace.kept, errors, strict=True):
            inputs += [values.flatten(1) for values in gradients] or [kept.contiguous()]
            scaled += [weights[None]] * len(gradients) or [(error * weights[:, None]).T]
        return Pass(inputs, scaled, marks)

    def _lengths_of(
        self, found: list[list[Tensor]], kept: list[Tensor], errors: tuple[Tensor, ...]
    ) -> Tensor:
        """Norms [n] of the records' gradients over all parameters."""
        total = torch.zeros(len(errors[0]), device=self.device)
        for part, gradients, x, error in zip(
            self._network.layers, found, kept, errors, strict=True
        ):
            for values in gradients:
                total += power(values, self.norm)
            if not gradients:
                of_input = powers_of(x, self.norm, torch.empty_like(x))
                if part.layers[0].bias is not None:
                    of_input += 1.0
                total.addcmul_(powers_of(error, self.norm, torch.empty_like(error)), of_input)
        return total.sqrt_() if self.norm == 2 else total


def power(gradients: Tensor, norm: int) -> Tensor:
    """Squared l2 norms, or l1 norms, [n] of gradients [n, rows, columns]: row by row, then all."""
    if norm == 1:
        return gradients.abs().sum(2).sum(1)
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=2).square_().sum(1)
    return squares.add_(gradients[0].numel() * FLUSHED)
