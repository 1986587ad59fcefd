"""Rounding included, a record moves its client's mean by at most 2 clip / records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import make_gradient_engine, rounding
from fl_shuffle.gradients.row_clips import clip_rows
from tests.gradients.gradient_modules import ALWAYS_COMPILED, NETWORKS, Problem, flat


class Product(nn.Module):
    """A linear model, for torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Loop(Product):
    """The same, where only one record at a time can be differentiated."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([r @ self.weight.T if float(r.sum()) > -1e9 else r[:2] for r in x])


SMALL: dict[str, tuple[nn.Module, int]] = {
    "closed-form network": (nn.Linear(3, 2, bias=False), 0),
    "closed-form linear, compiled": (nn.Linear(3, 2, bias=False), ALWAYS_COMPILED),
    "torch.func": (Product(), 0),
    "functional loop": (Loop(), 0),
}
for module, _ in SMALL.values():
    # With other weights a record's two gradients need not be opposite.
    nn.init.zeros_(module.weight)


def farthest(name: str, size: int, norm: int) -> float:
    """How far relabelling one of `size` equal records moves the mean, over 2 C / B."""
    (module, records), radius, worst = SMALL[name], 0.7, 0.0
    engine = make_gradient_engine(module, shape=(3,), clip="record", norm=norm, records=records)
    offsets, y = np.array([0, size]), torch.zeros(size, dtype=torch.int64)
    # Sums of equal records round in one direction.
    for seed in range(3 if size < 1000 else 1):
        x = 9.0 * torch.rand(1, 3, generator=torch.Generator().manual_seed(seed)).expand(size, 3)
        base = engine.client_means(flat(module), x, y, offsets, radius)
        assert engine.path == name
        for place in (0, size // 3, size - 1)[: 3 if size < 1000 else 1]:
            other = y.clone()
            other[place] = 1
            moved = engine.client_means(flat(module), x, other, offsets, radius) - base
            length = float(torch.linalg.vector_norm(moved.double(), norm))
            worst = max(worst, length * size / (2.0 * radius))
    return worst


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("closed-form network", [2, 700, 65_536]),
        ("closed-form linear, compiled", [2, 9, 700, 65_536]),
        ("torch.func", [2, 700, 8_192]),
        ("functional loop", [2, 70]),
    ],
)
def test_one_record_moves_a_mean_by_at_most_the_sensitivity(
    name: str, sizes: list[int], norm: int
) -> None:
    # The test would see it: the records are clipped and turned around.
    assert all(0.99 < farthest(name, size, norm) <= 1.0 for size in sizes)


def test_bounds_against_the_worst_that_sums_can_do() -> None:
    """Shares of one, added one after the other; every sum with the first one errs by all it may."""
    tile = 32
    sizes = np.array([1, 2, 31, 32, 33, 64, 65, 128, 129, 1000, 65_536])
    bounds = rounding.move_error_float32(sizes, tile)
    for size, found in zip(sizes.tolist(), bounds.tolist(), strict=True):
        inside = min(size, tile)
        # Of its own stretch: a product's rounding for every share, then the sums.
        units = inside + sum(range(2, inside + 1)) if size > 1 else 0
        groups = -(-size // tile)
        expected = units * 2.0**-24
        if groups > 1:
            exact = sum(min(k * tile, size) for k in range(2, groups + 1))
            expected += exact * 2.0**-53 + size * 2.0**-24
        assert found >= expected * (1.0 - 1e-12)
        assert found <= 1.5 * expected + 2 * tile * 2.0**-24


@pytest.mark.parametrize("norm", [1, 2])
def test_whole_means_of_a_million_numbers_stay_in_their_radius(norm: int) -> None:
    """Float32 norms of so many numbers were off by 1e-4."""
    for value in (1.0, 1.1, 0.3):
        update = torch.full((1, 1_000_000), value)
        assert clip_rows(update, 0.01, norm).all()
        length = float(torch.linalg.vector_norm(update.double(), norm))
        assert 0.01 * (1.0 - 1e-4) < length <= 0.01


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    "name", [*NETWORKS, "relu", "linear, compiled", "convolution", "branching"]
)
def test_no_clipped_record_is_longer_than_the_radius(name: str, norm: int) -> None:
    problem = Problem(name, [1] * 60, 4, norm=norm)
    problem.radius *= 0.3
    lengths = torch.linalg.vector_norm(problem.rows(5.0 * problem.x).double(), norm, dim=1)
    shares = lengths / problem.radius
    assert float(shares.max()) <= 1.0 and float(shares.median()) > 1.0 - 1e-4


def across_a_power_of_two(size: int) -> Tensor:
    """Records' features [size, 1] for gradients (-x/2, x/2) whose float32 sum drifts, or does not.

    Half of them carry the mean to 1 (x = 4), or, with the first one negated, to just below. Above 1
    floats lie twice as far apart: there the others, 1.25 and -0.75 of the spacing below 1, one
    after the other, round to +2 and 0 spacings, and to +1 and -1 below.
    """
    x = torch.full((size, 1), 4.0)
    spacing = 2.0 * size * 2.0**-24
    x[size // 2 :: 2] = 1.25 * spacing
    x[size // 2 + 1 :: 2] = -0.75 * spacing
    return x


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_records_that_break_running_sums_in_float32(norm: int, compiled: bool) -> None:
    size, radius = 65_536, 2.95 if norm == 2 else 4.1
    x = across_a_power_of_two(size)
    neighbour = x.clone()
    neighbour[0] *= -1.0
    # The records have the power: added one after the other in float32 they move it 30 times as far.
    shares = [(0.5 * records / size).numpy().ravel() for records in (x, neighbour)]
    running, moved = (np.add.accumulate(share, dtype=np.float32)[-1] for share in shares)
    length = abs(float(running) - float(moved)) * 2.0 ** (1.0 / norm)
    assert length > 20.0 * 2.0 * radius / size

    module = nn.Linear(1, 2, bias=False)
    records = ALWAYS_COMPILED if compiled else 0
    engine = make_gradient_engine(module, shape=(1,), clip="record", norm=norm, records=records)
    assert ("compiled" in engine.path) == compiled
    labels, offsets = torch.ones(size, dtype=torch.int64), np.array([0, size])
    rows = [
        engine.client_means(torch.zeros(2), given, labels, offsets, radius).double()
        for given in (x, neighbour)
    ]
    length = float(torch.linalg.vector_norm(rows[0] - rows[1], norm))
    assert 0.9 < length * size / (2.0 * radius) <= 1.0
