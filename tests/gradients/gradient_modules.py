"""Modules for the gradient tests, by the path that serves them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tests.gradients.gradient_oracle import means, offsets_of
from tests.gradients.network_modules import SHAPE as IMAGES
from tests.gradients.network_modules import networks

SHAPE = (13,)
"""Of a record."""
NETWORKS = networks()


def chains() -> dict[str, nn.Module]:
    """Closed forms of linear layers."""
    torch.manual_seed(3)
    return {
        "linear": nn.Linear(13, 5),
        "linear without bias": nn.Sequential(nn.Flatten(), nn.Linear(13, 5, bias=False)),
        "relu": nn.Sequential(nn.Linear(13, 40), nn.ReLU(), nn.Linear(40, 5)),
        "tanh, gelu": nn.Sequential(
            nn.Sequential(nn.Linear(13, 17), nn.Tanh()),
            nn.Linear(17, 9, bias=False),
            nn.GELU(),
            nn.Identity(),
            nn.Linear(9, 5),
        ),
        "sigmoid, none": nn.Sequential(
            nn.Linear(13, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Linear(8, 5)
        ),
        "elu in place": nn.Sequential(nn.Linear(13, 6), nn.ELU(inplace=True), nn.Linear(6, 5)),
        "linear, compiled": nn.Linear(13, 5),
        "linear without bias, compiled": nn.Linear(13, 23, bias=False),
    }


def shape_of(name: str) -> tuple[int, ...]:
    return IMAGES if name in NETWORKS else SHAPE


def problem_of(name: str, sizes: list[int], seed: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Records, labels and offsets of clients with so many records each."""
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = torch.randn(int(offsets[-1]), *shape_of(name), generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


def middle_radius(module: nn.Module, x: Tensor, y: Tensor, norm: int) -> float:
    """The median length of the records' gradients: about half of them are clipped."""
    alone = means(module, x, y, np.arange(len(x) + 1), Tensor(), clip="none", norm=norm)
    return float(torch.linalg.vector_norm(alone, norm, dim=1).median())


def records_of(name: str) -> int:
    """So many that a compiled path is taken, if that is what the name says."""
    return 1 << 40 if name.endswith("compiled") else 0


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


class Words(nn.Module):
    """Tokens [N, T] through an embedding and a recurrent layer."""

    def __init__(self, recurrent: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.recurrent = recurrent(6, 7, batch_first=True)
        self.head = nn.Linear(7, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states[:, -1])


class Branching(nn.Module):
    """Control flow that depends on the data: only one record at a time can be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(13, 5)
        self.negative = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.positive(r) if float(r.sum()) > 0 else self.negative(r) for r in x]
        return torch.stack(rows)


class Cells(nn.Module):
    """Writes records into a fresh array, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(13, 6)
        self.head = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 7, dtype=x.dtype)
        state[:, 1:] = torch.tanh(self.inner(x))
        return self.head(state)
