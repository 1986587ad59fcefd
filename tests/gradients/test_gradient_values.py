"""Every path against autograd in float64, one record at a time; and which modules take which."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import Loss, Packing, make_gradient_engine
from fl_shuffle.gradients.networks.chain import network_of
from tests.gradients.gradient_modules import (
    CHAINS,
    IMAGES,
    MODULES,
    NETWORKS,
    SHAPE,
    Problem,
    limits_of,
    means,
    path_of,
    relative_difference,
)


def squares(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of one's own."""
    return (logits - nn.functional.one_hot(labels, 5)).square().sum(1)


@pytest.mark.parametrize(
    ("name", "clip", "norm", "loss"),
    [
        *((name, "record", norm, None) for name in MODULES for norm in (1, 2)),
        *((name, "none", 2, None) for name in MODULES),
        *((name, "record", 2, squares) for name in ("linear", "relu", "lines", "convolution")),
    ],
)
def test_means_against_autograd(name: str, clip: str, norm: int, loss: Loss | None) -> None:
    """Of networks the last client is more than a block holds, and is computed in pieces."""
    sizes = [3, 1, 9, 1, 4, 9, 150 if name in CHAINS else 60]
    problem = Problem(name, sizes, clip=clip, norm=norm, loss=loss)
    problem.x *= 2
    if name not in CHAINS:
        problem.engine.packing = Packing(40, 5)
    found = problem.rows()
    assert clip == "none" or loss or problem.engine.path == path_of(name)
    limits = limits_of(problem.engine, problem.radius, problem.offsets)
    given = problem.module, problem.x, problem.y, problem.offsets, limits
    expected = means(*given, clip=clip, norm=norm, loss=loss)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "linear, compiled", "plain", "convolution"])
def test_local_updates_are_steps_along_each_clients_own_mean(name: str) -> None:
    problem = Problem(name, [5, 1, 12], 2, clip="none")
    theta, local = problem.theta, problem.theta.repeat(3, 1)
    found = problem.rows(steps=4)
    for _ in range(4):
        for client in range(3):
            problem.theta = local[client].clone()
            local[client] -= 0.2 * problem.rows()[client]
    assert relative_difference(found, (local - theta).double()) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "convolution"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_values(name: str) -> None:
    here, there = (Problem(name, [3, 5, 1, 70], 2, **more) for more in ({}, {"device": "cuda"}))
    there.theta, there.x, there.y = there.theta.cuda(), there.x.cuda(), there.y.cuda()
    assert relative_difference(there.rows().cpu(), here.rows().double()) < 1e-5


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
def test_zero_gradients_stay_zero(name: str, clip: str) -> None:
    """Records whose logits are certain have no gradient at all."""
    problem = Problem(name, [3, 1, 40], clip=clip)
    problem.theta = torch.zeros(70)
    problem.theta[-5] = 200.0
    assert not problem.rows(y=torch.zeros_like(problem.y)).any()


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
@pytest.mark.parametrize(("feature", "radius"), [(1e17, 1e-3), (1e9, 1e-12), (1e18, 1e-12)])
def test_tiny_errors_of_huge_inputs_are_clipped_too(
    name: str, feature: float, radius: float
) -> None:
    """Squares of errors below 1e-19 are zero in float32; the gradient need not be short."""
    problem = Problem(name, [1], radius=radius)
    problem.theta, x = torch.zeros(70), torch.zeros(1, 13)
    problem.theta[65], x[0, 1] = 44.5, feature  # softmax of the other classes: 4.7e-20
    row = problem.rows(x, torch.zeros_like(problem.y)).double()
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
    tied = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(162, 5))
    tied[1].weight = tied[0].weight
    around = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    unused = nn.Sequential(nn.Flatten(), nn.Linear(162, 5))
    unused.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    for module in (
        *(hooked, tied, unused, plain[:4], OwnForward(*plain)),
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(196, 5)),
        nn.Sequential(around, nn.Flatten(), nn.Linear(162, 5)),
        nn.Sequential(plain, nn.Softmax(0)),
        nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 162)), nn.Linear(162, 5)),
        nn.Sequential(*plain[:9], nn.ReLU(), OwnForward(nn.Linear(6, 5))),
    ):
        assert network_of(module, IMAGES) is None
    assert network_of(plain, (3, 9, 9)) is None


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
@pytest.mark.parametrize("flushed", [False, True])
def test_denormal_numbers_count_as_zero_in_here_and_nowhere_else(name: str, flushed: bool) -> None:
    problem, tiny, one = Problem(name, [2, 4]), math.ulp(0.0), 1.0
    problem.theta = torch.zeros(70)
    problem.theta[66:68] = torch.tensor([-90.0, -95.0])  # softmax tails: 8e-40 and 6e-42
    torch.set_flush_denormal(flushed)
    means = problem.rows(torch.ones(6, 13), torch.zeros_like(problem.y))
    after = tiny * one
    torch.set_flush_denormal(False)
    assert (after == 0.0) == flushed
    assert not ((means != 0.0) & (means.abs() < torch.finfo(torch.float32).tiny)).any()
