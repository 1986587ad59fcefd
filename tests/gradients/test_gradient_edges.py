"""Local updates, zero and non-finite gradients, and everything that is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import make_gradient_engine
from tests.gradients.gradient_modules import (
    NETWORKS,
    SHAPE,
    Small,
    chains,
    problem_of,
    records_of,
    shape_of,
)
from tests.gradients.gradient_oracle import (
    flat,
    limits_of,
    means,
    offsets_of,
    relative_difference,
    updates,
)

CHAINS = {**chains(), **NETWORKS}


def problem(sizes: list[int], seed: int = 2) -> tuple[Tensor, Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = torch.randn(int(offsets[-1]), 13, generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", [*CHAINS, "convolution"])
def test_local_updates_against_autograd(name: str, steps: int) -> None:
    torch.manual_seed(1)
    module = CHAINS.get(name) or Small()
    x, y, offsets = problem_of(name, [5, 1, 12, 5, 5], 2)
    engine = make_gradient_engine(
        module, shape=shape_of(name), clip="none", records=records_of(name)
    )
    found = engine.local_update(flat(module), x, y, offsets, steps=steps, learning_rate=0.3)
    assert relative_difference(found, updates(module, x, y, offsets, steps, 0.3)) < 1e-5


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("records", [0, 1 << 40])
def test_zero_gradients_stay_zero(records: int, clip: str, norm: int) -> None:
    """Records whose logits are certain, or whose loss is flat, have no gradient at all."""
    module = nn.Linear(13, 5)
    theta = torch.zeros(70)
    theta[-5] = 200.0
    x, _, offsets = problem([3, 1, 40])
    y = torch.zeros(44, dtype=torch.int64)
    engine = make_gradient_engine(module, shape=SHAPE, clip=clip, norm=norm, records=records)
    assert not engine.client_means(theta, x, y, offsets, 1.0).any()


def test_own_losses() -> None:
    def squares(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - nn.functional.one_hot(labels, 5)).square().sum(1)

    radius = torch.full((3,), 0.4)
    torch.manual_seed(1)
    for name in ("linear", "lines", "convolution", "relu"):
        module = CHAINS.get(name) or Small()
        x, y, offsets = problem_of(name, [4, 1, 33], 2)
        engine = make_gradient_engine(module, shape=shape_of(name), clip="record", loss=squares)
        found = engine.client_means(flat(module), x, y, offsets, radius)
        limits = limits_of(engine, radius, offsets)
        expected = means(module, x, y, offsets, limits, clip="record", norm=2, loss=squares)
        assert relative_difference(found, expected) < 1e-5
    engine = make_gradient_engine(
        CHAINS["relu"], shape=SHAPE, clip="record", loss=lambda a, b: a.sum()
    )
    with pytest.raises(InvalidValueError, match="one loss per record"):
        engine.client_means(flat(CHAINS["relu"]), x, y, offsets, radius)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(13, 4), nn.BatchNorm1d(4)), "GroupNorm"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 2)), "mixes"),
        (nn.Sequential(nn.Linear(13, 4), nn.Dropout(0.5)), "random state"),
        (nn.ReLU(), "no parameters"),
    ],
)
def test_modules_that_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_gradient_engine(module, shape=SHAPE, clip="record")


def test_parameters_that_are_refused() -> None:
    frozen = nn.Linear(13, 5)
    frozen.bias.requires_grad_(False)
    with pytest.raises(InvalidValueError, match="bias"):
        make_gradient_engine(frozen, shape=SHAPE, clip="record")
    whole = nn.Linear(13, 5)
    whole.weight = nn.Parameter(torch.ones(5, 13, dtype=torch.int64), requires_grad=False)
    with pytest.raises(InvalidValueError, match="floating point"):
        make_gradient_engine(whole, shape=SHAPE, clip="record")
    resting = nn.Sequential(nn.Linear(13, 5), nn.Dropout(0.5)).eval()
    assert make_gradient_engine(resting, shape=SHAPE, clip="record").dimension == 70


@pytest.mark.parametrize("records", [0, 1 << 40])
def test_calls_that_are_refused(records: int) -> None:
    module = CHAINS["linear"]
    theta = flat(module)
    x, y, offsets = problem([3, 2])
    engine = make_gradient_engine(module, shape=SHAPE, clip="record", records=records)
    for bad in ([0, 3], [0, 3, 3, 5], [1, 3, 5], [0, 4, 3, 5], [5]):
        with pytest.raises(InvalidValueError, match="offsets"):
            engine.client_means(theta, x, y, np.array(bad), 1.0)
    for radius in (0.0, -1.0, float("nan"), float("inf"), [1.0, 0.0], [1.0, 1.0, 1.0]):
        with pytest.raises(InvalidValueError, match="clip_radius"):
            engine.client_means(theta, x, y, offsets, torch.tensor(radius))
    with pytest.raises(InvalidValueError, match="parameters"):
        engine.client_means(theta[:-1], x, y, offsets, 1.0)
    with pytest.raises(InvalidValueError, match="labels"):
        engine.client_means(theta, x, y[:-1], offsets, 1.0)
    with pytest.raises(InvalidValueError, match="inputs"):
        engine.client_means(theta, x[:, :12], y, offsets, 1.0)
    with pytest.raises(InvalidValueError, match="inputs"):
        engine.client_means(theta, x.double(), y, offsets, 1.0)
    for steps, rate in ((0, 0.1), (1, 0.0), (1, float("nan"))):
        with pytest.raises(InvalidValueError, match=r"steps|learning_rate"):
            engine.local_update(theta, x, y, offsets, steps=steps, learning_rate=rate)
    for clip, norm in (("records", 2), ("record", 3)):
        with pytest.raises(InvalidValueError):
            make_gradient_engine(module, shape=SHAPE, clip=clip, norm=norm)
    with pytest.raises(InvalidValueError, match="module output"):
        make_gradient_engine(
            nn.Sequential(nn.Linear(13, 5), nn.Flatten(0)), shape=SHAPE, clip="record"
        ).client_means(theta, x, y, offsets, 1.0)


@pytest.mark.parametrize("name", ["linear", "relu", "convolution"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_values(name: str) -> None:
    torch.manual_seed(1)
    module = CHAINS.get(name) or Small()
    x, y, offsets = problem([3, 5, 1, 70])
    expected = make_gradient_engine(module, shape=SHAPE, clip="record").client_means(
        flat(module), x, y, offsets, 0.5
    )
    engine = make_gradient_engine(module, shape=SHAPE, clip="record", device="cuda")
    found = engine.client_means(flat(module).cuda(), x.cuda(), y.cuda(), offsets, 0.5)
    assert relative_difference(found.cpu(), expected.double()) < 1e-5


@pytest.mark.parametrize("records", [0, 1 << 40])
def test_denormal_numbers_count_as_zero_in_here_and_nowhere_else(records: int) -> None:
    tiny, one = math.ulp(0.0), 1.0
    engine = make_gradient_engine(nn.Linear(4, 3), shape=SHAPE, clip="record", records=records)
    theta = torch.zeros(engine.dimension)
    theta[12:] = torch.tensor([0.0, -90.0, -95.0])  # softmax tails: 8e-40 and 6e-42
    x, y = torch.ones(6, 4), torch.zeros(6, dtype=torch.int64)
    means = engine.client_means(theta, x, y, np.array([0, 2, 6]), 1.0)
    smallest = torch.finfo(torch.float32).tiny
    assert not ((means != 0.0) & (means.abs() < smallest)).any()
    assert tiny * one != 0.0
    torch.set_flush_denormal(True)
    try:
        engine.client_means(theta, x, y, np.array([0, 2, 6]), 1.0)
        assert tiny * one == 0.0
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("records", [0, 1 << 40])
@pytest.mark.parametrize(
    ("feature", "radius"), [(1.5e19, 0.5), (1e17, 1e-3), (1e9, 1e-12), (1e18, 1e-12)]
)
def test_tiny_errors_of_huge_inputs_are_clipped_too(
    records: int, feature: float, radius: float
) -> None:
    """Squares of errors below 1e-19 are zero in float32; the gradient need not be short."""
    theta = torch.zeros(6)
    theta[4] = 44.5  # softmax of the other class: 4.7e-20
    x, y = torch.tensor([[0.0, feature]]), torch.zeros(1, dtype=torch.int64)
    engine = make_gradient_engine(nn.Linear(2, 2), shape=SHAPE, clip="record", records=records)
    row = engine.client_means(theta, x, y, np.array([0, 1]), radius).double()
    assert 0.0 < float(torch.linalg.vector_norm(row)) <= radius


@pytest.mark.parametrize("size", [513, 20_000])
@pytest.mark.parametrize("name", ["compiled", "narrow", "wide", "convolution"])
def test_long_clients_are_as_exact_as_short_ones(name: str, size: int) -> None:
    """Equal records: rounding errors that add up would show most."""
    torch.manual_seed(2)
    module: nn.Module = nn.Linear(13, 10)
    if name == "wide":
        module = nn.Sequential(nn.Linear(13, 400), nn.ReLU(), nn.Linear(400, 10))
    elif name == "convolution":
        module = Small()
    records = 1 << 40 if name == "compiled" else 0
    x, y = torch.randn(1, 13), torch.tensor([3])
    for clip in ("record", "none"):
        engine = make_gradient_engine(module, shape=SHAPE, clip=clip, records=records)
        radius = float(engine.record_radius(0.5, np.array([size]))[0])
        expected = means(
            module, x, y, np.array([0, 1]), torch.tensor([radius]).double(), clip=clip, norm=2
        )
        many = engine.client_means(
            flat(module), x.repeat(size, 1), y.repeat(size), np.array([0, size]), 0.5
        )
        assert relative_difference(many, expected) < 1e-5
