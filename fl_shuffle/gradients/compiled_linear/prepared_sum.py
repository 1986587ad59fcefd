"""Sums over certain clients' records, ready for any parameters: loops alone are left to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.compiled.matrix_products import APART
from fl_shuffle.compiled.softmax import TILE
from fl_shuffle.gradients.blocks import SumPlan
from fl_shuffle.gradients.compiled_linear.kernel import Clips, Records
from fl_shuffle.gradients.compiled_linear.sums import MeanClips, linear_sum
from fl_shuffle.gradients.compiled_linear.sums_of_means import linear_sum_of_clipped_means
from fl_shuffle.gradients.engine import Batch
from fl_shuffle.gradients.kernels import steady_arithmetic
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.tolerances import TOLERANCES

if TYPE_CHECKING:
    from fl_shuffle.gradients.compiled_linear.engine import CompiledLinear


class Part(NamedTuple):
    """Blocks of a sum that are done in one way, as the loops take them: `products` and `first` are
    `MeanClips.input_products` (none, where lengths do not come from pairs) and where they begin."""

    batch: Batch
    plan: SumPlan
    records: Records
    products: NDArray[np.float64]
    first: int


class LinearSum:
    """What `CompiledLinear.prepared_sum` returns. Every thread has its own working memory."""

    def __init__(self, engine: CompiledLinear, parts: list[Part]) -> None:
        self._engine = engine
        self._parts = parts
        self._of_thread = threading.local()

    def __call__(self, parameters: Tensor, tally: NonfiniteRecords) -> Tensor:
        # Operations of torch hand the interpreter to other nodes' threads, and wait until they get
        # it back: a round that takes milliseconds took a sixth longer with them.
        self._engine.check_parameters(parameters)
        if not hasattr(self._of_thread, "loops"):
            self._of_thread.loops = [self._loop_of(part) for part in self._parts]
        total = np.zeros(self._engine.dimension)
        with steady_arithmetic(self._engine.device), torch.no_grad():
            values = parameters.numpy()
            for loop in self._of_thread.loops:
                total += loop.sum_at(values, tally)
        return torch.from_numpy(total)

    def _loop_of(self, part: Part) -> _OfRecords | _OfRows:
        rows = part.plan.mean_clips is not None and not part.plan.by_pairs
        return (_OfRows if rows else _OfRecords)(self._engine, part)


class _OfRecords:
    """Sums in one pass over the records, of records that are clipped, or of means by pairs."""

    def __init__(self, engine: CompiledLinear, part: Part) -> None:
        self._part = part
        self._clips = engine.clips(part.batch)
        self._model = engine.model()
        self._mean_clips = _mean_clips(part, self._model.classes)
        self._sums: NDArray[np.float64] = np.empty((2, engine.dimension))
        shares = part.plan.shares.numpy()
        self._rest = engine.tile(), part.plan.starts, shares, part.plan.grid, self._sums

    def sum_at(
        self, parameters: NDArray[np.float32], tally: NonfiniteRecords
    ) -> NDArray[np.float64]:
        model = self._model._replace(parameters=parameters)
        linear_sum(self._part.records, model, self._clips, self._mean_clips, *self._rest)
        if self._part.batch.limits is not None:
            count_marked(self._clips, self._part.batch, tally)
        if self._part.plan.mean_clips is not None:
            tally.add_clients(int(np.count_nonzero(self._mean_clips.invalid)))
        return np.asarray(self._sums[0])


class _OfRows:
    """Sums of clipped means, whose rows are made, a few at a time."""

    def __init__(self, engine: CompiledLinear, part: Part) -> None:
        self._part = part
        self._clips = engine.clips(part.batch)
        self._model = engine.model()
        self._invalid = np.empty(len(part.batch.sizes), np.bool_)
        self._sums: NDArray[np.float64] = np.empty((3, engine.dimension))
        together = max(1, TOLERANCES.compiled_mean_numbers // engine.dimension)
        self._rest = (
            engine.tile(),
            part.plan.mean_clips,
            part.plan.shares.numpy(),
            part.plan.starts,
            part.plan.grid,
            torch.empty(together, engine.dimension).numpy(),
            self._invalid,
            self._sums,
        )

    def sum_at(
        self, parameters: NDArray[np.float32], tally: NonfiniteRecords
    ) -> NDArray[np.float64]:
        model = self._model._replace(parameters=parameters)
        linear_sum_of_clipped_means(self._part.records, model, self._clips, *self._rest)
        count_marked(self._clips, self._part.batch, tally)
        tally.add_clients(int(np.count_nonzero(self._invalid)))
        return np.asarray(self._sums[0])


def _mean_clips(part: Part, classes: int) -> MeanClips:
    clips, apart = part.plan.mean_clips, len(part.products)
    # torch's memory is aligned to cache lines, and so are rows of whole ones.
    beyond = -(-(apart + APART - 1) // 8) * 8
    return MeanClips(
        part.products,
        part.first,
        # Clipped to one after the other they are clipped to the smallest.
        np.empty(0) if clips is None else clips.radii.min(axis=0),
        1.0 if clips is None else clips.inflation,
        np.empty(len(part.batch.sizes), np.bool_),
        torch.empty((classes if apart else 0, TILE + beyond), dtype=torch.float64).numpy(),
        torch.empty((APART, TILE), dtype=torch.float64).numpy(),
        torch.empty(TILE, dtype=torch.float64).numpy(),
        np.empty(TILE, np.int64),
    )


def count_marked(clips: Clips, batch: Batch, tally: NonfiniteRecords) -> None:
    """Count the records that the loops marked."""
    if clips.marked[0]:
        tally.add(torch.from_numpy(clips.zeros), batch.sizes)
