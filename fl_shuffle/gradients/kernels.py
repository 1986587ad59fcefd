"""Small pieces of array arithmetic for chains of linear layers, most of them in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fl_shuffle.gradients.structure import Layer

Views = tuple[Tensor, Tensor | None]
Buffers = dict[str, tuple[Tensor, Tensor]]
"""Arrays by name, each with its last view."""

# At least what each square below float32's range, which counts as zero, was worth. Sums of squares
# with it are never too small: tiny errors times huge inputs are clipped like any other gradient.
FLUSHED = 2.0**-125

# In-place activations whose slope follows from their output.
FROM_OUTPUT: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}


def buffer(
    buffers: Buffers, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A contiguous view of the array of that name, which grows as needed; contents arbitrary.

    Every view starts where the allocator put the array, at an aligned address.
    """
    whole, view = buffers.get(name, (None, None))
    if view is not None and view.shape == shape:
        return view
    size = math.prod(shape)
    if whole is None or whole.numel() < size:
        whole = torch.empty(size, dtype=dtype, device=device)
    view = whole[:size].view(shape)
    buffers[name] = whole, view
    return view


def views_of(parameters: Tensor, layer: Layer) -> Views:
    """Weight [..., fan_out, fan_in] and bias [..., fan_out] inside flat vectors [..., d]."""
    end = layer.weight + layer.fan_out * layer.fan_in
    weight = parameters[..., layer.weight : end]
    weight = weight.view(*parameters.shape[:-1], layer.fan_out, layer.fan_in)
    if layer.bias is None:
        return weight, None
    return weight, parameters[..., layer.bias : layer.bias + layer.fan_out]


def affine(bias: Tensor | None, left: Tensor, right: Tensor, out: Tensor) -> None:
    if bias is None:
        torch.mm(left, right, out=out)
    else:
        torch.addmm(bias, left, right, out=out)


def powers_of(values: Tensor, norm: int, terms: Tensor) -> Tensor:
    """Squared l2 norms, or l1 norms, of the rows; `terms` is scratch of the same shape."""
    if norm == 2:
        lengths: Tensor = torch.linalg.vector_norm(values, dim=1)
        return lengths.square_().add_(values.shape[1] * FLUSHED)
    return torch.sum(torch.abs(values, out=terms), 1)


def column_powers(values: Tensor, norm: int) -> Tensor:
    """The same of the columns."""
    if norm == 2:
        return torch.mul(values, values).sum(0).add_(values.shape[0] * FLUSHED)
    return torch.abs(values).sum(0)


def copy_rows(values: Tensor, target: Tensor) -> None:
    """NumPy's copy of what is still in the cache takes half the time of torch's."""
    if values.is_cuda or values.dtype != target.dtype:
        target.copy_(values)
    else:
        np.copyto(target.numpy(), values.numpy())


def activate(activation: nn.Module | None, values: Tensor) -> Tensor | None:
    """Apply in place; returns the slopes where they do not follow from the outputs."""
    if activation is None:
        return None
    if type(activation) in FROM_OUTPUT:
        FROM_OUTPUT[type(activation)](values)
        return None
    with torch.enable_grad():
        leaf = values.detach().clone().requires_grad_()
        result = activation(leaf.clone())
        slope: Tensor = torch.autograd.grad(result.sum(), leaf)[0]
    values.copy_(result.detach())
    return slope


def times_slope(
    error: Tensor, activation: nn.Module | None, outputs: Tensor, slope: Tensor | None
) -> None:
    """error *= the activation's slope, in place."""
    if slope is not None:
        error *= slope
    elif type(activation) is nn.ReLU:
        torch.ops.aten.threshold_backward.grad_input(error, outputs, 0, grad_input=error)
    elif type(activation) is nn.Tanh:
        torch.ops.aten.tanh_backward.grad_input(error, outputs, grad_input=error)
    elif type(activation) is nn.Sigmoid:
        torch.ops.aten.sigmoid_backward.grad_input(error, outputs, grad_input=error)


def clip_factor(lengths: Tensor, limit: Tensor) -> Tensor:
    """min(1, limit / length), NaN where the length is not finite."""
    factor = torch.div(limit, lengths).clamp_(max=1.0)
    return factor.add_(lengths, alpha=0.0)


def aligned(values: Tensor) -> Tensor:
    """A fresh copy: some kernels round by the address of what they read."""
    return values.clone(memory_format=torch.contiguous_format)


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
