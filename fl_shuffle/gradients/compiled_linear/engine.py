"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.gradients.blocks import SumPlan
from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.engine import Batch, Loss, PreparedSum
from fl_shuffle.gradients.kernels import steady_arithmetic
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
    _kept_products: NDArray[np.float64] | None = None

    @property
    def path(self) -> str:
        return "closed-form linear, compiled"

    def _flat(self, inputs: Tensor) -> Tensor:
        # As the loops read them, and as kept records are found by where they begin.
        return super()._flat(inputs).contiguous()

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        return move_error_float32(sizes, TOLERANCES.compiled_chain)

    def _means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        from fl_shuffle.gradients.compiled_linear.kernel import linear_means
        from fl_shuffle.gradients.compiled_linear.prepared_sum import count_marked

        span = (len(rows) - 1) * rows.stride(0) + self.dimension
        bounds = np.concatenate([[0], np.cumsum(batch.sizes)])
        clips = self.clips(batch)
        linear_means(
            self.records_of(batch, bounds),
            self.model()._replace(parameters=parameters.numpy()),
            clips,
            self.tile(),
            self._sums.buffer("total", self.dimension, dtype=torch.float64).numpy(),
            torch.as_strided(rows, (span,), (1,)).numpy(),
            rows.stride(0),
        )
        count_marked(clips, batch, tally)

    @property
    def sums_clipped_means(self) -> bool:
        return self.clip != "average"

    def _by_pairs(self, records: Tensor, plan: SumPlan) -> NDArray[np.bool_] | None:
        """Where it pays that the lengths of clients' means come from `input_products`, and no
        record is so long that what rounding leaves where records cancel would show. Which way a
        block goes hangs on the block alone, and so do its bits."""
        from fl_shuffle.compiled.softmax import TILE

        clips, first = plan.mean_clips, plan.starts[:-1]
        if clips is None or clips.norm != 2:
            return None
        largest = np.maximum.reduceat(plan.sizes, first)
        most = TOLERANCES.compiled_pairs_per_feature * self._layers[0].fan_in
        few = (largest <= TILE) & (largest * largest <= most)
        if not few.any():
            return np.asarray(few)
        longest = np.sqrt(np.maximum.reduceat(self._powers(records), plan.bounds[first]))
        radii = np.minimum.reduceat(clips.radii.min(axis=0), first)
        near = np.isfinite(longest) & (longest <= TOLERANCES.compiled_pairs_reach * radii)
        return np.asarray(few & near)

    def prepared_sum(self, inputs: Tensor, labels: Tensor, plan: SumPlan) -> PreparedSum:
        from fl_shuffle.gradients.compiled_linear.prepared_sum import LinearSum, Part

        self._check_records(inputs, labels, plan.bounds)
        with steady_arithmetic(self.device), torch.no_grad():
            # Closed forms know their classes without parameters.
            batch = self._batch(torch.empty(0), inputs, labels, plan.sizes)
            batch = replace(batch, limits=plan.limits)
            plan = replace(plan, pairs=self._by_pairs(batch.inputs, plan))
            parts = []
            for part, *place in plan.stretches:
                own = batch if part is plan else batch.part(*place)
                products, first = np.empty((0, 0)), 0
                if part.by_pairs:
                    products, first = self._products(own.inputs, int(own.sizes.max()))
                records = self.records_of(own, part.bounds)
                parts.append(Part(own, part, records, products, first))
        return LinearSum(self, parts)

    def keep(self, inputs: Tensor) -> None:
        self._kept = inputs.reshape(len(inputs), self._layers[0].fan_in).contiguous()
        self._kept_powers = self._kept_products = None

    def _place(self, inputs: Tensor) -> slice | None:
        """Where these records lie among the kept ones, if they do."""
        kept = self._kept
        if kept is None or not len(kept):
            return None
        first, rest = divmod(inputs.data_ptr() - kept.data_ptr(), kept[0].nbytes)
        inside = rest == 0 and 0 <= first <= len(kept) - len(inputs)
        return slice(first, first + len(inputs)) if inside else None

    def _powers(self, inputs: Tensor) -> NDArray[np.float32]:
        """Each record's `input_powers`: of kept records, computed once."""
        place = self._place(inputs)
        if place is None or self._kept is None:
            return self._new_powers(inputs)
        if self._kept_powers is None:
            self._kept_powers = self._new_powers(self._kept)
        return self._kept_powers[place]

    def _new_powers(self, inputs: Tensor) -> NDArray[np.float32]:
        from fl_shuffle.gradients.compiled_linear.kernel import input_powers

        powers = np.empty(len(inputs), np.float32)
        biased = self._layers[0].bias is not None
        input_powers(inputs.numpy(), self.norm, biased, powers)
        return powers

    def _products(self, inputs: Tensor, most: int) -> tuple[NDArray[np.float64], int]:
        """`input_products` of these records, and where they begin: of all that are kept, computed
        once."""
        place = self._place(inputs)
        if place is None or self._kept is None:
            return self._new_products(inputs, most), 0
        products = self._kept_products
        if products is None or len(products) < most:
            products = self._kept_products = self._new_products(self._kept, most)
        return products[:most], place.start

    def _new_products(self, inputs: Tensor, most: int) -> NDArray[np.float64]:
        from fl_shuffle.compiled.softmax import TILE
        from fl_shuffle.gradients.compiled_linear.sums import input_products

        # Whole tiles are worked on, to the end of the last one.
        products = np.zeros((most, len(inputs) + TILE))
        input_products(inputs.numpy(), self._layers[0].bias is not None, products)
        return products

    # What the compiled loops take: see `kernel`. Loading numba takes most of a second: only a run
    # that computes with it pays.

    def records_of(self, batch: Batch, bounds: NDArray[np.int64]) -> Records:
        """Its records, client k's from bounds[k] on."""
        from fl_shuffle.gradients.compiled_linear.kernel import Records

        inputs, labels = batch.inputs, batch.labels
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        powers = np.empty(0, np.float32) if batch.limits is None else self._powers(inputs)
        return Records(inputs.numpy(), powers, labels.contiguous().numpy(), bounds)

    def model(self) -> Model:
        """The model, its parameters left out, with memory to be laid out in."""
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.gradients.compiled_linear.kernel import Model

        layer = self._layers[0]
        weights = torch.empty(self._panels() * (layer.fan_in + 1), LANES).numpy()
        return Model(np.empty(0, np.float32), weights, layer.fan_out, layer.bias is not None)

    def clips(self, batch: Batch) -> Clips:
        """To what its records are clipped, with room for marks."""
        from fl_shuffle.gradients.compiled_linear.kernel import Clips

        limits = batch.limits
        return Clips(
            0 if limits is None else self.norm,
            np.ones(len(batch.sizes), np.float32) if limits is None else limits.numpy(),
            np.empty(len(batch.labels), np.bool_),
            np.empty(1, np.int64),
        )

    def tile(self) -> Tile:
        """A tile to work on; contents arbitrary."""
        from fl_shuffle.compiled.matrix_products import LANES
        from fl_shuffle.compiled.softmax import TILE
        from fl_shuffle.gradients.compiled_linear.kernel import Tile

        # torch's memory is aligned to cache lines.
        tile = torch.empty(self._panels() * LANES + 4, TILE).numpy()
        return Tile(tile[:-4], tile[-4], tile[-3], tile[-2], tile[-1])

    def _block_means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        self._means(parameters, batch, rows, tally)

    def _panels(self) -> int:
        from fl_shuffle.compiled.matrix_products import LANES

        return -(-self._layers[0].fan_out // LANES)
