"""Softmax regression, compiled: for runs with enough to do that compiling pays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.engine import NORM_INFLATION, Loss, check_labels
from fl_shuffle.gradients.structure import Layer
from fl_shuffle.gradients.workspace import pooled

# The weights are read again for every fourth record: they must stay in the second-level cache.
LARGEST_WEIGHTS = 1 << 16
# A record's errors are squared and added one after the other: with more classes the sum could be
# off by more than NORM_INFLATION makes up for.
LARGEST_CLASSES = 32
# A client's mean is one chain of float32 sums; of more records it would be too inexact.
MOST_RECORDS = 512
# Below so many multiplications a round, loading the compiled loop takes longer than it saves.
WORTH_COMPILING = 1 << 24
_NOTHING = np.empty(0, np.float32)


def compiles(
    layers: tuple[Layer, ...], device: torch.device, loss: Loss | None, records: int
) -> bool:
    """Whether `CompiledLinear` serves this model, and `records` records a round make it pay."""
    weights = layers[0].fan_in * layers[0].fan_out
    return (
        len(layers) == 1
        and device.type == "cpu"
        and loss is None
        and weights <= LARGEST_WEIGHTS
        and layers[0].fan_out <= LARGEST_CLASSES
        and records * weights >= WORTH_COMPILING
    )


class CompiledLinear(ChainEngine):
    """Modules Flatten? Linear, cross entropy, on the processor.

    Every number of a client's row is one chain of operations over its own records in their order,
    so packing does not show.
    """

    def __init__(
        self, module: nn.Module, layers: tuple[Layer, ...], *, clip: str, norm: int
    ) -> None:
        super().__init__(
            module, layers, clip=clip, norm=norm, device=torch.device("cpu"), loss=None
        )
        from fl_shuffle.compiled.products import LANES
        from fl_shuffle.gradients.linear_kernel import TILE, linear_means

        self._loop, self._lanes, self._tile = linear_means, LANES, TILE

    @property
    def path(self) -> str:
        return "closed-form linear, compiled"

    def _blocks(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
        per_record: bool,
    ) -> None:
        for first, last, long in _stretches(bounds):
            part = slice(int(bounds[first]), int(bounds[last]))
            own = radius[first:last] if radius.dim() else radius
            compute = super()._blocks if long else self._compiled
            compute(
                parameters,
                inputs[part],
                labels[part],
                bounds[first : last + 1] - bounds[first],
                own,
                rows[first:last],
                per_record,
            )

    def _compiled(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
        per_record: bool,
    ) -> None:
        """`_blocks` for clients of at most MOST_RECORDS records."""
        # NumPy from here on: its calls are cheaper, and a request has few hundred microseconds.
        records = self._records(inputs).contiguous()
        powers = _NOTHING
        if per_record:
            known = None if self._known is None else self._known.of(records)
            powers = (self._powers(records) if known is None else known).numpy()
            if self._layers[0].bias is not None:
                # A bias is the weight of one more input, always 1.
                powers = powers + np.float32(1.0)
        limits = np.empty(len(bounds) - 1, np.float32)
        np.divide(radius.numpy(), np.float32(NORM_INFLATION), out=limits)
        layer = self._layers[0]
        span = (len(rows) - 1) * rows.stride(0) + self.dimension
        weights = self._panels(parameters.numpy())
        classes = len(weights) // (layer.fan_in + 1) * self._lanes
        error = pooled(self._pool(), records, "tile errors", classes, self._tile)
        scratch = pooled(self._pool(), records, "tile scratch", 4, self._tile)
        known_labels = self._loop(
            records.numpy(),
            labels.contiguous().numpy(),
            np.ascontiguousarray(bounds),
            weights,
            layer.fan_out,
            limits,
            powers,
            self.norm if per_record else 0,
            torch.as_strided(rows, (span,), (1,)).numpy(),
            rows.stride(0),
            -1 if layer.bias is None else layer.bias,
            error.numpy(),
            scratch.numpy(),
        )
        if not known_labels:
            check_labels(labels, self._classes)

    def _panels(self, parameters: NDArray[np.float32]) -> NDArray[np.float32]:
        """Weights of LANES classes each, turned round, and their biases, as the loop wants them."""
        layer, lanes = self._layers[0], self._lanes
        panels = -(-layer.fan_out // lanes)
        laid = np.zeros((panels * lanes, layer.fan_in + 1), np.float32)
        end = layer.fan_out * layer.fan_in
        laid[: layer.fan_out, :-1] = parameters[:end].reshape(layer.fan_out, layer.fan_in)
        if layer.bias is not None:
            laid[: layer.fan_out, -1] = parameters[end:]
        turned = laid.reshape(panels, lanes, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(turned).reshape(-1, lanes)


def _stretches(bounds: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
    """(first, last + 1, whether they have more than MOST_RECORDS) of neighbouring clients."""
    long = np.diff(bounds) > MOST_RECORDS
    cuts = [0, *(np.flatnonzero(long[1:] != long[:-1]) + 1).tolist(), len(long)]
    for first, last in pairwise(cuts):
        yield first, last, bool(long[first])
