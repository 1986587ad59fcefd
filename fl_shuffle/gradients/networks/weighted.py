"""Layers with parameters: what one does forth, and each record's gradient by its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_shuffle.gradients.kernels import Views
from fl_shuffle.gradients.structure import Layer


class Weighted(ABC):
    """A layer with parameters.

    `layers`: what it is to the clients' sums, which know linear layers: the layer itself, or, where
    the gradients of single records are written out, one with a single output for each parameter.
    `terms`: number of terms of a record's norm that are added one after the other.
    """

    layers: tuple[Layer, ...]
    terms: int

    @abstractmethod
    def forward(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the gradient will need of x [n, ...], and the layer's result.

        views: each of `layers`, in the parameters.
        """

    @abstractmethod
    def gradients(self, kept: Tensor, error: Tensor) -> list[Tensor]:
        """Return [n, rows, columns] of each of `layers`, from the gradient by the layer's result;
        empty if they are not to be written out."""

    @property
    def written(self) -> int:
        """Numbers of one record's gradient that are written out."""
        return sum(layer.fan_in for layer in self.layers if layer.fan_out == 1)


class Product(Weighted):
    """A linear map of one vector per record: no gradient of a record is written out."""

    def __init__(self, part: nn.Linear, position: int) -> None:
        bias = None if part.bias is None else position + part.weight.numel()
        self.layers = (Layer(part.in_features, part.out_features, position, bias),)
        self.terms = part.in_features + part.out_features

    def forward(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = views[0]
        if bias is None or 4 * len(bias) > x.shape[1]:
            return x.detach(), functional.linear(x, weight, bias)
        # With few outputs, matrix libraries are faster where the records are columns.
        return x.detach(), torch.addmm(bias[:, None], weight, x.T).T

    def gradients(self, kept: Tensor, error: Tensor) -> list[Tensor]:
        return []


class Patches(Weighted):
    """A weight [out, in] that meets several vectors of each record.

    What is kept are these, [n, places, in]; a record's gradient is one product of them with the
    gradients by the result, [n, places, out].
    """

    def __init__(self, part: nn.Linear | nn.Conv1d | nn.Conv2d, position: int) -> None:
        fan_out, fan_in = len(part.weight), part.weight[0].numel()
        self._shape = tuple(part.weight.shape)
        self.layers = _single(position, fan_in * fan_out, 0 if part.bias is None else fan_out)
        self.terms = fan_in + fan_out

    def gradients(self, kept: Tensor, error: Tensor) -> list[Tensor]:
        errors = self._by_place(error)
        found = [torch.bmm(errors.transpose(1, 2), kept)]
        return found if len(self.layers) == 1 else [*found, errors.sum(1)[:, None]]

    @abstractmethod
    def _by_place(self, error: Tensor) -> Tensor:
        """Return [n, places, out]."""

    def _parameters(self, views: Sequence[Views]) -> tuple[Tensor, Tensor | None]:
        weight, *bias = (view[0] for view, _ in views)
        return weight.view(self._shape), bias[0] if bias else None


class Positions(Patches):
    """A linear map of each of a record's vectors."""

    def forward(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self._parameters(views)
        return x.detach().flatten(1, -2), functional.linear(x, weight, bias)

    def _by_place(self, error: Tensor) -> Tensor:
        return error.flatten(1, -2)


class Convolution(Patches):
    """A convolution of pictures, or of lines: pictures of height 1."""

    def __init__(self, part: nn.Conv1d | nn.Conv2d, position: int) -> None:
        super().__init__(part, position)
        assert not isinstance(part.padding, str)
        self._line = isinstance(part, nn.Conv1d)
        self._size = self._pair(part.kernel_size, 1)
        self._stride = self._pair(part.stride, 1)
        self._padding = self._pair(part.padding, 0)
        self._dilation = self._pair(part.dilation, 1)

    def _pair(self, values: tuple[int, ...], height: int) -> tuple[int, int]:
        high, wide = (height, *values) if self._line else values
        return high, wide

    def forward(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self._parameters(views)
        if self._line:
            x, weight = x[:, :, None], weight[:, :, None]
        patches = functional.unfold(
            x.detach(), self._size, self._dilation, self._padding, self._stride
        )
        result = functional.conv2d(x, weight, bias, self._stride, self._padding, self._dilation)
        # With the channel last in memory, pooling is several times as fast.
        result = result.contiguous(memory_format=torch.channels_last)
        return patches.transpose(1, 2), result[:, :, 0] if self._line else result

    def _by_place(self, error: Tensor) -> Tensor:
        return error.flatten(2).transpose(1, 2)


class Normalisation(Weighted):
    """A scale, and a shift, of what is normalized record by record: for each channel, or for each
    number of the last dimensions."""

    def __init__(self, part: nn.GroupNorm | nn.LayerNorm, position: int, x: Tensor) -> None:
        count = part.weight.numel()
        self.layers = _single(position, count, 0 if part.bias is None else count)
        self.terms = 1 + count
        # How the parameters meet the numbers of a record.
        if isinstance(part, nn.GroupNorm):
            self._shape = (count, *(1,) * (x.dim() - 2))
            self._normal = partial(functional.group_norm, num_groups=part.num_groups, eps=part.eps)
        else:
            last = part.normalized_shape
            self._shape = (*(1,) * (x.dim() - 1 - len(last)), *last)
            self._normal = partial(functional.layer_norm, normalized_shape=last, eps=part.eps)

    def forward(self, views: Sequence[Views], x: Tensor) -> tuple[Tensor, Tensor]:
        normal = self._normal(x)
        scale, *shift = (view[0].view(self._shape) for view, _ in views)
        result = normal * scale
        return normal.detach(), result + shift[0] if shift else result

    def gradients(self, kept: Tensor, error: Tensor) -> list[Tensor]:
        by_parameter = [error * kept, error][: len(self.layers)]
        shape = len(error), *self._shape
        return [values.sum_to_size(shape).flatten(1)[:, None] for values in by_parameter]


def _single(position: int, weight: int, bias: int) -> tuple[Layer, ...]:
    """Return layers with a single output: their numbers of weights, and behind them of biases."""
    layers = (Layer(weight, 1, position, None),)
    return (*layers, Layer(bias, 1, position + weight, None)) if bias else layers


def weighted_of(part: nn.Module, position: int, x: Tensor) -> Weighted | None:
    """Return the layer that `part` is for inputs like x [n, ...], its parameters from `position`
    on; None for one without a closed form."""
    if type(part) is nn.Linear:
        return Product(part, position) if x.dim() == 2 else Positions(part, position)
    if isinstance(part, nn.Conv1d | nn.Conv2d) and type(part) in (nn.Conv1d, nn.Conv2d):
        plain = part.groups == 1 and part.padding_mode == "zeros"
        fits = plain and not isinstance(part.padding, str) and x.dim() == part.weight.dim()
        return Convolution(part, position) if fits else None
    known = type(part) in (nn.GroupNorm, nn.LayerNorm)
    if isinstance(part, nn.GroupNorm | nn.LayerNorm) and known:
        return Normalisation(part, position, x)
    return None
