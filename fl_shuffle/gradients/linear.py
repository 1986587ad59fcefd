"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.extras import installed
from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.engine import Batch, Loss
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import move_error_float32
from fl_shuffle.gradients.structure import Layer

# The weights are read again for every fourth record: they must stay in the second-level cache.
LARGEST_WEIGHTS = 1 << 16
# With more classes a panel's errors leave the first-level cache.
LARGEST_CLASSES = 32
# Below so many multiplications a round, loading the compiled loop takes longer than it saves.
WORTH_COMPILING = 1 << 24


def compiles(
    layers: tuple[Layer, ...], device: torch.device, loss: Loss | None, records: int
) -> bool:
    """Whether `CompiledLinear` serves this model, `records` records a round make it pay, and numba
    is there to compile it."""
    weights = layers[0].fan_in * layers[0].fan_out
    return (
        len(layers) == 1
        and device.type == "cpu"
        and loss is None
        and weights <= LARGEST_WEIGHTS
        and layers[0].fan_out <= LARGEST_CLASSES
        and records * weights >= WORTH_COMPILING
        and installed("numba")
    )


class CompiledLinear(ChainEngine):
    """Modules Flatten? Linear, cross entropy, on the processor.

    Every number of a client's row is a chain of operations over its own records in their order,
    written out as such: blocks do not matter, and a call is one pass.
    """

    @property
    def path(self) -> str:
        return "closed-form linear, compiled"

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        from fl_shuffle.gradients.linear_kernel import CHAIN

        return move_error_float32(sizes, CHAIN)

    def _means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        # Loading numba takes most of a second: only a run that computes with it pays.
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.gradients import linear_kernel

        labels, limits = batch.labels, batch.limits
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        layer = self._layers[0]
        span = (len(rows) - 1) * rows.stride(0) + self.dimension
        weights = self._panels(parameters.numpy(), LANES)
        panels = len(weights) // (layer.fan_in + 1)
        bounds = np.concatenate([[0], np.cumsum(batch.sizes)])
        zeros = np.zeros(len(labels), np.bool_)
        found = linear_kernel.linear_means(
            batch.inputs.contiguous().numpy(),
            labels.contiguous().numpy(),
            bounds,
            weights,
            linear_kernel.Shape(layer.fan_out, rows.stride(0), layer.bias is not None),
            self.norm if limits is not None else 0,
            np.ones(len(rows), np.float32) if limits is None else limits.numpy(),
            torch.as_strided(rows, (span,), (1,)).numpy(),
            self._sums.buffer("tile", panels * LANES + 4, linear_kernel.TILE).zero_().numpy(),
            self._sums.buffer("total", self.dimension, dtype=torch.float64).numpy(),
            zeros,
        )
        if found:
            tally.add(torch.from_numpy(zeros), batch.sizes)

    def _block_means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        self._means(parameters, batch, rows, tally)

    def _panels(self, parameters: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
        """Weights of `lanes` classes each, turned round, and biases, as the loop wants them."""
        layer = self._layers[0]
        panels = -(-layer.fan_out // lanes)
        laid = np.zeros((panels * lanes, layer.fan_in + 1), np.float32)
        end = layer.fan_out * layer.fan_in
        laid[: layer.fan_out, :-1] = parameters[:end].reshape(layer.fan_out, layer.fan_in)
        if layer.bias is not None:
            laid[: layer.fan_out, -1] = parameters[end:]
        turned = laid.reshape(panels, lanes, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(turned).reshape(-1, lanes)
