"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.gradients.engine import GradientBatch, Loss
from fl_shuffle.gradients.kernels import steady_arithmetic
from fl_shuffle.gradients.networks.chain import Network
from fl_shuffle.gradients.networks.engine import NetworkEngine
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import move_error_float32

if TYPE_CHECKING:
    from fl_shuffle.gradients.softmax_loops import MeanClips, RecordArrays

MOST_WEIGHTS = 1 << 16
"""Weights are read again for every tile of records: they must stay in the second-level cache."""
MOST_CLASSES = 32
"""With more classes a tile's errors leave the first-level cache."""
LEAST_PRODUCTS = 1 << 24
"""Below this many multiplications per round, loading the compiled loop takes longer than it
saves."""

NONE = np.zeros(0)
"""What loops get in the place of arrays that they do not look at."""

PreparedSum = Callable[[Tensor, NonfiniteRecords], Tensor]
"""(parameters [d], tally) -> sum [d]: that of certain clients."""


def compiles(network: Network, device: torch.device, loss: Loss | None, records: int) -> bool:
    """Return whether `SoftmaxRegression` serves this model, and `records` records a round make it
    pay."""
    if not network.linear or device.type != "cpu" or loss is not None:
        return False
    weights = network.layers[0].layers[0].fan_in * network.classes
    small = weights <= MOST_WEIGHTS and network.classes <= MOST_CLASSES
    return small and records * weights >= LEAST_PRODUCTS


@dataclass(frozen=True)
class SumPlan:
    """What each client of a sum counts, and its clips.

    `offsets` [k + 1]: where the clients' records begin; `clip_radius` [k] as for
    `client_means`; `weights` [k]: of their means; `grid`: of the blocks' sums (`rounding.sum_grid`
    of what the whole sum may reach); `mean_clips` [k]: to what means are clipped, or None.
    """

    offsets: NDArray[np.int64]
    clip_radius: NDArray[np.float64]
    weights: NDArray[np.float64]
    grid: float
    mean_clips: NDArray[np.float64] | None = None


class SoftmaxRegression(NetworkEngine):
    """Modules Flatten? Linear, cross entropy, on the processor."""

    def __init__(self, module: nn.Module, network: Network, **options: Any) -> None:
        super().__init__(module, network, **options)
        # Load numba: nearly all of what the first call would wait for.
        import fl_shuffle.gradients.softmax_loops as loops

        self._loops = loops

    @property
    def path(self) -> str:
        return "closed-form linear, compiled"

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        return move_error_float32(sizes, self._loops.TILE)

    def _records(self, batch: GradientBatch, shares: NDArray[np.float64]) -> RecordArrays:
        """Return the batch's records, each of which counts its client's of the shares [k]."""
        labels = batch.labels
        if batch.unusable is not None:
            labels = labels.masked_fill(batch.unusable, -1)
        limits = np.ones(len(batch.sizes)) if batch.limits is None else batch.limits.numpy()
        return self._loops.RecordArrays(
            batch.inputs.detach().reshape(len(labels), -1).contiguous().numpy(),
            labels.contiguous().numpy(),
            np.concatenate([[0], np.cumsum(batch.sizes)]),
            0 if batch.limits is None else self.norm,
            np.repeat(np.float32(limits), batch.sizes),
            np.repeat(np.float32(shares), batch.sizes),
            np.zeros(len(labels), np.bool_),
        )

    def _means(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        records = self._records(batch, 1.0 / batch.sizes)
        classes, blocks = self._network.classes, self.packing.starts(batch.sizes)
        clips = self._clips(batch.mean_clips)
        own = records, parameters.numpy(), classes, blocks, clips, rows.numpy()
        if self._loops.client_means(*own):
            tally.add(torch.from_numpy(records.zeros), batch.sizes)
        tally.add_clients(int(np.count_nonzero(clips.invalid)))

    def _clips(
        self, clips: NDArray[np.float64] | None, weights: Any = NONE, inputs: Any = NONE[:, None]
    ) -> MeanClips:
        """Return to what a call's loop clips means, with marks of its own for those that are not
        finite; `weights` and `inputs` are for sums."""
        norm, radii = (0, NONE) if clips is None else (self.norm, clips)
        return self._loops.MeanClips(norm, radii, weights, inputs, np.zeros(len(radii), np.bool_))

    def prepared_sum(self, inputs: Tensor, labels: Tensor, plan: SumPlan) -> PreparedSum:
        """Return a function that adds up the plan's clients at any parameters: float64 [d], each
        client's weight times its row of `client_means`, which is clipped if the plan clips means.

        Equal to that sum up to float32's rounding. Each block's sum is rounded to a multiple of the
        grid, so that sums of blocks are exact: the bits of a round's sum do not depend on how calls
        share its blocks. Several threads may call what this returns.
        It and this raise `InvalidValueError` for shapes, types or radii that do not fit.
        """
        bounds = self._check_bounds(plan.offsets)
        self._check_records(inputs, labels, bounds)
        sizes = np.diff(bounds)
        batch = self._batch(torch.empty(0), inputs, labels, sizes)
        batch = replace(batch, limits=self._limits(plan.clip_radius, sizes))
        ready = self._records(batch, (plan.weights if plan.mean_clips is None else 1.0) / sizes)
        blocks, loops = self.packing.starts(sizes), self._loops
        # Not of clipped records: replacing one must not move the others' share of their mean.
        paired = plan.mean_clips is not None and self.norm == 2 and self.clip == "none"
        most = min(sizes.max(), loops.MOST_PAIRED) if paired else 0
        products = np.zeros((most, len(labels) + loops.TILE), np.float32)
        bias = float(self.dimension > self._network.classes * ready.x.shape[1])
        loops.input_products(ready.x, ready.offsets, bias, products)

        def sum_at(parameters: Tensor, tally: NonfiniteRecords) -> Tensor:
            self.check_parameters(parameters)
            # Several threads may call: each has marks and a sum of its own.
            records = ready._replace(zeros=np.zeros(len(ready.labels), np.bool_))
            clips = self._clips(plan.mean_clips, plan.weights, products)
            total, classes = np.empty(self.dimension), self._network.classes
            own = records, parameters.detach().numpy(), classes, blocks, clips, plan.grid, total
            with steady_arithmetic(self.device):
                bad = loops.sum_of_clients(*own)
            if bad:
                tally.add(torch.from_numpy(records.zeros), sizes)
            tally.add_clients(int(np.count_nonzero(clips.invalid)))
            return torch.from_numpy(total)

        return sum_at
