"""The engine's contract: what goes in, what comes out, and what every path shares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.errors import DataError, InvalidValueError, require_integer, require_real
from fl_shuffle.gradients.structure import check_module

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits [N, C], labels [N]) -> losses [N], each depending on its own record only."""

SMALLEST_RADIUS = 1e-12
LARGEST_RADIUS = 1e12
# A record's float32 norm is raised by this factor before clipping, more than its worst error, so
# that the clipped gradient is never longer than the radius.
NORM_INFLATION = 1.0 + 2.0**-18


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [N] of logits [N, C] and labels [N]."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


class GradientEngine(ABC):
    """Means of clipped gradients, one row per client, the same bits whatever clients share a call.

    A client's row depends on the parameters, its own records in their order, and its radius. All
    arithmetic is float32 on one thread (of the processor) or on the given device.
    """

    def __init__(
        self, module: nn.Module, *, clip: str, norm: int, device: torch.device, loss: Loss | None
    ) -> None:
        self.dimension = check_module(module)
        self.clip = clip
        self.norm = norm
        self.device = device
        self.loss = loss

    @property
    @abstractmethod
    def path(self) -> str:
        """How gradients are computed, for the log."""

    def remember(self, inputs: Tensor) -> None:  # noqa: B027
        """These records, [N, ...], will be asked for again and again, and will not change.

        An engine may keep what it can compute of them once; results stay the same.
        """

    def client_means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Tensor | NDArray[np.int64],
        clip_radius: Tensor | NDArray[np.float64] | float = 1.0,
        out: Tensor | None = None,
    ) -> Tensor:
        """float32 [K, d]: row k is client k's mean gradient over its records.

        parameters: float32 [d], in `module.parameters()` order. inputs [N, ...] and labels [N]:
        client k owns rows offsets[k]:offsets[k+1], at least one. clip_radius: one number or [K],
        unused for clip "none". Clip "record" clips every record's whole gradient to the radius
        before averaging; "average" clips the mean. Pass `out` [K, d] to reuse memory.

        A client with a record whose gradient is NaN, infinite, or too long for float32 gets a row
        of NaN (with clip "none": a row with some entry not finite); other rows are untouched.
        Give such a row a value before noise is added (`mend_`): to leave its client out would
        tell of the record.
        Raises `InvalidValueError` for shapes, types or radii that do not fit, `DataError` for
        labels that are not classes.
        """
        bounds = self._check(parameters, inputs, labels, offsets)
        rows = self._rows(len(bounds) - 1, out)
        radius = self._radius(clip_radius, len(bounds) - 1)
        with steady_arithmetic(self.device), torch.no_grad():
            self._means(parameters, inputs, labels, bounds, radius, rows)
            if self.clip == "average":
                _clip_means(rows, radius, self.norm)
        return rows

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
        parameters minus `parameters`. Nothing is clipped. One step equals -learning_rate times the
        mean gradient, bit for bit. A client whose gradient is not finite gets such a row.
        """
        require_integer("steps", steps, minimum=1)
        require_real("learning_rate", learning_rate, minimum=0.0, exclusive_minimum=True)
        bounds = self._check(parameters, inputs, labels, offsets)
        rows = self._rows(len(bounds) - 1, out)
        with steady_arithmetic(self.device), torch.no_grad():
            self._update(parameters, inputs, labels, bounds, steps, learning_rate, rows)
        return rows

    @abstractmethod
    def _means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
    ) -> None:
        """Write the means (clipped per record if self.clip is "record")."""

    @abstractmethod
    def _update(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        steps: int,
        learning_rate: float,
        rows: Tensor,
    ) -> None:
        """Write the updates."""

    def _check(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        offsets: Tensor | NDArray[np.int64],
    ) -> NDArray[np.int64]:
        if parameters.dtype != torch.float32 or tuple(parameters.shape) != (self.dimension,):
            raise InvalidValueError(
                "parameters",
                f"{parameters.dtype} {list(parameters.shape)}",
                f"must be float32 [{self.dimension}]",
            )
        bounds = np.asarray(offsets, dtype=np.int64)
        records = len(inputs)
        if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != records:
            raise InvalidValueError(
                "offsets", bounds, f"must rise from 0 to the number of records, {records}"
            )
        if bool((bounds[1:] <= bounds[:-1]).any()):
            raise InvalidValueError("offsets", bounds, "every client needs at least one record")
        if labels.dtype != torch.int64 or tuple(labels.shape) != (records,):
            raise InvalidValueError(
                "labels", f"{labels.dtype} {list(labels.shape)}", f"must be int64 [{records}]"
            )
        return bounds

    def _rows(self, clients: int, out: Tensor | None) -> Tensor:
        if out is None:
            return torch.empty(clients, self.dimension, device=self.device)
        shape = (clients, self.dimension)
        if out.dtype != torch.float32 or tuple(out.shape) != shape or out.stride(1) != 1:
            raise InvalidValueError(
                "out", f"{out.dtype} {list(out.shape)}", f"must be float32 {list(shape)}"
            )
        return out

    def _radius(self, radius: Tensor | NDArray[np.float64] | float, clients: int) -> Tensor:
        """float32, one number or [K], on the engine's device."""
        values = torch.as_tensor(radius, dtype=torch.float32, device=self.device)
        if values.dim() != 0 and tuple(values.shape) != (clients,):
            raise InvalidValueError(
                "clip_radius", list(values.shape), f"must be one number or [{clients}]"
            )
        if isinstance(radius, float):
            smallest = largest = radius
        else:
            smallest, largest = (float(value) for value in torch.aminmax(values))
        if not (smallest >= SMALLEST_RADIUS and largest <= LARGEST_RADIUS):
            raise InvalidValueError(
                "clip_radius",
                radius,
                f"must lie in [{SMALLEST_RADIUS:g}, {LARGEST_RADIUS:g}]",
            )
        return values


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise `DataError` unless every label is a class number below `classes`."""
    low, high = (int(value) for value in torch.aminmax(labels))
    if low < 0 or high >= classes:
        raise DataError(
            f"labels lie in {low}..{high}, the module tells {classes} classes apart: "
            f"labels must lie in 0..{classes - 1}"
        )


def _clip_means(rows: Tensor, radius: Tensor, norm: int) -> None:
    lengths = torch.linalg.vector_norm(rows, norm, dim=1)
    rows *= clip_factor(lengths, radius / NORM_INFLATION)[:, None]


def clip_factor(lengths: Tensor, limit: Tensor) -> Tensor:
    """min(1, limit / length), NaN where the length is not finite."""
    factor = torch.div(limit, lengths).clamp_(max=1.0)
    return factor.add_(lengths, alpha=0.0)


@contextmanager
def steady_arithmetic(device: torch.device) -> Iterator[None]:
    """One thread, and no denormal numbers, until the end.

    Kernels that split one array between threads round differently where the pieces meet. Numbers
    below 1.2e-38 cost processors a hundred times what others do, and the tails of a softmax over
    noisy models are full of them: they count as zero. The caller's settings come back after.
    """
    if device.type != "cpu":
        yield
        return
    threads, flushed = torch.get_num_threads(), _denormals_are_zero()
    if threads != 1:
        torch.set_num_threads(1)
    if not flushed:
        torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if not flushed:
            torch.set_flush_denormal(False)
        if threads != 1:
            torch.set_num_threads(threads)


def _denormals_are_zero() -> bool:
    """Whether this thread's arithmetic treats them so (torch sets it and does not tell)."""
    return _DENORMAL * _ONE == 0.0


_DENORMAL, _ONE = math.ulp(0.0), 1.0
