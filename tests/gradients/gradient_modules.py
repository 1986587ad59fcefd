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


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def offsets_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def record_gradient(module: nn.Module, x: Tensor, y: Tensor, loss: Loss | None) -> Tensor:
    """float64 [d] of one record, by a module that already is float64."""
    logits = module(x[None].double())
    value = (
        nn.functional.cross_entropy(logits, y[None])
        if loss is None
        else loss(logits, y[None]).sum()
    )
    pieces = torch.autograd.grad(
        value, list(module.parameters()), materialize_grads=True, allow_unused=True
    )
    return torch.cat([piece.reshape(-1) for piece in pieces])


def shortened(vector: Tensor, radius: float, norm: int) -> Tensor:
    length = float(torch.linalg.vector_norm(vector, norm))
    return vector * (radius / length) if length > radius else vector


def limits_of(engine: GradientEngine, radius: Tensor, offsets: np.ndarray) -> Tensor:
    """To what an engine clips records, hardly less than `radius` [k]."""
    limits = torch.from_numpy(engine.record_radius(radius.double().numpy(), np.diff(offsets)))
    assert bool((limits < radius).all() and (limits > radius * (1.0 - 2e-4)).all())
    return limits


def means(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    offsets: np.ndarray,
    radius: Tensor,
    *,
    clip: str,
    norm: int,
    loss: Loss | None = None,
) -> Tensor:
    module = copy.deepcopy(module).double()
    rows = []
    for client, (start, stop) in enumerate(pairwise(offsets)):
        gradients = [record_gradient(module, x[i], y[i], loss) for i in range(start, stop)]
        if clip == "record":
            gradients = [shortened(g, float(radius[client]), norm) for g in gradients]
        rows.append(torch.stack(gradients).mean(0))
    return torch.stack(rows)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference of a row in l2, relative to the longest expected row."""
    scale = torch.linalg.vector_norm(expected, dim=1).max()
    return float(torch.linalg.vector_norm(found.double() - expected, dim=1).max() / scale)
