"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.extras import installed
from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.engine import Batch, Loss, SumPlan
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
    powers: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: NDArray[np.float32]
    shape: Shape
    tile: NDArray[np.float32]
    zeros: NDArray[np.bool_]


class CompiledLinear(ChainEngine):
    """Modules Flatten? Linear, cross entropy, on the processor.

    Every number of a client's row is a chain of operations over its own records in their order,
    written out as such: blocks do not matter, and a call is one pass. Sums go by blocks.
    """

    _kept: Tensor | None = None
    _kept_powers: NDArray[np.float32] | None = None

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
            given.powers,
            given.labels,
            np.concatenate([[0], np.cumsum(batch.sizes)]),
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
        self, parameters: Tensor, batch: Batch, plan: SumPlan, tally: NonfiniteRecords
    ) -> Tensor:
        from fl_shuffle.gradients import linear_kernel

        given = self._given(parameters, batch, self.dimension)
        sums = np.empty((2, self.dimension))
        found = linear_kernel.linear_sum(
            given.inputs,
            given.powers,
            given.labels,
            plan.bounds,
            plan.starts,
            given.weights,
            given.shape,
            self.norm,
            plan.shares.numpy(),
            plan.limits.numpy(),
            plan.grid,
            sums,
            given.tile,
            given.zeros,
        )
        if found:
            tally.add(torch.from_numpy(given.zeros), batch.sizes)
        return torch.from_numpy(sums[0])

    def keep(self, inputs: Tensor) -> None:
        self._kept = inputs.reshape(len(inputs), self._layers[0].fan_in).contiguous()
        self._kept_powers = None

    def _powers(self, inputs: Tensor) -> NDArray[np.float32]:
        """Each record's `input_powers`: of kept records, computed once."""
        kept = self._kept
        if kept is not None and len(kept):
            first, rest = divmod(inputs.data_ptr() - kept.data_ptr(), kept[0].nbytes)
            if rest == 0 and 0 <= first <= len(kept) - len(inputs):
                if self._kept_powers is None:
                    self._kept_powers = self._new_powers(kept)
                return self._kept_powers[first : first + len(inputs)]
        return self._new_powers(inputs)

    def _new_powers(self, inputs: Tensor) -> NDArray[np.float32]:
        from fl_shuffle.gradients import linear_kernel

        powers = np.empty(len(inputs), np.float32)
        biased = self._layers[0].bias is not None
        linear_kernel.input_powers(inputs.numpy(), self.norm, biased, powers)
        return powers

    def _given(self, parameters: Tensor, batch: Batch, stride: int) -> _Given:
        # Loading numba takes most of a second: only a run that computes with it pays.
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.compiled.softmax import TILE
        from fl_shuffle.gradients import linear_kernel

        inputs, labels, layer = batch.inputs.contiguous(), batch.labels, self._layers[0]
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        weights = self._panels(parameters.numpy(), LANES)
        panels = len(weights) // (layer.fan_in + 1)
        tile = self._sums.buffer("tile", panels * LANES + 4, TILE)
        return _Given(
            inputs.numpy(),
            self._powers(inputs) if batch.limits is not None else np.empty(0, np.float32),
            labels.contiguous().numpy(),
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
