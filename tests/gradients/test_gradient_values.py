"""Every path against autograd in float64, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import make_gradient_engine
from tests.gradients.gradient_modules import (
    Branching,
    Cells,
    Small,
    Tied,
    Words,
    chains,
    records_of,
)
from tests.gradients.gradient_oracle import flat, means, offsets_of, relative_difference

SIZES = [3, 1, 9, 1, 4, 9, 30]
CHAINS = chains()


def problem(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    count = int(offsets[-1])
    x = 2.0 * torch.randn(count, 13, generator=generator)
    y = torch.randint(0, 5, (count,), generator=generator)
    radius = 1.0 + 7.0 * torch.rand(len(sizes), generator=generator)
    return x, y, offsets, radius


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("clip", ["record", "average", "none"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_against_autograd(name: str, clip: str, norm: int) -> None:
    module = CHAINS[name]
    x, y, offsets, radius = problem(SIZES)
    radius = radius * (8.0 if norm == 1 else 1.0)
    engine = make_gradient_engine(module, clip=clip, norm=norm, records=records_of(name))
    assert engine.path.endswith("compiled") == name.endswith("compiled")
    assert engine.path.startswith("closed-form linear" if "linear" in name else "closed-form mlp")
    found = engine.client_means(flat(module), x, y, offsets, radius)
    expected = means(module, x, y, offsets, radius, clip=clip, norm=norm)
    assert relative_difference(found, expected) < 1e-5


def test_radii_of_the_oracle_problem_clip_some_records_and_not_others() -> None:
    x, y, offsets, radius = problem(SIZES)
    module = CHAINS["relu"]
    clipped = means(module, x, y, offsets, radius, clip="record", norm=2)
    plain = means(module, x, y, offsets, radius, clip="none", norm=2)
    tight = means(module, x, y, offsets, radius * 1e-3, clip="record", norm=2) * 1e3
    assert relative_difference(clipped, plain) > 1e-2
    assert relative_difference(clipped, tight) > 1e-2


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("module", "path"),
    [
        (Small, "torch.func"),
        (Tied, "torch.func"),
        (lambda: nn.Sequential(CHAINS["relu"], nn.LayerNorm(5)), "torch.func"),
        (lambda: Words(nn.LSTM), "torch.func"),
        (Cells, "opacus"),
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
    engine = make_gradient_engine(made, clip="record", norm=norm)
    found = engine.client_means(flat(made), x, y, offsets, radius)
    assert engine.path == path
    expected = means(made, x, y, offsets, radius, clip="record", norm=norm)
    assert relative_difference(found, expected) < 1e-5
    for clip in ("average", "none"):
        other = make_gradient_engine(made, clip=clip, norm=norm)
        found = other.client_means(flat(made), x, y, offsets, radius)
        expected = means(made, x, y, offsets, radius, clip=clip, norm=norm)
        assert relative_difference(found, expected) < 1e-5
