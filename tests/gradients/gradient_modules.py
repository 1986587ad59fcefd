"""Modules for the gradient tests, by the path that serves them."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import (
    GradientEngine,
    NonfiniteRecords,
    blocks,
    make_gradient_engine,
    softmax_regression,
)
from tests.gradients.gradient_oracle import flat, means, offsets_of

SHAPE, IMAGES = (13,), (2, 9, 9)
"""Of a record; of one of `NETWORKS`."""
ALWAYS_COMPILED = 1 << 40
"""So many records that softmax regression is compiled."""


class Small(nn.Module):
    """A convolution, for torch.func."""

    def __init__(self, features: int = 13, classes: int = 5) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * (features - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.convolution(x[:, None])))
        return self.head(hidden.flatten(1))


class Branching(nn.Module):
    """Control flow that depends on the data: only one record at a time can be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(13, 5)
        self.negative = nn.Linear(13, 5)

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
    "linear without bias, compiled": nn.Linear(13, 23, bias=False),
}
"""Closed forms of linear layers."""
NETWORKS: dict[str, nn.Module] = {
    "plain": nn.Sequential(
        nn.Conv2d(2, 8, 4, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(8, 9, 2),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(9, 6),
        nn.Tanh(),
        nn.Linear(6, 5, bias=False),
    ),
    "wide": nn.Sequential(
        nn.Conv2d(2, 40, 5, bias=False),
        nn.GroupNorm(4, 40),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(40, 30, 2),
        nn.Flatten(),
        nn.LayerNorm(30, bias=False),
        nn.Linear(30, 5),
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
VECTORIZED: dict[str, nn.Module] = {"convolution": Small()}
"""By torch.func."""
LOOPS: dict[str, nn.Module] = {"branching": Branching()}
"""One record at a time."""
MODULES = {**CHAINS, **NETWORKS, **VECTORIZED, **LOOPS}


def path_of(name: str) -> str:
    """What the engine says once it has seen records."""
    if name in VECTORIZED:
        return "torch.func"
    if name in LOOPS:
        return "functional loop"
    return "closed-form linear, compiled" if "compiled" in name else "closed-form network"


class Problem:
    """Clients with so many records, a module, and the engine of its path, which is compiled if that
    is what the module's name says.

    Radii are `radius`, or lie around the median length of the records' gradients: then about half
    of them are clipped.
    """

    def __init__(
        self, name: str, sizes: list[int], seed: int = 0, *, module: nn.Module | None = None,
        radius: float = 0.0, clip: str = "record", norm: int = 2, **more: object,
    ) -> None:  # fmt: skip
        self.module = module or MODULES[name]
        wide = (self.module.in_features,) if isinstance(self.module, nn.Linear) else SHAPE
        shape = IMAGES if name in NETWORKS else wide
        options = {"records": ALWAYS_COMPILED * ("compiled" in name), **more}
        self.engine: GradientEngine = make_gradient_engine(
            self.module, shape=shape, clip=clip, norm=norm, **options
        )
        generator = torch.Generator().manual_seed(seed)
        self.theta, self.offsets, self.sizes = flat(self.module), offsets_of(sizes), sizes
        self.x = torch.randn(int(self.offsets[-1]), *shape, generator=generator)
        self.y = torch.randint(0, 5, (len(self.x),), generator=generator)
        self.radius = torch.full((len(sizes),), radius, dtype=torch.float64)
        if not radius:
            some = self.module, self.x[:60], self.y[:60], np.arange(min(60, len(self.x)) + 1)
            alone = means(*some, self.radius, clip="none", norm=norm)
            middle = torch.linalg.vector_norm(alone, norm, dim=1).median()
            self.radius = middle * torch.linspace(0.7, 1.3, len(sizes))

    def rows(
        self, x: Tensor | None = None, y: Tensor | None = None, *, steps: int = 0,
        tally: NonfiniteRecords | None = None,
    ) -> Tensor:  # fmt: skip
        """The clients' means, or what so many local steps come to; of other records, if given."""
        x, y = self.x if x is None else x, self.y if y is None else y
        if steps:
            return self.engine.local_update(
                self.theta, x, y, self.offsets, steps=steps, learning_rate=0.2
            )
        return self.engine.client_means(
            self.theta, x, y, self.offsets, self.radius, nonfinite=tally
        )

    def part(self, first: int, last: int, shift: int = 0) -> Problem:
        """The clients first .. last - 1 alone, their records in memory of another alignment."""
        some, records = copy(self), slice(int(self.offsets[first]), int(self.offsets[last]))
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
