"""Every path against autograd in float64, one record at a time; and which modules take which."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import Packing, make_gradient_engine
from fl_shuffle.gradients.networks.chain import network_of
from tests.gradients.gradient_modules import (
    CHAINS,
    IMAGES,
    MODULES,
    NETWORKS,
    SHAPE,
    engine_of,
    middle_radius,
    path_of,
    problem_of,
)
from tests.gradients.gradient_oracle import flat, limits_of, means, relative_difference

SIZES = [3, 1, 9, 1, 4, 9]


@pytest.mark.parametrize(("clip", "norm"), [("record", 1), ("record", 2), ("none", 2)])
@pytest.mark.parametrize("name", MODULES)
def test_means_against_autograd(name: str, clip: str, norm: int) -> None:
    """Of networks the last client is more than a block holds, and is computed in pieces."""
    module = MODULES[name]
    sizes = [*SIZES, 150 if name in CHAINS else 60]
    x, y, offsets = problem_of(name, sizes, 0)
    x *= 2
    radius = middle_radius(module, x, y, norm) * torch.linspace(0.7, 1.3, len(sizes))
    engine = engine_of(name, clip, norm)
    if name not in CHAINS:
        engine.packing = Packing(40, 5)
    found = engine.client_means(flat(module), x, y, offsets, radius)
    assert clip == "none" or engine.path == path_of(name)
    limits = limits_of(engine, radius, offsets)
    expected = means(module, x, y, offsets, limits, clip=clip, norm=norm)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "linear, compiled", "plain", "tied"])
def test_local_updates_are_steps_along_each_clients_own_mean(name: str) -> None:
    x, y, offsets = problem_of(name, [5, 1, 12], 2)
    engine, theta = engine_of(name, "none"), flat(MODULES[name])
    found = engine.local_update(theta, x, y, offsets, steps=4, learning_rate=0.3)
    local = theta.repeat(3, 1)
    for _ in range(4):
        rows = [engine.client_means(each, x, y, offsets, 1.0)[k] for k, each in enumerate(local)]
        local = local - 0.3 * torch.stack(rows)
    assert relative_difference(found, (local - theta).double()) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "lines", "convolution"])
def test_own_losses(name: str) -> None:
    def squares(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - nn.functional.one_hot(labels, 5)).square().sum(1)

    x, y, offsets = problem_of(name, [4, 1, 33], 2)
    engine, radius = engine_of(name, loss=squares), torch.full((3,), 0.4)
    found = engine.client_means(flat(MODULES[name]), x, y, offsets, radius)
    limits = limits_of(engine, radius, offsets)
    expected = means(MODULES[name], x, y, offsets, limits, clip="record", norm=2, loss=squares)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "convolution"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_values(name: str) -> None:
    x, y, offsets = problem_of(name, [3, 5, 1, 70], 2)
    theta = flat(MODULES[name])
    expected = engine_of(name).client_means(theta, x, y, offsets, 0.5)
    engine = engine_of(name, device="cuda")
    found = engine.client_means(theta.cuda(), x.cuda(), y.cuda(), offsets, 0.5)
    assert relative_difference(found.cpu(), expected.double()) < 1e-5


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
def test_zero_gradients_stay_zero(name: str) -> None:
    """Records whose logits are certain have no gradient at all."""
    theta = torch.zeros(70)
    theta[-5] = 200.0
    x, y, offsets = problem_of(name, [3, 1, 40], 2)
    for clip in ("record", "none"):
        means = engine_of(name, clip).client_means(theta, x, torch.zeros_like(y), offsets, 1.0)
        assert not means.any()


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
@pytest.mark.parametrize(("feature", "radius"), [(1e17, 1e-3), (1e9, 1e-12), (1e18, 1e-12)])
def test_tiny_errors_of_huge_inputs_are_clipped_too(
    name: str, feature: float, radius: float
) -> None:
    """Squares of errors below 1e-19 are zero in float32; the gradient need not be short."""
    theta, x = torch.zeros(70), torch.zeros(1, 13)
    theta[65], x[0, 1] = 44.5, feature  # softmax of the other classes: 4.7e-20
    y = torch.zeros(1, dtype=torch.int64)
    row = engine_of(name).client_means(theta, x, y, np.array([0, 1]), radius).double()
    assert 0.0 < float(torch.linalg.vector_norm(row)) <= radius


FROZEN, WHOLE = nn.Linear(13, 5), nn.Linear(13, 5)
FROZEN.bias.requires_grad_(False)
WHOLE.weight = nn.Parameter(torch.ones(5, 13, dtype=torch.int64), requires_grad=False)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(13, 4), nn.BatchNorm1d(4)), "GroupNorm"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 2)), "mixes"),
        (nn.Sequential(nn.Linear(13, 4), nn.Dropout(0.5)), "random state"),
        (nn.ReLU(), "no parameters"),
        (FROZEN, "bias"),
        (WHOLE, "floating point"),
    ],
)
def test_modules_that_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_gradient_engine(module, shape=SHAPE, clip="record")


class OwnForward(nn.Sequential):
    """Whatever its code does, nobody reads it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_what_is_no_network() -> None:
    plain = NETWORKS["plain"]
    assert isinstance(plain, nn.Sequential) and network_of(plain, IMAGES) is not None
    hooked = copy.deepcopy(plain)
    hooked[1].register_forward_hook(lambda *_: None)
    tied = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 1), nn.Flatten(), nn.Linear(3, 2))
    tied[1].weight = tied[0].weight
    around = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
    unused = nn.Sequential(nn.Flatten(), nn.Linear(162, 5))
    unused.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    for module, shape in (
        (hooked, IMAGES),
        (tied, (3, 1)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(196, 5)), IMAGES),
        (nn.Sequential(around, nn.Flatten(), nn.Linear(324, 5)), IMAGES),
        (unused, IMAGES),
        (plain, (3, 9, 9)),
        (nn.Sequential(plain, nn.Softmax(0)), IMAGES),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 162)), nn.Linear(162, 5)), IMAGES),
        (OwnForward(*plain), IMAGES),
        (nn.Sequential(*plain[:9], nn.ReLU(), OwnForward(nn.Linear(6, 5))), IMAGES),
        (plain[:4], IMAGES),
    ):
        assert network_of(module, shape) is None


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
def test_denormal_numbers_count_as_zero_in_here_and_nowhere_else(name: str) -> None:
    tiny, one = math.ulp(0.0), 1.0
    engine, theta = engine_of(name), torch.zeros(70)
    theta[66:68] = torch.tensor([-90.0, -95.0])  # softmax tails: 8e-40 and 6e-42
    x, y = torch.ones(6, 13), torch.zeros(6, dtype=torch.int64)
    means = engine.client_means(theta, x, y, np.array([0, 2, 6]), 1.0)
    assert not ((means != 0.0) & (means.abs() < torch.finfo(torch.float32).tiny)).any()
    assert tiny * one != 0.0
    torch.set_flush_denormal(True)
    try:
        engine.client_means(theta, x, y, np.array([0, 2, 6]), 1.0)
        assert tiny * one == 0.0
    finally:
        torch.set_flush_denormal(False)
