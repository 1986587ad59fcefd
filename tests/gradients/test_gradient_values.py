"""Every path against autograd in float64, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import make_gradient_engine
from tests.gradients.gradient_modules import (
    NETWORKS,
    SHAPE,
    Branching,
    Cells,
    Small,
    Tied,
    Words,
    chains,
    middle_radius,
    problem_of,
    records_of,
    shape_of,
)
from tests.gradients.gradient_oracle import flat, limits_of, means, offsets_of, relative_difference

SIZES = [3, 1, 9, 1, 4, 9, 150]
MODULES = {**chains(), **NETWORKS}


def problem(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    count = int(offsets[-1])
    x = 2.0 * torch.randn(count, 13, generator=generator)
    y = torch.randint(0, 5, (count,), generator=generator)
    radius = 1.0 + 7.0 * torch.rand(len(sizes), generator=generator)
    return x, y, offsets, radius


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("name", MODULES)
def test_chains_against_autograd(name: str, clip: str, norm: int) -> None:
    module = MODULES[name]
    x, y, offsets = problem_of(name, SIZES, 0)
    x *= 2.0
    radius = middle_radius(module, x, y, norm) * torch.linspace(0.7, 1.3, len(SIZES))
    engine = make_gradient_engine(
        module, shape=shape_of(name), clip=clip, norm=norm, records=records_of(name)
    )
    assert engine.path.endswith("compiled") == name.endswith("compiled")
    assert engine.path.startswith("closed-form")
    found = engine.client_means(flat(module), x, y, offsets, radius)
    limits = limits_of(engine, radius, offsets)
    expected = means(module, x, y, offsets, limits, clip=clip, norm=norm)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("module", "path"),
    [
        (Small, "torch.func"),
        (Tied, "torch.func"),
        (lambda: nn.Sequential(MODULES["relu"], nn.LayerNorm(5)), "closed-form network"),
        (lambda: nn.Sequential(MODULES["relu"], nn.LogSoftmax(1)), "torch.func"),
        (lambda: Words(nn.LSTM), "torch.func"),
        (Cells, "functional loop"),
        (lambda: Words(nn.GRU), "functional loop"),
        (Branching, "functional loop"),
    ],
)
def test_general_modules_against_autograd(module: object, path: str, norm: int) -> None:
    torch.manual_seed(5)
    made = module()  # type: ignore[operator]
    x, y, offsets, radius = problem([3, 1, 40, 2])
    if isinstance(made, Words):
        x = torch.randint(0, 11, (len(x), 4), generator=torch.Generator().manual_seed(1))
    engine = make_gradient_engine(made, shape=SHAPE, clip="record", norm=norm)
    found = engine.client_means(flat(made), x, y, offsets, radius)
    assert engine.path == path
    limits = limits_of(engine, radius, offsets)
    expected = means(made, x, y, offsets, limits, clip="record", norm=norm)
    assert relative_difference(found, expected) < 1e-5
    other = make_gradient_engine(made, shape=SHAPE, clip="none", norm=norm)
    found = other.client_means(flat(made), x, y, offsets, radius)
    expected = means(made, x, y, offsets, radius, clip="none", norm=norm)
    assert relative_difference(found, expected) < 1e-5
