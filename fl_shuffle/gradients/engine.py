"""The engine's contract: what goes in, what comes out, and what every path shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError, require_integer, require_real
from fl_shuffle.gradients.blocks import Packing
from fl_shuffle.gradients.kernels import aligned, steady_arithmetic
from fl_shuffle.gradients.local_training import LocalTraining
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.gradients.structure import check_module

RADII = 1e-12, 1e12
"""Clip radii allowed, so that float32 arithmetic on clipped gradients neither overflows nor
vanishes."""
OTHER_ROUNDINGS = 1.0 + 2.0**-20
"""Covers a handful of single roundings (a quotient, a product, the radius itself, 1/B), what counts
as zero below float32's range, and terms of second order: less than sixteen half ulps together. May
be raised, never lowered."""

Offsets = Tensor | NDArray[np.int64]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [N, C], labels) -> losses [N], each depending on its own record only. Labels are int64
[N] (classes) or float32 [N, k] (numbers to predict)."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return losses [N] of logits [N, C] and labels [N]."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class GradientBatch:
    """Clients of `sizes` [k] records each: `inputs` [n, ...] and `labels` [n], client by client.

    `unusable` [n] marks records whose label is no class (their label here is 0); None if none is.
    `limits` [k]: the length to which each client's records are clipped, `mean_clips` [k]: that to
    which the means of a whole call are; None for no clipping.
    """

    inputs: Tensor
    labels: Tensor
    unusable: Tensor | None
    sizes: NDArray[np.int64]
    limits: Tensor | None = None
    mean_clips: NDArray[np.float64] | None = None

    def part(self, first: int, last: int, start: int, stop: int) -> GradientBatch:
        """Return the clients first .. last - 1, whose records are start .. stop - 1."""
        records = slice(start, stop)
        return GradientBatch(
            self.inputs[records],
            self.labels[records],
            None if self.unusable is None else self.unusable[records],
            self.sizes[first:last],
            None if self.limits is None else self.limits[first:last],
        )

    def records(self, chosen: NDArray[np.int64]) -> GradientBatch:
        """Return these records of a batch of one client."""
        index = torch.from_numpy(chosen).to(self.inputs.device)
        unusable = None if self.unusable is None else self.unusable[index]
        size = np.array([len(chosen)])
        return GradientBatch(self.inputs[index], self.labels[index], unusable, size)


class GradientEngine(ABC):
    """Means of clipped gradients, one row per client.

    A client's row depends on the parameters, its own records in their order, its radius, and, in
    its last bits, on the block it is computed in (`packing`). Arithmetic is float32 on one thread
    (of the processor) or on the given device; what is added up over records is float64.
    """

    def __init__(
        self,
        module: nn.Module,
        packing: Packing,
        *,
        clip: str,
        norm: int,
        device: torch.device,
        loss: Loss | None,
    ) -> None:
        self.dimension = check_module(module)
        self.packing = packing
        self.clip = clip
        self.norm = norm
        self.device = device
        self.loss = loss

    @property
    @abstractmethod
    def path(self) -> str:
        """How gradients are computed, for the log."""

    def client_means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Offsets,
        clip_radius: Tensor | NDArray[np.float64] | float = 1.0,
        nonfinite: NonfiniteRecords | None = None,
        mean_clips: NDArray[np.float64] | None = None,
    ) -> Tensor:
        """Return float32 [K, d]: row k is client k's mean gradient over its records.

        parameters: float32 [d], in `module.parameters()` order. inputs [N, ...] and labels [N]:
        client k owns rows offsets[k]:offsets[k+1], at least one. clip_radius: one number or [K],
        unused for clip "none". Clip "record" clips every record's whole gradient to
        `record_radius` before averaging, so that replacing one of B records moves the row by at
        most 2 clip_radius / B, rounding included. `mean_clips` [K]: to what rows are clipped then,
        as by `row_clips.clip_rows`. A call that begins where a block begins, and ends where one
        ends, gives its clients the bits that a call with all of them does.

        A record whose gradient is NaN, infinite, or too long for float32, or whose label is no
        class, counts as zero with clip "record", and `nonfinite` counts it, for the client's own
        log; with clip "none" some entry of its client's row is not finite. Other rows are as ever.
        Raises `InvalidValueError` for shapes, types or radii that do not fit.
        """
        bounds = self._check(parameters, inputs, labels, offsets)
        rows = torch.empty(len(bounds) - 1, self.dimension, device=self.device)
        with steady_arithmetic(self.device), torch.no_grad():
            batch = self._batch(parameters, inputs, labels, np.diff(bounds))
            limits = self._limits(clip_radius, batch.sizes)
            batch = replace(batch, limits=limits, mean_clips=mean_clips)
            self._means(aligned(parameters), batch, rows, nonfinite or NonfiniteRecords())
        return rows

    def local_update(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Offsets,
        training: LocalTraining,
        orders: Sequence[np.random.Generator | None] | None = None,
    ) -> Tensor:
        """Return float32 [K, d]: how far local training carries each client.

        Every client starts from `parameters` and descends its own mean loss; row k is its last
        parameters minus `parameters`. Nothing is clipped. A client whose gradient is not finite
        gets such a row. `orders` [K] draw the order of each client's records where `training`
        takes them in batches.
        """
        require_integer("steps", training.steps, minimum=1)
        rate = training.learning_rate
        require_real("learning_rate", rate, minimum=0.0, exclusive_minimum=True)
        bounds = self._check(parameters, inputs, labels, offsets)
        clients = len(bounds) - 1
        orders = [None] * clients if orders is None else orders
        rows = torch.empty(clients, self.dimension, device=self.device)
        with steady_arithmetic(self.device), torch.no_grad():
            batch = self._batch(parameters, inputs, labels, np.diff(bounds))
            theta = aligned(parameters)
            for part, first, last in self._blocks(batch):
                self._block_update(theta, part, training, orders[first:last], rows[first:last])
        return rows

    def record_radius(
        self, clip_radius: NDArray[np.float64] | float, sizes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the norm [K] to which records are clipped: a little less than the clients'
        clip_radius.

        Less by what rounding may add, to a record's length and, for a client of sizes[k] records,
        to the move of its mean (`rounding`, docs/concepts/gradients.md).
        """
        allowance = (1.0 + self._length_error()) * (1.0 + self._move_error(sizes))
        return np.asarray(clip_radius / (allowance * OTHER_ROUNDINGS), dtype=np.float64)

    @abstractmethod
    def _length_error(self) -> float:
        """Return a bound of the relative error of a record's computed length."""

    @abstractmethod
    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what rounding adds to the move of a mean of this many records, as a share of
        it."""

    @abstractmethod
    def _block_means(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        """Write the means of a block.

        Clipped records that are not finite count as zero, and are counted in `tally`.
        """

    @abstractmethod
    def _block_update(
        self,
        parameters: Tensor,
        batch: GradientBatch,
        training: LocalTraining,
        orders: Sequence[np.random.Generator | None],
        rows: Tensor,
    ) -> None:
        """Write the updates of a block."""

    @abstractmethod
    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        """Return how many classes the module tells apart."""

    def _means(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        """Write the clipped means of a call, block by block."""
        for part, first, last in self._blocks(batch):
            self._block_means(parameters, part, rows[first:last], tally)
        if batch.mean_clips is not None:
            tally.add_clients(int((~clip_rows(rows, batch.mean_clips, self.norm)).sum()))

    def _blocks(self, batch: GradientBatch) -> Iterator[tuple[GradientBatch, int, int]]:
        """Yield the call's blocks, each with its first and last + 1 client."""
        bounds = np.concatenate([[0], np.cumsum(batch.sizes)])
        for first, last in pairwise(self.packing.starts(batch.sizes).tolist()):
            yield batch.part(first, last, int(bounds[first]), int(bounds[last])), first, last

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, sizes: NDArray[np.int64]
    ) -> GradientBatch:
        unusable = None
        if self.loss is None:
            classes = self._classes(parameters, inputs)
            low, high = (int(value) for value in torch.aminmax(labels))
            if low < 0 or high >= classes:
                unusable = (labels < 0) | (labels >= classes)
                labels = labels.masked_fill(unusable, 0)
        return GradientBatch(inputs, labels, unusable, sizes)

    def _check(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, offsets: Offsets
    ) -> NDArray[np.int64]:
        bounds = self._check_bounds(offsets)
        self.check_parameters(parameters)
        self._check_records(inputs, labels, bounds)
        return bounds

    def _check_bounds(self, offsets: Offsets) -> NDArray[np.int64]:
        bounds = np.asarray(offsets, dtype=np.int64)
        if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] != 0:
            raise InvalidValueError("offsets", bounds, "must rise from 0 to the number of records")
        if bool((bounds[1:] <= bounds[:-1]).any()):
            raise InvalidValueError("offsets", bounds, "every client needs at least one record")
        return bounds

    def check_parameters(self, parameters: Tensor) -> None:
        """Raise `InvalidValueError` for others than float32 [d]."""
        if parameters.dtype != torch.float32 or tuple(parameters.shape) != (self.dimension,):
            raise InvalidValueError(
                "parameters",
                f"{parameters.dtype} {list(parameters.shape)}",
                f"must be float32 [{self.dimension}]",
            )

    def _check_records(self, inputs: Tensor, labels: Tensor, bounds: NDArray[np.int64]) -> None:
        records = len(inputs)
        if bounds[-1] != records:
            raise InvalidValueError(
                "offsets", bounds, f"must rise from 0 to the number of records, {records}"
            )
        numbers = self.loss is not None and labels.dtype == torch.float32 and labels.dim() == 2
        if numbers and len(labels) == records:
            return
        if labels.dtype != torch.int64 or tuple(labels.shape) != (records,):
            raise InvalidValueError(
                "labels", f"{labels.dtype} {list(labels.shape)}", f"must be int64 [{records}]"
            )

    def _limits(
        self, radius: Tensor | NDArray[np.float64] | float, sizes: NDArray[np.int64]
    ) -> Tensor | None:
        """Return to what each client's records are clipped [K]; None where none is."""
        values = np.asarray(radius.detach().cpu() if isinstance(radius, Tensor) else radius, float)
        if values.ndim != 0 and values.shape != sizes.shape:
            raise InvalidValueError(
                "clip_radius", list(values.shape), f"must be one number or [{len(sizes)}]"
            )
        low, high = RADII
        if not bool(((values >= low) & (values <= high)).all()):
            raise InvalidValueError("clip_radius", radius, f"must lie in [{low:g}, {high:g}]")
        if self.clip == "none":
            return None
        return torch.from_numpy(self.record_radius(values, sizes)).float().to(self.device)
