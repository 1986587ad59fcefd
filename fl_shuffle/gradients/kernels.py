"""Small pieces of array arithmetic, most of them in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fl_shuffle.gradients.structure import Layer

Views = tuple[Tensor, Tensor | None]

# At least what each square below float32's range, which counts as zero, was worth. Sums of squares
# with it are never too small: tiny errors times huge inputs are clipped like any other gradient.
FLUSHED = 2.0**-125


def views_of(parameters: Tensor, layer: Layer) -> Views:
    """Return weight [..., fan_out, fan_in] and bias [..., fan_out] inside flat vectors [..., d]."""
    end = layer.weight + layer.fan_out * layer.fan_in
    weight = parameters[..., layer.weight : end]
    weight = weight.view(*parameters.shape[:-1], layer.fan_out, layer.fan_in)
    if layer.bias is None:
        return weight, None
    return weight, parameters[..., layer.bias : layer.bias + layer.fan_out]


def powers_of(values: Tensor, norm: int) -> Tensor:
    """Return squared l2 norms, or l1 norms, of the rows."""
    if norm == 2:
        lengths: Tensor = torch.linalg.vector_norm(values, dim=1)
        return lengths.square_().add_(values.shape[1] * FLUSHED)
    return values.abs().sum(1)


def clip_factor(lengths: Tensor, limit: Tensor) -> Tensor:
    """Return min(1, limit / length), NaN where the length is not finite."""
    factor = torch.div(limit, lengths).clamp_(max=1.0)
    return factor.add_(lengths, alpha=0.0)


def aligned(values: Tensor) -> Tensor:
    """Return a fresh copy: some kernels round by the address of what they read."""
    return values.clone(memory_format=torch.contiguous_format)


@contextmanager
def steady_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute with one thread, and no denormal numbers, until the end.

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
    """Return whether this thread's arithmetic treats them so (torch sets it and does not tell)."""
    return _DENORMAL * _ONE == 0.0


_DENORMAL, _ONE = math.ulp(0.0), 1.0
