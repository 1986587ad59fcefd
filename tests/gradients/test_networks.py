"""Networks with convolutions: values, radii, bits, and which modules are read as one."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_shuffle.gradients import (
    GradientEngine,
    NonfiniteRecords,
    Packing,
    make_gradient_engine,
    packing_of,
)
from fl_shuffle.gradients.networks.graph import network_of
from fl_shuffle.gradients.structure import saved_numbers
from tests.gradients.gradient_oracle import flat, means, offsets_of, relative_difference, updates
from tests.gradients.network_modules import SHAPE, Lines, Residual, networks

NETWORKS = networks()
SIZES = [3, 1, 9, 1, 4, 9, 30]


def problem(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = 2.0 * torch.randn(int(offsets[-1]), *SHAPE, generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


def engine_of(name: str, clip: str, norm: int = 2, **options: object) -> GradientEngine:
    engine = make_gradient_engine(NETWORKS[name], clip=clip, norm=norm, shape=SHAPE, **options)
    assert engine.path == "closed-form network"
    return engine


def middle_radius(name: str, x: Tensor, y: Tensor, norm: int) -> float:
    """The median length of the records' gradients: about half of them are clipped."""
    module = NETWORKS[name]
    alone = means(module, x, y, np.arange(len(x) + 1), Tensor(), clip="none", norm=norm)
    return float(torch.linalg.vector_norm(alone, norm, dim=1).median())


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("clip", ["record", "average", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_against_autograd(name: str, clip: str, norm: int) -> None:
    x, y, offsets = problem(SIZES)
    engine = engine_of(name, clip, norm)
    radius = middle_radius(name, x, y, norm)
    found = engine.client_means(flat(NETWORKS[name]), x, y, offsets, radius)
    if clip == "record":
        limits = torch.from_numpy(engine.record_radius(radius, np.array(SIZES)))
        assert float(limits.max()) < radius < float(limits.min()) * (1.0 + 1e-3)
    else:
        limits = torch.full((len(SIZES),), radius, dtype=torch.float64)
    expected = means(NETWORKS[name], x, y, offsets, limits, clip=clip, norm=norm)
    assert relative_difference(found, expected) < 1e-5


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
    sizes = [700, 2, 2, 40]
    x, y, _ = problem([*sizes, 100], 3)
    smooth = away_from_kinks(name, x, y)[: sum(sizes)]
    x, y, offsets = x[smooth], y[smooth], offsets_of(sizes)
    engine = engine_of(name, "record")
    engine.packing = Packing(100, 5)
    radius = middle_radius(name, x[:60], y[:60], 2)
    found = engine.client_means(flat(NETWORKS[name]), x, y, offsets, radius)
    limits = torch.from_numpy(engine.record_radius(radius, np.array(sizes)))
    expected = means(NETWORKS[name], x, y, offsets, limits, clip="record", norm=2)
    assert relative_difference(found, expected) < 1e-5


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_record_is_longer_than_the_radius(name: str, norm: int) -> None:
    x, y, offsets = problem([1] * 200, 4)
    engine = engine_of(name, "record", norm)
    radius = 0.3 * middle_radius(name, x, y, norm)
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


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_whole_blocks_have_the_same_bits_in_any_call_and_on_any_thread(
    name: str, clip: str
) -> None:
    sizes = [3, 17, 1, 120, 3, 5, 5, 33, 1, 2]
    x, y, offsets = problem(sizes, 6)
    engine, theta = engine_of(name, clip), flat(NETWORKS[name])
    engine.packing = Packing(50, 4)
    together = engine.client_means(theta, x, y, offsets, 0.4)
    starts = engine.packing.starts(np.array(sizes)).tolist()
    assert len(starts) > 3
    pieces = list(pairwise(starts))

    def alone(first: int, last: int) -> Tensor:
        records = slice(int(offsets[first]), int(offsets[last]))
        # In memory of another alignment.
        given = torch.empty(x[records].numel() + 1)[1:].view_as(x[records]).copy_(x[records])
        own = offsets[first : last + 1] - offsets[first]
        return engine.client_means(theta, given, y[records], own, 0.4)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            calls = [pool.submit(alone, *piece) for piece in pieces]
            for (first, last), call in zip(pieces, calls, strict=True):
                assert torch.equal(call.result(), together[first:last])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_that_is_not_finite_counts_as_zero_and_touches_nobody(name: str) -> None:
    sizes = [3, 5, 33, 1]
    x, y, offsets = problem(sizes, 7)
    engine, theta = engine_of(name, "record"), flat(NETWORKS[name])
    radius = middle_radius(name, x, y, 2)
    clean = engine.client_means(theta, x, y, offsets, radius)
    for client in (1, 2):
        first = int(offsets[client])
        rest = slice(first + 1, int(offsets[client + 1]))
        left = np.array([0, sizes[client] - 1])
        without = engine.client_means(theta, x[rest], y[rest], left, radius)[0]
        for value in (torch.nan, torch.inf, 7):
            bad, labels = x.clone(), y.clone()
            if value == 7:
                labels[first] = value
            else:
                bad[first, 1, 4, 4] = value
            found = NonfiniteRecords()
            rows = engine.client_means(theta, bad, labels, offsets, radius, nonfinite=found)
            assert found == NonfiniteRecords(1, 1)
            others = [k for k in range(len(sizes)) if k != client]
            assert torch.equal(rows[others], clean[others])
            torch.testing.assert_close(
                rows[client] * sizes[client], without * (sizes[client] - 1), rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("clip", ["average", "none"])
def test_a_label_that_is_no_class_spoils_its_client_alone(clip: str) -> None:
    x, y, offsets = problem([3, 5, 2])
    theta = flat(NETWORKS["plain"])
    clean = engine_of("plain", clip).client_means(theta, x, y, offsets, 0.1)
    y[4] = 5
    rows = engine_of("plain", clip).client_means(theta, x, y, offsets, 0.1)
    assert torch.equal(rows[[0, 2]], clean[[0, 2]])
    assert bool(torch.isfinite(rows[1]).all()) == (clip == "average")
    assert clip == "none" or not rows[1].any()


@pytest.mark.parametrize("name", NETWORKS)
def test_local_updates_and_own_losses(name: str) -> None:
    def squares(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - functional.one_hot(labels, 5)).square().sum(1)

    x, y, offsets = problem([4, 1, 7])
    module, theta = NETWORKS[name], flat(NETWORKS[name])
    for steps in (1, 3):
        engine = engine_of(name, "none")
        found = engine.local_update(theta, x, y, offsets, steps=steps, learning_rate=0.1)
        assert relative_difference(found, updates(module, x, y, offsets, steps, 0.1)) < 1e-5
    engine = engine_of(name, "record", loss=squares)
    limits = torch.from_numpy(engine.record_radius(0.4, np.array([4, 1, 7])))
    found = engine.client_means(theta, x, y, offsets, 0.4)
    expected = means(module, x, y, offsets, limits, clip="record", norm=2, loss=squares)
    assert relative_difference(found, expected) < 1e-5


class Mixing(nn.Module):
    """Some way in which records meet, or in which values choose what is computed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.convolution = nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(4 * 49, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.convolution(x)
        if self.how == "mean of the records":
            hidden = hidden - hidden.mean(0)
        elif self.how == "mean of the records, kept":
            hidden = hidden - hidden.mean(0, keepdim=True)
        elif self.how == "number of the records":
            hidden = hidden * hidden.size(0)
        elif self.how == "branch on a value":
            hidden = hidden if float(hidden.sum()) > 0 else -hidden
        elif self.how == "softmax over the records":
            hidden = torch.softmax(hidden, 0)
        elif self.how == "order of the records":
            hidden = hidden.flip(0)
        elif self.how == "layer twice":
            return self.head(hidden.flatten(1)) + self.head(torch.relu(hidden).flatten(1))
        elif self.how == "own parameters":
            return functional.linear(hidden.flatten(1), self.head.weight, self.head.bias)
        return self.head(hidden.flatten(1))


@pytest.mark.parametrize(
    "how",
    [
        *("mean of the records", "mean of the records, kept", "number of the records"),
        *("branch on a value", "softmax over the records", "order of the records"),
        *("layer twice", "own parameters"),
    ],
)
def test_what_is_no_network(how: str) -> None:
    assert network_of(Mixing("not at all"), SHAPE) is not None
    assert network_of(Mixing(how), SHAPE) is None


def test_more_that_is_no_network() -> None:
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


def test_blocks_follow_from_the_model_and_the_shape() -> None:
    for module in (Residual(), Lines()):
        network = network_of(module, SHAPE)
        assert network is not None
        dimension = flat(module).numel()
        expected = Packing((1 << 23) // network.numbers, (1 << 22) // dimension)
        assert packing_of(module, SHAPE) == expected
        assert make_gradient_engine(module, clip="record", shape=SHAPE).packing == expected
    mixing = Mixing("softmax over the records")
    kept = saved_numbers(mixing, SHAPE)
    assert kept is not None
    assert kept > 4 * 49
    expected = Packing(min(512, (1 << 22) // (flat(mixing).numel() + kept)), (1 << 22) // 1061)
    assert packing_of(mixing, SHAPE) == expected
    assert packing_of(mixing).records == 32
    assert packing_of(mixing, (7,)).records == 32
