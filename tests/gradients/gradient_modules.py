"""Modules for the gradient tests, by the path that serves them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, blocks, make_gradient_engine, softmax_regression
from tests.gradients.gradient_oracle import means, offsets_of

SHAPE, IMAGES = (13,), (2, 9, 9)
"""Of a record; of one of `NETWORKS`."""
ALWAYS_COMPILED = 1 << 40
"""So many records that softmax regression is compiled."""


class Small(nn.Module):
    """A convolution, for torch.func; inputs [N, 13]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 11, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.convolution(x[:, None])))
        return self.head(hidden.flatten(1))


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(13, 13)
        self.head = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.square(torch.tanh(self.square(x)))))


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
    "tanh, gelu": nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(13, 17), nn.Tanh()),
        nn.Linear(17, 9, bias=False),
        nn.GELU(),
        nn.Identity(),
        nn.Linear(9, 5),
    ),
    "elu in place": nn.Sequential(
        nn.Linear(13, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.ELU(inplace=True), nn.Linear(6, 5)
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
VECTORIZED: dict[str, nn.Module] = {
    "convolution": Small(),
    "tied": Tied(),
    "log-softmax": nn.Sequential(nn.Linear(13, 5), nn.LogSoftmax(1)),
}
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


def engine_of(name: str, clip: str = "record", norm: int = 2, **more: object) -> GradientEngine:
    """The engine of one of `MODULES`, compiled if that is what the name says."""
    shape, records = IMAGES if name in NETWORKS else SHAPE, ALWAYS_COMPILED * ("compiled" in name)
    return make_gradient_engine(
        MODULES[name], shape=shape, clip=clip, norm=norm, records=records, **more
    )


def problem_of(name: str, sizes: list[int], seed: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Records, labels and offsets of clients with so many records each."""
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    count = int(offsets[-1])
    x = torch.randn(count, *(IMAGES if name in NETWORKS else SHAPE), generator=generator)
    return x, torch.randint(0, 5, (count,), generator=generator), offsets


def middle_radius(module: nn.Module, x: Tensor, y: Tensor, norm: int) -> float:
    """The median length of the records' gradients: about half of them are clipped."""
    alone = means(module, x, y, np.arange(len(x) + 1), Tensor(), clip="none", norm=norm)
    return float(torch.linalg.vector_norm(alone, norm, dim=1).median())


def choose_path(patch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """Softmax regression is compiled, or is not, however little there is to do."""
    patch.setattr(softmax_regression, "LEAST_PRODUCTS", 0 if compiled else 1 << 62)


def small_blocks(patch: pytest.MonkeyPatch, numbers: int) -> None:
    """Blocks of networks have so many numbers."""
    patch.setattr(blocks, "NETWORK_NUMBERS", numbers)
