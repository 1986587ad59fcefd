"""Networks with convolutions: values, radii, bits, and which modules are read as one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, Packing, make_gradient_engine
from fl_shuffle.gradients.networks.chain import network_of
from tests.gradients.gradient_modules import NETWORKS, middle_radius
from tests.gradients.gradient_oracle import flat, means, offsets_of, relative_difference
from tests.gradients.network_modules import SHAPE


def problem(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = 2.0 * torch.randn(int(offsets[-1]), *SHAPE, generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


def engine_of(name: str, clip: str, norm: int = 2, **options: object) -> GradientEngine:
    engine = make_gradient_engine(NETWORKS[name], clip=clip, norm=norm, shape=SHAPE, **options)
    assert engine.path == "closed-form network"
    return engine


def away_from_kinks(name: str, x: Tensor, y: Tensor) -> Tensor:
    """The records whose exact gradient a small step of the input leaves nearly as it is.

    At a kink (of a ReLU, or between two candidates of a maximum) the rounding of a kernel decides
    which of two gradients is right.
    """
    one, free = np.arange(len(x) + 1), torch.full((len(x),), 1e9, dtype=torch.float64)
    here, *near = (
        means(NETWORKS[name], moved, y, one, free, clip="record", norm=2)
        for moved in (x, x * (1.0 - 1e-5), x * (1.0 + 1e-5))
    )
    steady = [torch.linalg.vector_norm(each - here, dim=1) for each in near]
    limit = 1e-3 * torch.linalg.vector_norm(here, dim=1)
    return torch.nonzero((steady[0] < limit) & (steady[1] < limit)).flatten()


@pytest.mark.parametrize("name", NETWORKS)
def test_clients_of_several_pieces(name: str) -> None:
    """One client of more records than a block holds, in a stretch of float64 sums, and others."""
    sizes = [200, 2, 2, 40]
    x, y, _ = problem([*sizes, 100], 3)
    smooth = away_from_kinks(name, x, y)[: sum(sizes)]
    x, y, offsets = x[smooth], y[smooth], offsets_of(sizes)
    engine = engine_of(name, "record")
    engine.packing = Packing(40, 5)
    radius = middle_radius(NETWORKS[name], x[:60], y[:60], 2)
    found = engine.client_means(flat(NETWORKS[name]), x, y, offsets, radius)
    limits = torch.from_numpy(engine.record_radius(radius, np.array(sizes)))
    expected = means(NETWORKS[name], x, y, offsets, limits, clip="record", norm=2)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_record_is_longer_than_the_radius(name: str, norm: int) -> None:
    x, y, offsets = problem([1] * 200, 4)
    engine = engine_of(name, "record", norm)
    radius = 0.3 * middle_radius(NETWORKS[name], x, y, norm)
    rows = engine.client_means(flat(NETWORKS[name]), 5.0 * x, y, offsets, radius).double()
    lengths = torch.linalg.vector_norm(rows, norm, dim=1)
    assert float(lengths.max()) <= radius
    assert float(lengths.median()) > radius * (1.0 - 1e-4)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_replacing_a_record_moves_a_mean_by_at_most_the_sensitivity(name: str, norm: int) -> None:
    """Equal records, one of them relabelled: sums of equal numbers round in one direction."""
    size, radius = 400, 1e-3
    x, y, _ = problem([1], 5)
    x, y = x.repeat(size, 1, 1, 1), y.repeat(size)
    engine, theta = engine_of(name, "record", norm), flat(NETWORKS[name])
    base = engine.client_means(theta, x, y, np.array([0, size]), radius)
    for label in range(5):
        other = y.clone()
        other[size // 3] = label
        moved = engine.client_means(theta, x, other, np.array([0, size]), radius) - base
        length = float(torch.linalg.vector_norm(moved.double(), norm))
        assert length <= 2.0 * radius / size
        assert (length == 0.0) == (label == int(y[0]))


class OwnForward(nn.Sequential):
    """Whatever its code does, nobody reads it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_what_is_no_network() -> None:
    plain = NETWORKS["plain"]
    assert isinstance(plain, nn.Sequential)
    hooked = copy.deepcopy(plain)
    hooked[1].register_forward_hook(lambda *_: None)
    tied = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 1), nn.Flatten(), nn.Linear(3, 2))
    tied[1].weight = tied[0].weight
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(196, 5))
    circular = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(324, 5)
    )
    unused = nn.Sequential(nn.Flatten(), nn.Linear(162, 5))
    unused.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    for module, shape in (
        (hooked, SHAPE),
        (tied, (3, 1)),
        (grouped, SHAPE),
        (circular, SHAPE),
        (unused, SHAPE),
        (plain, (3, 9, 9)),
        (nn.Sequential(plain, nn.Softmax(0)), SHAPE),
        (nn.Sequential(nn.Flatten(0), nn.Linear(324, 5)), SHAPE),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 162)), nn.Linear(162, 5)), SHAPE),
        (OwnForward(*plain), SHAPE),
        (nn.Sequential(*plain[:9], nn.ReLU(), OwnForward(nn.Linear(6, 5))), SHAPE),
        (plain[:4], SHAPE),
    ):
        assert network_of(module, shape) is None
    assert network_of(plain, SHAPE) is not None


def test_inputs_of_another_shape_are_refused() -> None:
    x, y, offsets = problem([3])
    engine, theta = engine_of("plain", "record"), flat(NETWORKS["plain"])
    for bad in (x[:, :, :8], x.double(), x.flatten(1)):
        with pytest.raises(ValueError, match="inputs"):
            engine.client_means(theta, bad, y, offsets, 1.0)
