"""A convolutional network's clipped means, written by hand in the ways that people write them.

All serve one model (`cnn`) and clients of one size, in chunks of a given number of records, with
no care for ragged clients, NaN, labels, or rounding: their sums over records are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

SHAPE = (1, 28, 28)


class Given(NamedTuple):
    """Parameters, inputs, labels, records a client, whether each is clipped, records a block."""

    parameters: Tensor
    inputs: Tensor
    labels: Tensor
    size: int
    per_record: bool
    rows: int


def cnn() -> nn.Sequential:
    """Two convolutions and two linear layers for 28 x 28 images, 26,010 parameters."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class VmapLoop:
    """`vmap(grad)` over chunks of records; each gradient is written out, clipped and added."""

    def __init__(self, module: nn.Module, radius: float) -> None:
        self._module, self._radius = module, radius
        self._shapes = {name: value.shape for name, value in module.named_parameters()}
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(self._module, parameters, (x[None],))
        return nn.functional.cross_entropy(logits, y[None])

    def __call__(self, given: Given, out: Tensor) -> None:
        flat, x, y, size, per_record, rows = given
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        parameters = {
            name: piece.view(shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        out.zero_()
        owners = torch.arange(len(out)).repeat_interleave(size)
        for start in range(0, len(x), rows):
            some = slice(start, start + rows)
            found = self._gradients(parameters, x[some], y[some])
            gradients = torch.cat([values.flatten(1) for values in found.values()], 1)
            factor = torch.full((len(gradients),), 1.0 / size)
            if per_record:
                lengths = torch.linalg.vector_norm(gradients, dim=1)
                factor *= (self._radius / lengths).clamp_(max=1.0)
            out.index_add_(0, owners[some], gradients.mul_(factor[:, None]))


class Unfolded:
    """Hooks on the layers: one pass back for a chunk; gradients of convolutions from unfolded
    inputs, norms of linear layers without their gradients; then one weighted product per client."""

    def __init__(self, module: nn.Sequential, radius: float) -> None:
        self._module, self._radius = module, radius
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        self._layers = [m for m in module if isinstance(m, nn.Conv2d | nn.Linear)]
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        for layer in self._layers:
            layer.register_forward_hook(self._keep)

    def _keep(self, _layer: nn.Module, given: tuple[Tensor], result: Tensor) -> None:
        if not result.requires_grad:
            result.requires_grad_()
        self._inputs.append(given[0].detach())
        self._outputs.append(result)

    def __call__(self, given: Given, out: Tensor) -> None:
        flat, x, y, size, per_record, rows = given
        nn.utils.vector_to_parameters(flat, self._module.parameters())
        step = max(1, rows // size)
        for start in range(0, len(out), step):
            target = out[start : start + step]
            some = slice(start * size, (start + len(target)) * size)
            self._chunk(x[some], y[some], size, per_record, target)

    def _chunk(self, x: Tensor, y: Tensor, size: int, per_record: bool, out: Tensor) -> None:
        self._inputs.clear()
        self._outputs.clear()
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(self._module(x), y, reduction="sum")
            errors = torch.autograd.grad(loss, self._outputs)
        squares, written = torch.zeros(len(x)), list[Tensor | None]()
        for layer, given, error in zip(self._layers, self._inputs, errors, strict=True):
            if isinstance(layer, nn.Linear):
                written.append(None)
                squares += given.square().sum(1).add_(1.0) * error.square().sum(1)
                continue
            assert not isinstance(layer.padding, str)
            patches = nn.functional.unfold(
                given, layer.kernel_size, padding=layer.padding, stride=layer.stride
            )
            places = error.flatten(2)
            gradients = torch.cat(
                [torch.bmm(places, patches.transpose(1, 2)).flatten(1), places.sum(2)], 1
            )
            written.append(gradients)
            squares += torch.linalg.vector_norm(gradients, dim=1).square_()
        factor = torch.full((len(x),), 1.0 / size)
        if per_record:
            factor *= (self._radius / squares.sqrt_()).clamp_(max=1.0)
        clients, position = len(out), 0
        weights = factor.view(clients, 1, size)
        for whole, given, error in zip(written, self._inputs, errors, strict=True):
            if whole is None:
                scaled = (error * factor[:, None]).view(clients, size, -1)
                product = torch.bmm(scaled.transpose(1, 2), given.view(clients, size, -1))
                total = torch.cat([product.flatten(1), scaled.sum(1)], 1)
            else:
                total = torch.bmm(weights, whole.view(clients, size, -1))[:, 0]
            out[:, position : position + total.shape[1]] = total
            position += total.shape[1]


class OneByOne:
    """One pass back per client, for means that are not clipped record by record."""

    def __init__(self, module: nn.Sequential) -> None:
        self._module = module

    def __call__(self, given: Given, out: Tensor) -> None:
        flat, x, y, size, per_record, _ = given
        assert not per_record
        nn.utils.vector_to_parameters(flat, self._module.parameters())
        parameters = list(self._module.parameters())
        for client, row in enumerate(out):
            own = slice(client * size, (client + 1) * size)
            loss = nn.functional.cross_entropy(self._module(x[own]), y[own])
            found = torch.autograd.grad(loss, parameters)
            torch.cat([values.reshape(-1) for values in found], out=row)
