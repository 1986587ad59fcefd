"""The engine's contract: what goes in, what comes out, and what every path shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError, require_integer, require_real
from fl_shuffle.gradients.blocks import Packing, SumPlan, packing_of
from fl_shuffle.gradients.kernels import aligned, steady_arithmetic
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import on_grid
from fl_shuffle.gradients.structure import check_module
from fl_shuffle.gradients.tolerances import TOLERANCES

if TYPE_CHECKING:
    from fl_shuffle.compiled.row_clipping import RowClips

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [N, C], labels) -> losses [N], each depending on its own record only. Labels are int64
[N] (classes) or float32 [N, k] (numbers to predict)."""


PreparedSum = Callable[[Tensor, NonfiniteRecords], Tensor]
"""(parameters [d], tally) -> sum [d]: `GradientEngine.clipped_sum` of certain clients."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [N] of logits [N, C] and labels [N]."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Batch:
    """Clients of `sizes` [k] records each: `inputs` [n, ...] and `labels` [n], client by client.

    `unusable` [n] marks records whose label is no class (their label here is 0); None if none is.
    `limits` [k]: the length to which each client's records are clipped; None for no clipping.
    """

    inputs: Tensor
    labels: Tensor
    unusable: Tensor | None
    sizes: NDArray[np.int64]
    limits: Tensor | None = None

    def part(self, first: int, last: int, start: int, stop: int) -> Batch:
        """The clients first .. last - 1, whose records are start .. stop - 1."""
        records = slice(start, stop)
        return Batch(
            self.inputs[records],
            self.labels[records],
            None if self.unusable is None else self.unusable[records],
            self.sizes[first:last],
            None if self.limits is None else self.limits[first:last],
        )


class GradientEngine(ABC):
    """Means of clipped gradients, one row per client.

    A client's row depends on the parameters, its own records in their order, its radius, and, in
    its last bits, on the block it is computed in (`packing`). Arithmetic is float32 on one thread
    (of the processor) or on the given device; what is added up over records is float64.
    """

    def __init__(
        self, module: nn.Module, *, clip: str, norm: int, device: torch.device, loss: Loss | None
    ) -> None:
        self.dimension = check_module(module)
        self.packing = packing_of(module)
        self.sum_packing = packing_of(module, rows=False)
        self.clip = clip
        self.norm = norm
        self.device = device
        self.loss = loss

    @property
    @abstractmethod
    def path(self) -> str:
        """How gradients are computed, for the log."""

    def keep(self, inputs: Tensor) -> None:  # noqa: B027
        """Records [N, ...] that calls will have views of, and that never change: what follows from
        them alone is then computed once. No bit of a result changes."""

    def client_means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Tensor | NDArray[np.int64],
        clip_radius: Tensor | NDArray[np.float64] | float = 1.0,
        out: Tensor | None = None,
        nonfinite: NonfiniteRecords | None = None,
    ) -> Tensor:
        """float32 [K, d]: row k is client k's mean gradient over its records.

        parameters: float32 [d], in `module.parameters()` order. inputs [N, ...] and labels [N]:
        client k owns rows offsets[k]:offsets[k+1], at least one. clip_radius: one number or [K],
        unused for clip "none". Clip "record" clips every record's whole gradient to
        `record_radius` before averaging, so that replacing one of B records moves the row by at
        most 2 clip_radius / B, rounding included; "average" clips the mean. Pass `out` [K, d] to
        reuse memory. A call that begins where a block begins, and ends where one ends, gives its
        clients the bits that a call with all of them does.

        A record whose gradient is NaN, infinite, or too long for float32, or whose label is no
        class, counts as zero with clip "record"; its client's mean is zero with clip "average";
        with clip "none" some entry of the row is not finite. Other rows are untouched, and
        `nonfinite` counts them, for the client's own log.
        Raises `InvalidValueError` for shapes, types or radii that do not fit.
        """
        bounds = self._check(parameters, inputs, labels, offsets)
        rows = self._rows(len(bounds) - 1, out)
        radius = self._radius(clip_radius, len(bounds) - 1)
        with steady_arithmetic(self.device), torch.no_grad():
            batch = self._batch(parameters, inputs, labels, np.diff(bounds))
            if self.clip == "record":
                limits = torch.from_numpy(self.record_radius(radius, batch.sizes)).float()
                batch = replace(batch, limits=limits.to(self.device))
            tally = nonfinite or NonfiniteRecords()
            self._means(aligned(parameters), batch, rows, tally)
            if self.clip == "average":
                self._clip_means(rows, radius, tally)
        return rows

    @property
    def sums_clipped_means(self) -> bool:
        """Whether sums of means that are clipped themselves can be planned."""
        return False

    def plan_sum(
        self,
        offsets: Tensor | NDArray[np.int64],
        clip_radius: Tensor | NDArray[np.float64] | float = 1.0,
        weights: NDArray[np.float64] | float = 1.0,
        *,
        grid: float,
        mean_clips: RowClips | None = None,
    ) -> SumPlan:
        """What `clipped_sum` needs to know of the clients: offsets [k + 1] and clip_radius as in
        `client_means`, the weights [k] of their means, the grid of the blocks' sums
        (`rounding.sum_grid` of what the whole sum may reach), and to what the means are clipped.

        Raises `InvalidValueError` for shapes or radii that do not fit.
        """
        means = mean_clips is not None
        if not (self.sums_clipped_means if means else self.clip == "record"):
            raise InvalidValueError("clip", self.clip, "must be record: other sums need the rows")
        bounds = self._check_bounds(offsets)
        sizes = np.diff(bounds)
        limits = None
        if self.clip == "record":
            own = self.record_radius(self._radius(clip_radius, len(sizes)), sizes)
            limits = torch.from_numpy(own).float().to(self.device)
        shares = np.broadcast_to(weights, len(sizes)) / (1 if means else sizes)
        parts = torch.from_numpy(shares).float().to(self.device)
        starts = (self.packing if means else self.sum_packing).starts(sizes)
        return SumPlan(bounds, sizes, limits, parts, starts, grid, mean_clips)

    def clipped_sum(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        plan: SumPlan,
        nonfinite: NonfiniteRecords | None = None,
    ) -> Tensor:
        """float64 [d]: the sum over clients of each one's weight times its row of `client_means`.

        Equal to that sum, its rows clipped if the plan clips means, up to float32's rounding. Each
        block's sum is rounded to a multiple of the plan's grid, so that sums of blocks are exact:
        the bits of a round's sum do not depend on how calls share its blocks.
        Raises `InvalidValueError` for shapes or types that do not fit.
        """
        return self.prepared_sum(inputs, labels, plan)(parameters, nonfinite or NonfiniteRecords())

    def prepared_sum(self, inputs: Tensor, labels: Tensor, plan: SumPlan) -> PreparedSum:
        """`clipped_sum` of records that stay as they are, for any parameters: what follows from the
        records alone may be worked out here, once. Several threads may call what this returns.

        It and this raise `InvalidValueError` for shapes or types that do not fit.
        """
        self._check_records(inputs, labels, plan.bounds)

        def sum_at(parameters: Tensor, nonfinite: NonfiniteRecords) -> Tensor:
            self.check_parameters(parameters)
            with steady_arithmetic(self.device), torch.no_grad():
                batch = self._batch(parameters, inputs, labels, plan.sizes)
                batch = replace(batch, limits=plan.limits)
                return self._sum(aligned(parameters), batch, plan, nonfinite)

        return sum_at

    def local_update(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Tensor | NDArray[np.int64],
        *,
        steps: int,
        learning_rate: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """float32 [K, d]: how far `steps` full-batch gradient steps carry each client.

        Every client starts from `parameters` and descends its own mean loss; row k is its last
        parameters minus `parameters`. Nothing is clipped. A client whose gradient is not finite
        gets such a row.
        """
        require_integer("steps", steps, minimum=1)
        require_real("learning_rate", learning_rate, minimum=0.0, exclusive_minimum=True)
        bounds = self._check(parameters, inputs, labels, offsets)
        rows = self._rows(len(bounds) - 1, out)
        with steady_arithmetic(self.device), torch.no_grad():
            batch = self._batch(parameters, inputs, labels, np.diff(bounds))
            theta = aligned(parameters)
            for part, first, last in self._blocks(batch, self.packing):
                self._block_update(theta, part, steps, learning_rate, rows[first:last])
        return rows

    def record_radius(
        self, clip_radius: NDArray[np.float64] | float, sizes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The norm [K] to which records are clipped: a little less than the clients' clip_radius.

        Less by what rounding may add, to a record's length and, for a client of sizes[k] records,
        to the move of its mean (`rounding`, docs/gradients.md).
        """
        allowance = (1.0 + self._length_error()) * (1.0 + self._move_error(sizes))
        whole = allowance * TOLERANCES.other_roundings
        return np.asarray(clip_radius / whole, dtype=np.float64)

    @abstractmethod
    def _length_error(self) -> float:
        """Bound of the relative error of a record's computed length."""

    @abstractmethod
    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """What rounding adds to the move of a mean of so many records, as a share of it."""

    @abstractmethod
    def _block_means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        """Write the means of a block.

        Clipped records that are not finite count as zero, and are counted in `tally`.
        """

    @abstractmethod
    def _block_update(
        self, parameters: Tensor, batch: Batch, steps: int, learning_rate: float, rows: Tensor
    ) -> None:
        """Write the updates of a block."""

    @abstractmethod
    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        """How many classes the module tells apart."""

    def _means(
        self, parameters: Tensor, batch: Batch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        """Write the means of a call, block by block."""
        for part, first, last in self._blocks(batch, self.packing):
            self._block_means(parameters, part, rows[first:last], tally)

    def _sum(
        self, parameters: Tensor, batch: Batch, plan: SumPlan, tally: NonfiniteRecords
    ) -> Tensor:
        """The sum of a call, block by block."""
        total = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        for part, first, last in self._blocks(batch, self.sum_packing):
            own = self._block_sum(parameters, part, plan.shares[first:last], tally)
            total += on_grid(own, plan.grid)
        return total

    def _block_sum(
        self, parameters: Tensor, batch: Batch, shares: Tensor, tally: NonfiniteRecords
    ) -> Tensor:
        """A block's sum, float64 [d]; by its rows, where a path has no better way."""
        rows = torch.empty(len(shares), self.dimension, device=self.device)
        self._block_means(parameters, batch, rows, tally)
        rows *= (shares * torch.from_numpy(batch.sizes).to(self.device)).float()[:, None]
        return rows.sum(0, dtype=torch.float64)

    def _blocks(self, batch: Batch, packing: Packing) -> Iterator[tuple[Batch, int, int]]:
        """The call's blocks, each with its first and last + 1 client."""
        bounds = np.concatenate([[0], np.cumsum(batch.sizes)])
        for first, last in pairwise(packing.starts(batch.sizes).tolist()):
            yield batch.part(first, last, int(bounds[first]), int(bounds[last])), first, last

    def _batch(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, sizes: NDArray[np.int64]
    ) -> Batch:
        unusable = None
        if self.loss is None:
            classes = self._classes(parameters, inputs)
            low, high = (int(value) for value in torch.aminmax(labels))
            if low < 0 or high >= classes:
                unusable = (labels < 0) | (labels >= classes)
                labels = labels.masked_fill(unusable, 0)
        return Batch(inputs, labels, unusable, sizes)

    def _clip_means(
        self, rows: Tensor, radius: NDArray[np.float64] | float, tally: NonfiniteRecords
    ) -> None:
        longest = radius / TOLERANCES.mean_roundings
        limits = torch.as_tensor(longest, dtype=torch.float64, device=self.device)
        # A row at a time: a float64 copy of all would be as large as two requests.
        for k, row in enumerate(rows):
            length = torch.linalg.vector_norm(row, self.norm, dtype=torch.float64)
            if not bool(torch.isfinite(length)):
                row.zero_()
                tally.add_clients(1)
                continue
            limit = limits[k] if limits.dim() else limits
            if bool(length > limit):
                row.mul_(float(limit / length))

    def _check(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Tensor | NDArray[np.int64],
    ) -> NDArray[np.int64]:
        bounds = self._check_bounds(offsets)
        self.check_parameters(parameters)
        self._check_records(inputs, labels, bounds)
        return bounds

    def _check_bounds(self, offsets: Tensor | NDArray[np.int64]) -> NDArray[np.int64]:
        bounds = np.asarray(offsets, dtype=np.int64)
        if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] != 0:
            raise InvalidValueError("offsets", bounds, "must rise from 0 to the number of records")
        if bool((bounds[1:] <= bounds[:-1]).any()):
            raise InvalidValueError("offsets", bounds, "every client needs at least one record")
        return bounds

    def check_parameters(self, parameters: Tensor) -> None:
        """Raises `InvalidValueError` for others than float32 [d]."""
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

    def _rows(self, clients: int, out: Tensor | None) -> Tensor:
        if out is None:
            return torch.empty(clients, self.dimension, device=self.device)
        shape = (clients, self.dimension)
        if out.dtype != torch.float32 or tuple(out.shape) != shape or out.stride(1) != 1:
            raise InvalidValueError(
                "out", f"{out.dtype} {list(out.shape)}", f"must be float32 {list(shape)}"
            )
        return out

    def _radius(
        self, radius: Tensor | NDArray[np.float64] | float, clients: int
    ) -> NDArray[np.float64] | float:
        """float64, one number or [K]."""
        if isinstance(radius, Tensor):
            radius = radius.detach().cpu().numpy()
        values = np.asarray(radius, dtype=np.float64)
        if values.ndim != 0 and values.shape != (clients,):
            raise InvalidValueError(
                "clip_radius", list(values.shape), f"must be one number or [{clients}]"
            )
        low, high = TOLERANCES.radius_range
        if not bool(((values >= low) & (values <= high)).all()):
            raise InvalidValueError("clip_radius", radius, f"must lie in [{low:g}, {high:g}]")
        return values if values.ndim else float(values)
