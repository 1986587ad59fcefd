"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from fl_shuffle.gradients.linear_kernel import Shape

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


class _Given(NamedTuple):
    """What the compiled loops take of a call: see `linear_kernel.linear_means`."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    bounds: NDArray[np.int64]
    weights: NDArray[np.float32]
    shape: Shape
    tile: NDArray[np.float32]
    zeros: NDArray[np.bool_]


class CompiledLinear(ChainEngine):
    """Modules Flatten? Linear, cross entropy, on the processor.

    Every number of a client's row is a chain of operations over its own records in their order,
    written out as such: blocks do not matter, and a call is one pass. Sums go by blocks.
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
        from fl_shuffle.gradients import linear_kernel

        limits = batch.limits
        span = (len(rows) - 1) * rows.stride(0) + self.dimension
        given = self._given(parameters, batch, rows.stride(0))
        found = linear_kernel.linear_means(
            given.inputs,
            given.labels,
            given.bounds,
            given.weights,
            given.shape,
            self.norm if limits is not None else 0,
            np.ones(len(rows), np.float32) if limits is None else limits.numpy(),
            torch.as_strided(rows, (span,), (1,)).numpy(),
            given.tile,
            self._sums.buffer("total", self.dimension, dtype=torch.float64).numpy(),
            given.zeros,
        )
        if found:
            tally.add(torch.from_numpy(given.zeros), batch.sizes)

    def _sum(
        self,
        parameters: Tensor,
        batch: Batch,
        shares: Tensor,
        grid: float,
        tally: NonfiniteRecords,
    ) -> Tensor:
        from fl_shuffle.gradients import linear_kernel

        assert batch.limits is not None
        given = self._given(parameters, batch, self.dimension)
        sums = np.empty((2, self.dimension))
        found = linear_kernel.linear_sum(
            given.inputs,
            given.labels,
            given.bounds,
            self.sum_packing.starts(batch.sizes),
            given.weights,
            given.shape,
            self.norm,
            shares.numpy(),
            batch.limits.numpy(),
            grid,
            sums,
            given.tile,
            given.zeros,
        )
        if found:
            tally.add(torch.from_numpy(given.zeros), batch.sizes)
        return torch.from_numpy(sums[0])

    def _given(self, parameters: Tensor, batch: Batch, stride: int) -> _Given:
        # Loading numba takes most of a second: only a run that computes with it pays.
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.compiled.softmax import TILE
        from fl_shuffle.gradients import linear_kernel

        labels, layer = batch.labels, self._layers[0]
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        weights = self._panels(parameters.numpy(), LANES)
        panels = len(weights) // (layer.fan_in + 1)
        tile = self._sums.buffer("tile", panels * LANES + 4, TILE)
        return _Given(
            batch.inputs.contiguous().numpy(),
            labels.contiguous().numpy(),
            np.concatenate([[0], np.cumsum(batch.sizes)]),
            weights,
            linear_kernel.Shape(layer.fan_out, stride, layer.bias is not None),
            tile.zero_().numpy(),
            np.zeros(len(labels), np.bool_),
        )

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
