"""Modules, parameters and calls that are refused, and which modules are read as networks."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.networks.chain import network_of
from tests.gradients.gradient_modules import (
    IMAGES,
    MODULES,
    NETWORKS,
    SHAPE,
    engine_of,
    problem_of,
)
from tests.gradients.gradient_oracle import flat

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


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
def test_calls_that_are_refused(name: str) -> None:
    theta, (x, y, offsets) = flat(MODULES[name]), problem_of(name, [3, 2], 2)
    engine = engine_of(name)
    bounds = ([0, 3], [0, 3, 3, 5], [1, 3, 5], [0, 4, 3, 5], [5])
    radii = (0.0, math.nan, math.inf, [1.0, 0.0], [1.0, 1.0, 1.0])
    calls: list[tuple[tuple[object, ...], str]] = [
        *(((theta, x, y, np.array(bad), 1.0), "offsets") for bad in bounds),
        *(((theta, x, y, offsets, torch.tensor(bad)), "clip_radius") for bad in radii),
        ((theta[:-1], x, y, offsets, 1.0), "parameters"),
        ((theta, x, y[:-1], offsets, 1.0), "labels"),
        ((theta, x[:, :12], y, offsets, 1.0), "inputs"),
        ((theta, x.double(), y, offsets, 1.0), "inputs"),
    ]
    for arguments, field in calls:
        with pytest.raises(InvalidValueError, match=field):
            engine.client_means(*arguments)  # type: ignore[arg-type]
    for steps, rate in ((0, 0.1), (1, 0.0), (1, math.nan)):
        with pytest.raises(InvalidValueError, match=r"steps|learning_rate"):
            engine.local_update(theta, x, y, offsets, steps=steps, learning_rate=rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": "records"}, "clip"),
        ({"norm": 3}, "norm"),
        ({"loss": lambda logits, labels: logits.sum()}, "one loss per record"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    x, y, offsets = problem_of("relu", [3, 2], 2)
    with pytest.raises(InvalidValueError, match=message):
        engine_of("relu", **options).client_means(flat(MODULES["relu"]), x, y, offsets, 1.0)  # type: ignore[arg-type]


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
