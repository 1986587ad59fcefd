"""Modules for the gradient tests, by the path that serves them; clients; and the definition, in
float64, one record at a time, by autograd."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import (
    GradientEngine,
    Loss,
    NonfiniteRecords,
    blocks,
    make_gradient_engine,
    softmax_regression,
)
from fl_shuffle.gradients.local_training import LocalTraining

SHAPE, IMAGES = (13,), (2, 9, 9)
"""Of a record; of one of `NETWORKS`."""
ALWAYS_COMPILED = 1 << 40
"""So many records that softmax regression is compiled."""


class Small(nn.Module):
    """A convolution and code of its own: closed forms of its layers."""

    def __init__(self, features: int = 13, classes: int = 5) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * (features - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.convolution(x[:, None])))
        return self.head(hidden.flatten(1))


class OwnScale(Small):
    """A parameter in no known layer, for torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class OwnProduct(nn.Module):
    """A parameter of its own, multiplied in `forward`: for torch.func."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class OwnForward(nn.Sequential):
    """Whatever its code does, nobody reads it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Branching(nn.Module):
    """Control flow that depends on the data: only one record at a time can be differentiated."""

    def __init__(self, features: int = 13, classes: int = 5, *, bias: bool = True) -> None:
        super().__init__()
        self.positive = nn.Linear(features, classes, bias)
        self.negative = nn.Linear(features, classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.positive(r) if float(r.sum()) > 0 else self.negative(r) for r in x]
        return torch.stack(rows)


torch.manual_seed(3)
CHAINS: dict[str, nn.Module] = {
    "linear": nn.Linear(13, 5),
    "relu": nn.Sequential(nn.Linear(13, 40), nn.ReLU(), nn.Linear(40, 5)),
    "mixed": nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(13, 17), nn.Tanh()),
        nn.Linear(17, 9, bias=False),
        nn.GELU(),
        nn.Identity(),
        nn.Linear(9, 6),
        nn.ELU(inplace=True),
        nn.Linear(6, 5),
    ),
    "linear, compiled": nn.Linear(13, 5),
    "linear without bias, compiled": nn.Linear(45, 7, bias=False),
}
"""Closed forms of linear layers."""
NETWORKS: dict[str, nn.Module] = {
    "pictures": nn.Sequential(
        nn.Conv2d(2, 8, 4, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(8, 9, 2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(9, bias=False),
        nn.Linear(9, 6),
        nn.Tanh(),
        nn.Linear(6, 5, bias=False),
    ),
    # Sequences: a convolution along them, and a linear map of each place.
    "lines": nn.Sequential(
        nn.Flatten(1, 2),
        nn.Conv1d(18, 7, 3, stride=2, dilation=2),
        nn.Sigmoid(),
        nn.Linear(3, 4),
        nn.LayerNorm([7, 4]),
        nn.Flatten(),
        nn.Linear(28, 5),
    ),
}
OTHERS: dict[str, nn.Module] = {
    "layers": Small(),
    "torch.func": OwnScale(),
    "functional loop": Branching(),
}
"""By path."""
MODULES = {**CHAINS, **NETWORKS, **OTHERS}


def path_of(name: str) -> str:
    """What the engine says once it has seen records."""
    if name in OTHERS:
        return name
    return "closed-form linear, compiled" if "compiled" in name else "closed-form network"


class Problem:
    """Clients with so many records, a module, and the engine of its path, which is compiled if that
    is what the module's name says.

    Radii are `radius`, or lie around the median length of the records' gradients: then about half
    of them are clipped.
    """

    def __init__(
        self, name: str, sizes: list[int], seed: int = 0, *, module: nn.Module | None = None,
        radius: float = 0.0, clip: str = "record", norm: int = 2, loss: Loss | None = None,
        **more: object,
    ) -> None:  # fmt: skip
        self.module = module or MODULES[name]
        self.clip, self.norm, self.loss = clip, norm, loss or nn.functional.cross_entropy
        wide = (self.module.in_features,) if isinstance(self.module, nn.Linear) else SHAPE
        shape = IMAGES if name in NETWORKS else wide
        options = {"records": ALWAYS_COMPILED * ("compiled" in name), "loss": loss, **more}
        self.engine: GradientEngine = make_gradient_engine(
            self.module, shape=shape, clip=clip, norm=norm, **options
        )
        generator = torch.Generator().manual_seed(seed)
        self.theta = torch.nn.utils.parameters_to_vector(self.module.parameters()).detach()
        self.sizes, self.offsets = sizes, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.x = torch.randn(int(self.offsets[-1]), *shape, generator=generator)
        self.y = torch.randint(0, 5, (len(self.x),), generator=generator)
        self.radius = torch.full((len(sizes),), radius, dtype=torch.float64)
        if not radius:
            some = self.gradients(0, min(60, len(self.x)))
            middle = torch.linalg.vector_norm(some, norm, dim=1).median()
            self.radius = middle * torch.linspace(0.7, 1.3, len(sizes))

    def gradients(self, start: int, stop: int) -> Tensor:
        """float64 [n, d] of these records: the definition."""
        module, rows = copy.deepcopy(self.module).double(), []
        for record in range(start, stop):
            value = self.loss(module(self.x[record, None].double()), self.y[record, None]).sum()
            pieces = torch.autograd.grad(
                value, list(module.parameters()), materialize_grads=True, allow_unused=True
            )
            rows.append(torch.cat([piece.reshape(-1) for piece in pieces]))
        return torch.stack(rows)

    def expected(self) -> Tensor:
        """float64 [k, d]: the clients' means of records that are clipped to what the engine says,
        which is hardly less than the radius; what is not finite counts as zero."""
        radius = self.radius.double()
        limits = torch.from_numpy(self.engine.record_radius(radius.numpy(), np.array(self.sizes)))
        assert bool((limits < radius).all() and (limits > radius * (1.0 - 2e-4)).all())
        rows = []
        for limit, (start, stop) in zip(limits, pairwise(self.offsets), strict=True):
            gradients = self.gradients(start, stop)
            gradients[~torch.isfinite(gradients).all(1)] = 0.0
            if self.clip == "record":
                lengths = torch.linalg.vector_norm(gradients, self.norm, dim=1, keepdim=True)
                gradients *= (limit / lengths).clamp(max=1.0)
            rows.append(gradients.mean(0))
        return torch.stack(rows)

    def rows(
        self, x: Tensor | None = None, y: Tensor | None = None, *, steps: int = 0,
        tally: NonfiniteRecords | None = None, clips: np.ndarray | None = None,
    ) -> Tensor:  # fmt: skip
        """The clients' means, clipped themselves or not, or what so many local steps come to; of
        other records, if given."""
        x, y = self.x if x is None else x, self.y if y is None else y
        if steps:
            training = LocalTraining(0.2, steps)
            return self.engine.local_update(self.theta, x, y, self.offsets, training)
        return self.engine.client_means(self.theta, x, y, self.offsets, self.radius, tally, clips)

    def part(self, first: int, last: int, shift: int = 0) -> Problem:
        """The clients first .. last - 1 alone, their records in memory of another alignment."""
        some, records = copy.copy(self), slice(int(self.offsets[first]), int(self.offsets[last]))
        some.x, some.y = self.x[records], self.y[records]
        if shift:
            moved = torch.empty(shift + some.x.numel())[shift:]
            some.x = moved.view_as(some.x).copy_(some.x)
        some.offsets = self.offsets[first : last + 1] - self.offsets[first]
        some.sizes, some.radius = self.sizes[first:last], self.radius[first:last]
        return some


def choose_path(patch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """Softmax regression is compiled, or is not, however little there is to do."""
    patch.setattr(softmax_regression, "LEAST_PRODUCTS", 0 if compiled else 1 << 62)


def small_blocks(patch: pytest.MonkeyPatch, numbers: int) -> None:
    """Blocks of networks have so many numbers."""
    patch.setattr(blocks, "NETWORK_NUMBERS", numbers)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference of a row in l2, relative to the longest expected row."""
    scale = torch.linalg.vector_norm(expected, dim=1).max()
    return float(torch.linalg.vector_norm(found.double() - expected, dim=1).max() / scale)
