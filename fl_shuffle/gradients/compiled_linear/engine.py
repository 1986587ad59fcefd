"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.engine import Batch, Loss, SumPlan
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import move_error_float32
from fl_shuffle.gradients.structure import Layer
from fl_shuffle.gradients.tolerances import TOLERANCES
from fl_shuffle.plugins import installed

if TYPE_CHECKING:
    from fl_shuffle.gradients.compiled_linear.kernel import Clips, Model, Records, Tile


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
        and weights <= TOLERANCES.compiled_max_weights
        and layers[0].fan_out <= TOLERANCES.compiled_max_classes
        and records * weights >= TOLERANCES.compiled_min_products
        and installed("numba")
    )


def load_loops() -> None:
    """Load numba, with a small loop: nearly all of what the first call would wait for."""
    from fl_shuffle.gradients.compiled_linear.kernel import input_powers

    input_powers(np.zeros((1, 1), np.float32), 2, False, np.empty(1, np.float32))


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
        return move_error_float32(sizes, TOLERANCES.compiled_chain)

    def _means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        from fl_shuffle.gradients.compiled_linear.kernel import linear_means

        span = (len(rows) - 1) * rows.stride(0) + self.dimension
        bounds = np.concatenate([[0], np.cumsum(batch.sizes)])
        clips = self._clips(batch)
        linear_means(
            self._records(batch, bounds),
            self._model(parameters),
            clips,
            self._tile(),
            self._sums.buffer("total", self.dimension, dtype=torch.float64).numpy(),
            torch.as_strided(rows, (span,), (1,)).numpy(),
            rows.stride(0),
        )
        _count(clips, batch, tally)

    def _sum(
        self, parameters: Tensor, batch: Batch, plan: SumPlan, tally: NonfiniteRecords
    ) -> Tensor:
        from fl_shuffle.gradients.compiled_linear.kernel import linear_sum

        sums = np.empty((2, self.dimension))
        clips = self._clips(batch)
        linear_sum(
            self._records(batch, plan.bounds),
            self._model(parameters),
            clips,
            self._tile(),
            plan.starts,
            plan.shares.numpy(),
            plan.grid,
            sums,
        )
        _count(clips, batch, tally)
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
        from fl_shuffle.gradients.compiled_linear.kernel import input_powers

        powers = np.empty(len(inputs), np.float32)
        biased = self._layers[0].bias is not None
        input_powers(inputs.numpy(), self.norm, biased, powers)
        return powers

    # What the compiled loops take: see `kernel`. Loading numba takes most of a second: only a run
    # that computes with it pays.

    def _records(self, batch: Batch, bounds: NDArray[np.int64]) -> Records:
        from fl_shuffle.gradients.compiled_linear.kernel import Records

        inputs, labels = batch.inputs.contiguous(), batch.labels
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        powers = np.empty(0, np.float32) if batch.limits is None else self._powers(inputs)
        return Records(inputs.numpy(), powers, labels.contiguous().numpy(), bounds)

    def _model(self, parameters: Tensor) -> Model:
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.gradients.compiled_linear.kernel import Model

        layer = self._layers[0]
        panels = self._panels(parameters.numpy(), LANES)
        return Model(panels, layer.fan_out, layer.bias is not None)

    def _clips(self, batch: Batch) -> Clips:
        from fl_shuffle.gradients.compiled_linear.kernel import Clips

        limits = batch.limits
        return Clips(
            0 if limits is None else self.norm,
            np.ones(len(batch.sizes), np.float32) if limits is None else limits.numpy(),
            np.zeros(len(batch.labels), np.bool_),
            np.zeros(1, np.int64),
        )

    def _tile(self) -> Tile:
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.compiled.softmax import TILE
        from fl_shuffle.gradients.compiled_linear.kernel import Tile

        classes = -(-self._layers[0].fan_out // LANES) * LANES
        tile = self._sums.buffer("tile", classes + 4, TILE).zero_().numpy()
        return Tile(tile[:-4], tile[-4], tile[-3], tile[-2], tile[-1])

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


def _count(clips: Clips, batch: Batch, tally: NonfiniteRecords) -> None:
    if clips.marked[0]:
        tally.add(torch.from_numpy(clips.zeros), batch.sizes)
